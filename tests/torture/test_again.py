"""A thousand resumes, and pairs of commands that begin at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from classify.cli import main
from tests.support import tiny
from tests.support.processes import Process, start, unlaunched
from tests.support.runs import COMMAND_FILES, read_json

RESUMES = 1_000
PAIRS = 20


def words(table: Path, model: Path, *more: str) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu", "--contrastive-steps", "0", "--report-to", "none", *more,
    ]  # fmt: skip


def resume_again_and_again(folder: Path, arguments: list[str], count: int) -> int:
    """One run of `count` steps, and as many runs of one step more each."""
    save = ["--save-steps", "1", "--lr-scheduler-type", "constant", "--quiet"]
    run = [*arguments, *save, "--output-dir"]
    assert main([*run, str(folder / "whole"), "--max-steps", str(count)], program="run_classify.py") == 0
    for step in range(1, count + 1):
        more = ["--resume"] if step > 1 else []
        code = main([*run, str(folder / "parts"), "--max-steps", str(step), *more], program="run_classify.py")
        assert code == 0, step
    return 0


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", [3, pytest.param(RESUMES, marks=pytest.mark.torture)])
def test_many_resumes_are_one_run(
    model_folder: Path, tmp_path: Path, figure: Callable[[str], None], count: int
) -> None:
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(40))
    arguments = words(table, model_folder, "--batch-size", "8", "--head", "random", "--learning-rate", "1e-4")
    begin = time.monotonic()
    done = Process(resume_again_and_again, (tmp_path, arguments, count), tmp_path, unlaunched()).finish(1400)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in (
        f"checkpoints/step-{count:08d}/optimizer.safetensors",
        f"checkpoints/step-{count:08d}/model.safetensors",
    ):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    figure(f"{count:,} resumes of one step: the bits of one run of {count:,} steps, {time.monotonic() - begin:.0f} s")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pairs", [1, pytest.param(PAIRS, marks=pytest.mark.torture)])
def test_pairs_of_runs_do_not_clash(
    model_folder: Path, table: Path, tmp_path: Path, figure: Callable[[str], None], pairs: int
) -> None:
    """The same command twice at the same moment, in two processes each: ports, runs/my-<n>, the cache of tokens."""
    for pair in range(pairs):
        folder, cache = tmp_path / str(pair), {"XDG_CACHE_HOME": str(tmp_path / str(pair) / "cache")}
        folder.mkdir()
        both = [
            start(folder, "run_classify.py", *words(table, model_folder, "--nproc", "2", "--epochs", "1"), **cache)
            for _ in range(2)
        ]
        for one in both:
            done = one.finish()
            assert done.returncode == 0, done.stderr
        weights = set()
        for number in (1, 2):
            out = folder / "runs" / f"my-{number}"
            assert {path.name for path in out.iterdir()} == COMMAND_FILES - {"tensorboard"}
            assert read_json(out / "run.json")["status"] == "finished"
            weights.add((out / "model.safetensors").read_bytes())
        assert len(weights) == 1
        assert sorted(path.name for path in (folder / "runs").iterdir()) == ["my-1", "my-2"]
    figure(f"{pairs} pairs of runs at the same moment: no clash, the same weights")

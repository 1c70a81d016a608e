"""Long runs: 20,000 steps in three processes, a thousand resumes, pairs of commands that begin at the same moment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from classify.cli import main
from tests.support import tiny
from tests.support.processes import Process, nproc_command, start, unlaunched
from tests.support.runs import COMMAND_FILES, read_json

STEPS = 20_000
RESUMES = 1_000
PAIRS = 20


def words(table: Path, model: Path, *more: str) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu", "--contrastive-steps", "0", "--report-to", "none", *more,
    ]  # fmt: skip


@pytest.mark.torture
@pytest.mark.timeout(1500)
def test_memory_and_files_stay_flat(
    model_folder: Path, table: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """From a fifth of the steps on; each rank's own memory, open files, and the bytes of the log per step."""
    more = ["--nproc", "3", "--max-steps", str(STEPS), "--save-steps", "1000", "--batch-size", "6"]
    more += ["--logging-steps", "1000", "--output-dir", "out"]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            nproc_command(*words(table, model_folder, *more)),
            cwd=tmp_path,
            env=unlaunched(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    seen: dict[int, list[tuple[int, int, int]]] = {}  # of each step: memory, open files, threads, over the ranks
    try:
        while process.poll() is None:
            time.sleep(2)
            steps = [int(path.name[5:]) for path in (tmp_path / "out" / "checkpoints").glob("step-*")]
            try:
                ranks = [
                    rank for rank in psutil.Process(process.pid).children(recursive=True) if rank.num_threads() > 1
                ]
                if steps and max(steps) not in seen:
                    seen[max(steps)] = [
                        (rank.memory_full_info().uss, rank.num_fds(), rank.num_threads()) for rank in ranks
                    ]
            except psutil.Error:
                continue
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, (tmp_path / "log.txt").read_text()[-2000:]
    middle = [step for step in sorted(seen) if STEPS / 5 <= step < STEPS]
    first, last = (seen[step] for step in (middle[0], middle[-1]))
    memory = [sum(rank[0] for rank in ranks) for ranks in (first, last)]
    assert len(first) == len(last) >= 3
    assert memory[1] < 1.02 * memory[0], seen
    assert [rank[1] for rank in first] == [rank[1] for rank in last], seen
    lines = (tmp_path / "out" / "train_log.jsonl").stat().st_size
    figure(
        f"{STEPS:,} steps of 3 ranks: memory {memory[0] / 2**20:.0f} and {memory[1] / 2**20:.0f} MiB at steps "
        f"{middle[0]:,} and {middle[-1]:,}, {last[0][1]} open files a rank, log {lines / 2**10:.0f} KiB"
    )
    assert lines < 100 * STEPS


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
@pytest.mark.parametrize(
    "count", [pytest.param(10, marks=pytest.mark.slow), pytest.param(RESUMES, marks=pytest.mark.torture)]
)
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
@pytest.mark.parametrize(
    "pairs", [pytest.param(2, marks=pytest.mark.slow), pytest.param(PAIRS, marks=pytest.mark.torture)]
)
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

"""Whole runs in several real processes: torchrun, --nproc, one writer, the same predictions, exit codes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.conftest import ROOT, run_command, unlaunched
from tests.distributed.processes import free_port

pytestmark = pytest.mark.distributed

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tables whose parts no number of processes divides: 61 to train, 29 to evaluate, 31 to test."""
    folder = tmp_path_factory.mktemp("uneven")
    return {
        name: tiny.write_table(folder / f"{name}.csv", tiny.table_rows(rows, seed))
        for seed, (name, rows) in enumerate({"data": 61, "eval": 29, "test": 31}.items())
    }


def flags(tables: dict[str, Path], model: Path, *more: str) -> list[str]:
    return [
        "--data", str(tables["data"]), "--eval-data", str(tables["eval"]), "--test-data", str(tables["test"]),
        "--model", str(model), "--cpu", "--batch-size", "16", "--learning-rate", "1e-3", "--report-to", "none", *more,
    ]  # fmt: skip


def predictions(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run_all(tmp_path_factory: pytest.TempPathFactory, uneven: dict[str, Path], model_folder: Path) -> dict[int, Path]:
    """The same run on 1, 2 and 3 processes, dropout off so that the weights agree too."""
    tmp_path = tmp_path_factory.mktemp("all")
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nhead: random\n")
    found = {}
    for count in (1, 2, 3):
        start = ["-m", "classify", "train"] if count == 1 else [*TORCHRUN, str(count), str(ROOT / "run_classify.py")]
        words = flags(uneven, model_folder, "--config", "c.yaml", "--epochs", "1", "--output-dir", f"out-{count}")
        done = run_command(tmp_path, *start, *words)
        assert done.returncode == 0, done.stderr
        found[count] = tmp_path / f"out-{count}"
    return found


def test_prediction_by_two_processes_is_that_of_one(
    run_all: dict[int, Path], uneven: dict[str, Path], tmp_path: Path
) -> None:
    words = ["-m", "classify", "predict", "--model", str(run_all[1]), "--data", str(uneven["test"]), "--cpu", "--out"]
    for start, out in (([], "one.csv"), ([*TORCHRUN, "2"], "two.csv")):
        done = run_command(tmp_path, *start, *words, out)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"{out}: 31 rows,") == 1
    one, two = (list(csv.DictReader((tmp_path / name).open(encoding="utf-8"))) for name in ("one.csv", "two.csv"))
    assert [row["predicted_label"] for row in one] == [row["predicted_label"] for row in two]
    for a, b in zip(one, two, strict=True):
        assert float(a["confidence"]) == pytest.approx(float(b["confidence"]), abs=1e-5)


def test_the_same_predictions_on_any_number_of_processes(run_all: dict[int, Path], uneven: dict[str, Path]) -> None:
    one = predictions(run_all[1])
    with uneven["test"].open(newline="") as file:
        assert [row["text"] for row in one] == [row["text"] for row in csv.DictReader(file)]
    metrics = {count: json.loads((folder / "metrics.json").read_text()) for count, folder in run_all.items()}
    for count in (2, 3):
        other = predictions(run_all[count])
        assert [row["predicted_label"] for row in other] == [row["predicted_label"] for row in one]
        for a, b in zip(one, other, strict=True):
            assert float(a["confidence"]) == pytest.approx(float(b["confidence"]), abs=1e-4)
        for part, rows in (("eval", 29), ("test", 31)):
            assert metrics[count][part]["rows"] == rows
            assert metrics[count][part]["accuracy"] == metrics[1][part]["accuracy"]
            assert metrics[count][part]["loss"] == pytest.approx(metrics[1][part]["loss"], abs=1e-4)


def test_topology_is_told_and_the_main_process_alone_wrote(run_all: dict[int, Path]) -> None:
    for count, folder in run_all.items():
        run = json.loads((folder / "run.json").read_text())
        assert [entry["rank"] for entry in run["topology"]] == list(range(count))
        assert [entry["local_rank"] for entry in run["topology"]] == ([-1] if count == 1 else list(range(count)))
        assert sum(entry["rows_per_step"] for entry in run["topology"]) == 16
        assert run["strategy"] == ("none" if count == 1 else "ddp")
        assert run["launcher"] == ("none" if count == 1 else "torchrun")
        log = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in log if "eval" in line] == [4]


SPY = """
import os, sys

report = os.open({report!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def note(event, args):
    if event not in ("open", "os.mkdir", "os.rename") or not str(args[0]).startswith("out"):
        return
    if event != "open" or (args[2] or 0) & WRITING:
        os.write(report, (os.environ.get("RANK", "launcher") + " " + event + " " + str(args[0]) + chr(10)).encode())

sys.addaudithook(note)
"""


def test_only_one_process_writes(
    command: Callable[..., Any], uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """A spy in every process notes what is opened for writing below the output folder."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY.format(report=str(tmp_path / "writes.txt")))
    words = flags(uneven, model_folder, "--max-steps", "3", "--save-steps", "1", "--output-dir", "out")
    done = command(*TORCHRUN, "2", str(ROOT / "run_classify.py"), *words, PYTHONPATH=str(tmp_path / "spy"))
    assert done.returncode == 0, done.stderr
    writers = {line.split()[0] for line in (tmp_path / "writes.txt").read_text().splitlines()}
    assert writers == {"0"}
    assert done.stdout.count("result: out") == 1


def test_nproc_returns_the_workers_code_and_its_one_line(
    command: Callable[..., Any], uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """A fault that only the workers can find: checkpoints of which none can be trusted."""
    bad = tmp_path / "out" / "checkpoints" / "step-00000001"
    bad.mkdir(parents=True)
    (bad / "manifest.json").write_text("{}")
    words = flags(uneven, model_folder, "--output-dir", "out", "--nproc", "2", "--resume")
    done = command("-m", "classify", "train", *words)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: out/checkpoints: no checkpoint can be trusted")


def test_an_error_under_torchrun_comes_once(
    command: Callable[..., Any], uneven: dict[str, Path], model_folder: Path
) -> None:
    begin = time.monotonic()
    words = flags(uneven, model_folder, "--text-column", "nothing")
    done = command(*TORCHRUN, "2", str(ROOT / "run_classify.py"), *words)
    assert done.returncode == 1, "torchrun's own code"
    assert done.stderr.count("error: --text-column nothing") == 1
    assert time.monotonic() - begin < 60


def test_resume_in_other_processes(
    command: Callable[..., Any], uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """A run stopped on two processes goes on in one, from the same row, to the same weights (dropout off)."""
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nhead: random\nsave_total_limit: 9\n")
    base = flags(uneven, model_folder, "--config", "c.yaml", "--epochs", "2", "--save-steps", "3")
    two = [*TORCHRUN, "2", str(ROOT / "run_classify.py")]
    assert command(*two, *base, "--output-dir", "whole").returncode == 0
    assert command(*two, *base, "--output-dir", "part").returncode == 0
    for step in (4, 6, 8):
        (tmp_path / "part" / "checkpoints" / f"step-{step:08d}" / "manifest.json").unlink()
    run = json.loads((tmp_path / "part" / "run.json").read_text())
    (tmp_path / "part" / "run.json").write_text(json.dumps({**run, "status": "interrupted"}))
    done = command("-m", "classify", "train", *base, "--output-dir", "part", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming from step-00000003" in done.stdout
    for a, b in zip(predictions(tmp_path / "part"), predictions(tmp_path / "whole"), strict=True):
        assert float(a["confidence"]) == pytest.approx(float(b["confidence"]), abs=1e-4)


def test_ctrl_c_saves_and_leaves_no_process(uneven: dict[str, Path], model_folder: Path, tmp_path: Path) -> None:
    words = flags(
        uneven, model_folder, "--epochs", "5000", "--output-dir", "out", "--nproc", "2", "--save-steps", "100000"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_classify.py"), *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 3 "):
                break
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, (out[-500:], err)
    assert err.count("error: ") == 1, err
    assert "saved; go on with the same command and --resume" in err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_tables_are_tokenised_before_the_processes_meet_and_once_for_all(
    tmp_path: Path, uneven: dict[str, Path], model_folder: Path
) -> None:
    """A rank that waits for the other has its tokens in the cache; the other reads the same files."""
    words = flags(uneven, model_folder, "--max-steps", "1", "--head", "random", "--output-dir", "out")
    environment = {
        **unlaunched(), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path), "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    ranks: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        place = {"RANK": str(len(ranks)), "LOCAL_RANK": str(len(ranks))}
        command = [sys.executable, str(ROOT / "run_classify.py"), *words]
        ranks.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=environment | place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
        return ranks[-1]

    def entries() -> dict[str, tuple[int, int]]:
        found = {path: path.stat() for path in (tmp_path / "classify" / "tokens").glob("[!.]*/*.npy")}
        return {str(path): (about.st_ino, about.st_mtime_ns) for path, about in found.items()}

    try:
        first = start()
        deadline = time.monotonic() + 90
        while len(entries()) < 6 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        made = entries()
        assert len(made) == 6, "ids and offsets of three tables"
        assert first.poll() is None, "it waits for the other"
        start()
        told = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert entries() == made

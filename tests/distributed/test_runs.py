"""Whole runs in several real processes: torchrun, --nproc, one writer, the same predictions, exit codes."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import classify
from classify.config.run_config import RunConfig
from classify.training.run import train
from tests.support import tiny
from tests.support.processes import (
    SCRIPT,
    finish,
    forked_python,
    nproc_command,
    rank_environments,
    run,
    run_distributed_test,
    run_ranks,
    start,
    unlaunched,
)
from tests.support.runs import make_config, read_json

pytestmark = pytest.mark.distributed

HANGUP = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="SIGHUP is ignored here, as under nohup"
)
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
        "--model", str(model), "--cpu",
        "--contrastive-steps", "0", "--batch-size", "16", "--learning-rate", "1e-3", "--report-to", "none", *more,
    ]  # fmt: skip


def predictions(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run_all(tmp_path_factory: pytest.TempPathFactory, uneven: dict[str, Path], model_folder: Path) -> dict[int, Path]:
    """The same run on 1, 2 and 3 processes, dropout off so that the weights agree too."""
    tmp_path = tmp_path_factory.mktemp("all")
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nhead: random\n")
    result = {}
    for count in (1, 2, 3):
        words = flags(uneven, model_folder, "--config", "c.yaml", "--epochs", "1", "--output-dir", f"out-{count}")
        if count == 1:
            done = run(tmp_path, "classify", "train", *words)
            assert done.returncode == 0, done.stderr
        else:
            run_ranks(count, "run_classify.py", *words, folder=tmp_path)
        result[count] = tmp_path / f"out-{count}"
    return result


def train_folds(model: Path, table: Path, out: Path) -> None:
    """Cross-validate in each strategy, one after the other in the same processes."""
    for strategy in ("ddp", "fsdp"):
        train(fold_config(model, table, out / strategy, strategy=strategy))


def fold_config(model: Path, table: Path, out: Path, **changes: Any) -> RunConfig:
    steps = {"num_train_epochs": 1.0, "batch_size": 16, "contrastive_steps": 2, "adam_epsilon": 1e-5}
    return make_config(model, table, out, folds=2, dropout=0.0, report_to="none", **steps, **changes)


def test_folds_on_two_processes_are_those_of_one(tmp_path: Path, model_folder: Path) -> None:
    """Out-of-fold predictions and the final weights, whatever strategy trains them: 1e-5 of the norm."""
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(50))
    one = train(fold_config(model_folder, table, tmp_path / "one"))
    run_distributed_test(train_folds, 2, model_folder, table, tmp_path)
    expected = load_file(one / "model.safetensors")
    for strategy in ("ddp", "fsdp"):
        assert read_json(tmp_path / strategy / "run.json")["strategy"] == strategy
        for row, other in zip(predictions(one), predictions(tmp_path / strategy), strict=True):
            assert row["fold"] == other["fold"]
            assert float(row["confidence"]) == pytest.approx(float(other["confidence"]), abs=2e-4)
        weights = load_file(tmp_path / strategy / "model.safetensors")
        difference = sum(float((weights[name] - tensor).norm() ** 2) for name, tensor in expected.items())
        assert difference < 1e-10 * sum(float(tensor.norm() ** 2) for tensor in expected.values())


def test_prediction_divided_over_three_processes_is_that_of_one(run_all: dict[int, Path], tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "many.csv", tiny.table_rows(1_500, seed=7))
    words = ["classify", "predict", "--model", str(run_all[1]), "--data", str(table), "--cpu", "--out"]
    done = run(tmp_path, *words, "one.csv")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, *words, "three.csv", "--nproc", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("three.csv: 1,500 rows") == 1
    one, three = (list(csv.DictReader((tmp_path / name).open(encoding="utf-8"))) for name in ("one.csv", "three.csv"))
    assert [row["text"] for row in three] == [text for text, _ in tiny.table_rows(1_500, seed=7)]
    for a, b in zip(one, three, strict=True):
        assert a["predicted_label"] == b["predicted_label"]
        assert float(a["confidence"]) == pytest.approx(float(b["confidence"]), abs=1e-5)


def count_own_rows(folder: Path, texts: list[str]) -> None:
    """Each rank computes some of the texts, and all together each text once."""
    with classify.load_classifier(str(folder), use_cpu=True, distributed=True) as classifier:
        own: list[int] = []
        collate = classifier.classifier.batch
        classifier.probabilities(texts[:2])  # the check of packing computes texts on every rank

        def counted(tokens: Any, rows: Any) -> Any:
            own.extend(classifier.world.rank + classifier.world.world_size * row for row in rows.tolist())
            return collate(tokens, rows)

        classifier.classifier.batch = counted  # type: ignore[method-assign]
        assert classifier.probabilities(texts).shape == (len(texts), 3)
        assert 0.2 * len(texts) < len(own) < 0.5 * len(texts)
        everywhere = sorted(classifier.world.gather(torch.tensor(own)).tolist())
        assert everywhere == list(range(len(texts)))


def test_each_of_three_processes_computes_its_share(run_all: dict[int, Path]) -> None:
    texts = [text for text, _ in tiny.table_rows(1_500, seed=7)]
    run_distributed_test(count_own_rows, 3, run_all[1], texts)


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
        assert run["launcher"] == ("none" if count == 1 else "environment")
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
    python: Callable[..., Any], uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """A spy in every process notes what is opened for writing below the output folder."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY.format(report=str(tmp_path / "writes.txt")))
    words = flags(uneven, model_folder, "--max-steps", "3", "--save-steps", "1", "--output-dir", "out")
    done = python(*TORCHRUN, "2", SCRIPT, *words, PYTHONPATH=str(tmp_path / "spy"), PYTHON_EXEC=forked_python())
    assert done.returncode == 0, done.stderr
    writers = {line.split()[0] for line in (tmp_path / "writes.txt").read_text().splitlines()}
    assert writers == {"0"}
    assert done.stdout.count("result: out") == 1


def test_resume_in_other_processes(
    command: Callable[..., Any], uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """A run stopped on two processes goes on in one, from the same row, to the same weights (dropout off)."""
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nhead: random\nsave_total_limit: 9\n")
    base = flags(uneven, model_folder, "--config", "c.yaml", "--epochs", "2", "--save-steps", "3")
    run_ranks(2, "run_classify.py", *base, "--output-dir", "whole", folder=tmp_path)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for step in (4, 6, 8):
        (tmp_path / "part" / "checkpoints" / f"step-{step:08d}" / "manifest.json").unlink()
    record = read_json(tmp_path / "part" / "run.json")
    (tmp_path / "part" / "run.json").write_text(json.dumps({**record, "status": "interrupted"}))
    done = command("classify", "train", *base, "--output-dir", "part", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming from step-00000003" in done.stdout
    for a, b in zip(predictions(tmp_path / "part"), predictions(tmp_path / "whole"), strict=True):
        assert float(a["confidence"]) == pytest.approx(float(b["confidence"]), abs=1e-4)


@pytest.fixture
def long_nproc(
    request: pytest.FixtureRequest, uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """The launching process of a long training in two processes, in the middle of it; nothing is left of it.

    As "real" its workers are interpreters of their own, else they are forked.
    """
    words = flags(
        uneven, model_folder, "--epochs", "5000", "--output-dir", "out", "--nproc", "2", "--save-steps", "100000"
    )
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *words] if request.param == "real" else nproc_command(*words),
        cwd=tmp_path,
        env={**unlaunched(), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 3 "):
                break
        workers = psutil.Process(process.pid).children(recursive=True)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        (signal.SIGINT, True, 130),
        pytest.param(signal.SIGTERM, False, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, False, 129, marks=[pytest.mark.slow, HANGUP]),
    ],
)
@pytest.mark.parametrize("long_nproc", ["forked"], indirect=True)
def test_a_signal_saves_and_leaves_no_process(
    long_nproc: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, to_all: bool, code: int
) -> None:
    """To all of the foreground's processes, as a terminal sends Ctrl-C, or to the one that a person started."""
    workers = psutil.Process(long_nproc.pid).children(recursive=True)
    assert len(workers) == 2
    (os.killpg if to_all else os.kill)(long_nproc.pid, number)
    out, err = long_nproc.communicate(timeout=60)
    assert long_nproc.returncode == code, (out[-500:], err)
    assert err.count("\n") == 1, err
    assert err.startswith(f"error: stopped by {number.name} after step ")
    assert "saved; continue with --resume " in err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("long_nproc", ["real"], indirect=True)
def test_nproc_listens_on_loopback_alone_and_its_workers_end_with_it(long_nproc: subprocess.Popen[str]) -> None:
    launcher = psutil.Process(long_nproc.pid)
    workers = launcher.children(recursive=True)
    addresses = {
        connection.laddr.ip
        for process in (launcher, *workers)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}
    assert len(workers) == 2
    if sys.platform == "linux":  # elsewhere no library is known by this, and no worker is told of its parent's end
        assert not any("libtorch" in mapped.path for mapped in launcher.memory_maps()), "waiting needs no torch"
        long_nproc.kill()
        assert psutil.wait_procs(workers, timeout=15)[1] == []


def test_a_signal_to_one_of_two_processes_ends_both_behind_the_same_step(
    uneven: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    """As where a scheduler ends one machine's processes; the main one learns of it from the others."""
    words = flags(uneven, model_folder, "--epochs", "5000", "--output-dir", "out", "--save-steps", "100000")
    ranks = [start(tmp_path, "run_classify.py", *words, **place) for place in rank_environments(2)]
    try:
        ranks[0].wait_for("epoch 2 ")
        ranks[1].signal(signal.SIGINT)
        done = finish(ranks, 60, [130, 130])
    finally:
        for rank in ranks:
            rank.kill()
    stopped = [re.findall(r"error: stopped by SIGINT after step (\d+), which is saved", output) for output in done]
    (step,) = stopped[0]
    assert stopped[1] == []
    assert read_json(tmp_path / "out" / "checkpoints" / f"step-{int(step):08d}" / "state.json")["step"] == int(step)

"""Ctrl-C at any time: exit 130, one line, nothing half-written, no process left; what follows goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from classify.cli import main
from classify.files import TEMPORARY
from tests.support.processes import ROOT, SCRIPT, Process, free_port, rank_environments, run, start, unlaunched
from tests.support.runs import COMMAND_FILES, FILES, read_json

LINE = "error: interrupted\n"


def interrupt_at(name: str, program: str, words: Sequence[str]) -> int:
    """The program, with Ctrl-C when it comes to a function."""
    function = mock.DEFAULT

    def interrupted(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return function(*arguments, **options)

    sys.argv = [program, *words]
    patch = mock.patch(name, interrupted)
    function = patch.get_original()[0]
    with patch:
        return main(program=program)


def interrupted(
    folder: Path, name: str, words: Sequence[str], program: str = "run_classify.py", **environment: str
) -> subprocess.CompletedProcess[str]:
    """What came of it."""
    return Process(interrupt_at, (name, program, list(words)), folder, unlaunched() | environment).finish(20)


@pytest.fixture
def words(model_folder: Path, table: Path) -> list[str]:
    flags = "--cpu --contrastive-steps 0 --epochs 2 --report-to none"
    return ["--data", str(table), "--model", str(model_folder), *flags.split()]


def temporaries(folder: Path) -> list[Path]:
    return [*folder.rglob(f"{TEMPORARY}*"), *folder.rglob(".lock")]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        pytest.param("classify.data.token_cache.load_or_write", None, id="tokens", marks=pytest.mark.slow),
        pytest.param("classify.training.setup.load_for_training", None, id="model", marks=pytest.mark.slow),
        pytest.param("classify.training.run.make_record", set(), id="folder", marks=pytest.mark.slow),
        pytest.param(
            "classify.training.stages.linear_probe.init_head_from_probe", {"run.json", "train_log.jsonl"}, id="probe"
        ),
        pytest.param(
            "classify.tasks.baseline.fit",
            FILES - {"tensorboard", "evaluation.parquet", "metrics.json"},
            id="baseline",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_outside_of_the_training_loop(words: list[str], tmp_path: Path, where: str, kept: set[str] | None) -> None:
    """Before the first step there is nothing to save, and --resume begins anew; after the last one it ends the run."""
    out = tmp_path / "out"
    command = [*words, "--output-dir", "out"]
    done = interrupted(tmp_path, where, command, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (130, LINE)
    assert temporaries(tmp_path) == []
    assert ({path.name for path in out.iterdir()} if out.exists() else None) == kept
    if kept:
        assert read_json(out / "run.json")["status"] == "interrupted"
        command = ["--resume", "out"]
    done = run(tmp_path, "run_classify.py", *command)
    assert done.returncode == 0, done.stderr
    assert ("starting from the beginning" in done.stdout) == (where.endswith("init_head_from_probe"))
    assert read_json(out / "run.json")["status"] == "finished"
    assert {path.name for path in out.iterdir()} == COMMAND_FILES - {"tensorboard"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["classify.prediction.pytorch.load_trained", "classify.prediction.pytorch.compute_local_logits", "os.fsync"],
)
def test_while_predicting(model_folder: Path, words: list[str], table: Path, tmp_path: Path, where: str) -> None:
    assert main([*words, "--max-steps", "1", "--output-dir", str(tmp_path / "out")], program="run_classify.py") == 0
    (tmp_path / "there").mkdir()
    predict = ["predict", "--model", str(tmp_path / "out"), "--data", str(table), "--out", "there/p.csv", "--cpu"]
    done = interrupted(tmp_path, where, predict, program="classify")
    assert (done.returncode, done.stderr) == (130, LINE)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_waits_for_the_others(words: list[str], tmp_path: Path) -> None:
    """It waits in torch, which looks for no signals: the process ends by the signal, which a shell calls 130."""
    process = start(tmp_path, "run_classify.py", *words, **rank_environments(2)[0])
    try:
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).net_connections("tcp"):  # it listens for them
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.2)
        process.signal(signal.SIGINT)
        done = process.finish(15)
    finally:
        process.kill()
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.slow
@pytest.mark.distributed
def test_under_torchrun(words: list[str], tmp_path: Path) -> None:
    """The launcher has its own code and traceback, the program one line."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    epochs = words.index("--epochs") + 1
    longer = [*words[:epochs], "5000", *words[epochs + 1 :]]
    with (tmp_path / "printed").open("w+") as out, (tmp_path / "errors").open("w+") as err:
        launcher = subprocess.Popen(
            [*torchrun, "--master-port", str(free_port()), SCRIPT, *longer, "--output-dir", "out"],
            env=unlaunched() | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 60
            while "epoch 2 " not in (tmp_path / "printed").read_text() and time.monotonic() < deadline:
                assert launcher.poll() is None
                time.sleep(0.05)
            os.killpg(launcher.pid, signal.SIGINT)
            assert launcher.wait(60) == 1  # a loaded machine imports torch for tens of seconds
            with pytest.raises(ProcessLookupError):
                os.killpg(launcher.pid, 0)
        finally:
            launcher.kill()
        message = (tmp_path / "errors").read_text()
    assert message.count("error: ") == 1, message
    assert "which is saved; continue with --resume out" in message
    assert message.count("Traceback") == message.count("SignalException: Process") == 1, message
    assert str(ROOT / "classify") not in message
    assert temporaries(tmp_path) == []

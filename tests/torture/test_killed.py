"""`kill -9` of a whole command at any moment: `--resume` ends as if nothing had happened, and nothing is left lying."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from classify.config.stored_run import FILE
from tests.support import tiny
from tests.support.processes import Process, unlaunched
from tests.support.runs import COMMAND_FILES, read_json

# The file operations to be killed at, in their order: so many spread over those before the model is written, and the
# last of each of the final ones. Before the first of them there is no run.json yet.
SPREAD = 5
FINAL = (
    "os.remove checkpoints/",
    "os.rename model.safetensors",
    "os.rename predictions.csv",
    "os.rename metrics.json",
    "os.rename run.json",
)
# Of the events of a file operation, the argument that may hold the descriptor of the folder a path begins in.
OPERATIONS = {"open": None, "os.rename": 3, "os.mkdir": 2, "os.rmdir": 1, "os.remove": 1}


def train_until_killed(folder: Path, log: Path, at: int, words: Sequence[str]) -> int:
    """The program, killed just before its `at`-th file operation in the folder (0: never).

    Each line of the log is an operation: its name, and the path within the folder.
    """
    count = itertools.count(1)  # one step of it is one operation of the interpreter: files are hashed in threads
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note_operation(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or isinstance(arguments[0], int):
            return
        begins = arguments[OPERATIONS[event]] if OPERATIONS[event] is not None else -1
        path = os.path.join(
            os.getcwd() if begins == -1 else os.readlink(f"/proc/self/fd/{begins}"),
            os.fspath(arguments[1] if event == "os.rename" else arguments[0]),
        )
        if Path(path).is_relative_to(folder):
            number = next(count)
            os.write(descriptor, f"{event} {os.path.relpath(path, folder)}\n".encode())
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(note_operation)
    return main(words, program="run_classify.py")


def train(folder: Path, at: int, words: Sequence[str]) -> int:
    """The exit code of `train_until_killed`."""
    arguments = (folder, folder.with_suffix(".log"), at, words)
    return Process(train_until_killed, arguments, folder.parent, unlaunched()).finish().returncode


@pytest.fixture(scope="module")
def words(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that makes and removes checkpoints; the best one is not the last one."""
    table = tiny.write_table(tmp_path_factory.mktemp("killed") / "my.csv", tiny.table_rows(90))
    flags = "--cpu --contrastive-steps 0 --head random --learning-rate 3e-4 --epochs 3 --batch-size 16 --save-steps 2"
    return ["--data", str(table), "--model", str(model_folder), *flags.split(), "--report-to", "none"]


@pytest.fixture(scope="module")
def undisturbed(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert train(out, 0, [*words, "--output-dir", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == COMMAND_FILES - {"tensorboard"}
    return out


def moments(log: Path) -> list[int]:
    """The numbers of the file operations to be killed at."""
    operations = log.read_text().splitlines()
    first = operations.index("os.rename run.json") + 1
    final = [max(n for n, line in enumerate(operations, 1) if line.startswith(name)) for name in FINAL]
    return [*(first + (final[0] - first) * part // SPREAD for part in range(SPREAD)), *final]


def entries(folder: Path) -> list[str]:
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=[pytest.mark.slow] * (one != SPREAD)) for one in range(SPREAD + len(FINAL))]
)
def test_killed_at_any_moment_it_ends_as_if_nothing_had_happened(
    undisturbed: Path, words: list[str], tmp_path: Path, moment: int, capsys: pytest.CaptureFixture[str]
) -> None:
    at = moments(undisturbed.with_suffix(".log"))[moment]
    whole, alone = tmp_path / "out", tmp_path / "copy"
    assert train(whole, at, [*words, "--output-dir", str(whole)]) == -signal.SIGKILL
    shutil.copytree(whole, alone)
    resumes = {whole: [*words, "--resume", "--output-dir", str(whole)]}
    if moment:
        resumes[alone] = ["--resume", str(alone)]
    else:
        assert main(["--resume", str(alone)], program="run_classify.py") == 2
        assert f"no {FILE} there, so the run's settings are unknown; give --data" in capsys.readouterr().err
    for folder, command in resumes.items():
        assert main(command, program="run_classify.py") == 0, capsys.readouterr().err
        assert read_json(folder / FILE)["status"] == "finished"
        for name in ("model.safetensors", "predictions.csv", "checkpoints/step-00000015/optimizer.safetensors"):
            assert (folder / name).read_bytes() == (undisturbed / name).read_bytes(), name
        assert entries(folder) == entries(undisturbed)

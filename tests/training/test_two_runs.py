"""Two runs at once: each gets a folder of its own, or the second is refused; nothing of the first is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.errors import InputError
from classify.training import run
from classify.training.inputs import check
from classify.training.output_dir import LOCK, OutputDirPlan, acquire_folder
from tests.support.processes import ROOT
from tests.support.runs import FILES, at_step, make_config, read_json

HERE = r"another run is using this folder\. Wait until it ends"


def during_step(number: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Do something in the middle of a run, once, while it logs a step, as another process would."""

    def once() -> None:
        monkeypatch.undo()
        with pytest.MonkeyPatch.context() as process:
            process.setattr(run, "_TRAINING", threading.Lock())
            action()

    at_step(number, monkeypatch, once)


@pytest.mark.parametrize(
    "changes", [{}, {"resume_from_checkpoint": True}, {"overwrite_output_dir": True}], ids=["afresh", "resume", "empty"]
)
def test_a_second_run_in_the_folder_of_a_live_one_is_refused(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    met: list[BaseException] = []

    def second() -> None:
        with pytest.raises(InputError, match=HERE) as caught:
            run.train(make_config(model_folder, table, tmp_path / "out", **changes))
        met.append(caught.value)

    during_step(4, monkeypatch, second)
    out = run.train(make_config(model_folder, table, tmp_path / "out"))
    assert len(met) == 1
    assert {path.name for path in out.iterdir()} == FILES
    assert read_json(out / "run.json")["status"] == "finished"
    assert read_json(out / "metrics.json")["train"]["steps"] == 6


def test_of_two_that_found_the_folder_free_one_gets_it(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are checked before either begins; the second one's folder is in use, and then full, when it comes to it."""
    config = make_config(model_folder, table, tmp_path / "out", max_steps=1)
    checked = check(config)

    def second() -> None:
        with pytest.raises(InputError, match=HERE):
            run.train(config, checked)

    during_step(1, monkeypatch, second)
    out = run.train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    before = (out / "run.json").read_bytes()
    with pytest.raises(InputError, match="the folder exists and is not empty"):
        run.train(config, checked)
    assert (out / "run.json").read_bytes() == before
    assert {path.name for path in out.iterdir()} == FILES


def test_two_that_are_given_no_folder_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(4)
    folders: list[Path] = []

    def claim() -> None:
        together.wait()
        with acquire_folder(OutputDirPlan(None, "my")) as folder:
            folders.append(folder)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(folders) == [Path("runs") / f"my-{number}" for number in range(1, 5)]


HOLDER = """
import sys
from pathlib import Path
from classify.training.output_dir import OutputDirPlan, acquire_folder
with acquire_folder(OutputDirPlan(Path(sys.argv[1]), "my", resume=True)):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds a folder's lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_run_leaves_the_folder_free(model_folder: Path, table: Path, tmp_path: Path) -> None:
    process = holder(tmp_path / "out")
    config = make_config(model_folder, table, tmp_path / "out", max_steps=1)
    try:
        with pytest.raises(InputError, match="another run is using this folder"):
            run.train(config)
        assert (tmp_path / "out" / LOCK).exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (tmp_path / "out" / LOCK).exists(), "the test needs a lock that was left behind"
    assert {path.name for path in run.train(config).iterdir()} == FILES


def test_a_failed_run_gives_its_folder_back(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Also one that fails while it is prepared, in a process that goes on."""
    config = make_config(model_folder, table, tmp_path / "out", sync_batch_norm=True)
    with pytest.raises(InputError, match="works on GPUs alone"):
        run.train(config)
    config = make_config(model_folder, table, tmp_path / "out", learning_rate=1e30, max_grad_norm=0.0)
    with pytest.raises(Exception, match="diverged"):
        run.train(config)
    assert not (tmp_path / "out" / LOCK).exists()
    with acquire_folder(OutputDirPlan(tmp_path / "out", "my", resume=True)):
        pass

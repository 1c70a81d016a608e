"""What --nproc makes of how its workers end; each is a small process that needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from classify.launch import nproc

FAILING = "raise SystemExit(1)"
# The note of a training step that SIGTERM has come, in which the step goes on.
STEPPING = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print(flush=True); time.sleep(60)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SAVING = """
import signal, time

def leave(number, _):
    time.sleep(1)
    raise SystemExit(128 + number)

signal.signal(signal.SIGINT, leave)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for worker in started:
        worker.kill()
        worker.communicate()


def start(workers: list[subprocess.Popen[bytes]], *codes: str) -> None:
    """Start a process for each code, and wait for those that say when they are ready."""
    for code in codes:
        workers.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        if "print" in code:
            assert workers[-1].stdout is not None
            workers[-1].stdout.readline()


def test_the_others_end_with_one_that_fails(
    workers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGTERM, or where that is only noted by SIGKILL; the code is the first one's."""
    monkeypatch.setattr(nproc, "_ENDING_SECONDS", 0.5)
    start(workers, STEPPING, "import time; time.sleep(60)", FAILING)
    begin = time.monotonic()
    assert nproc._wait(workers, []) == 1
    assert [worker.returncode for worker in workers] == [-9, -15, 1]
    assert time.monotonic() - begin < 10


def test_a_worker_that_a_signal_ended_has_a_shells_code_and_a_line(
    workers: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    start(workers, KILLED)
    assert nproc._wait(workers, []) == -9
    assert nproc._exit_code(-9, []) == 137
    assert capsys.readouterr().err.startswith("error: one of the processes was ended by SIGKILL; ")
    assert nproc._exit_code(-15, [15]) == 143
    assert capsys.readouterr().err == ""


def test_who_is_told_to_stop_may_save_after_another_has_left(workers: list[subprocess.Popen[bytes]]) -> None:
    start(workers, SAVING, SAVING.replace("time.sleep(1)", "pass"))
    assert nproc._wait(workers, [2]) == 130
    assert [worker.returncode for worker in workers] == [130, 130]


def test_who_does_not_leave_is_ended_after_the_others(
    workers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits inside a library, say, where Python does not come to its signals."""
    monkeypatch.setattr(nproc, "_CLOSING_SECONDS", 0.5)
    stuck = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    start(workers, SAVING, stuck)
    assert nproc._wait(workers, [2]) == 130
    assert workers[1].returncode == -15


def test_the_exit_code_is_that_of_the_first_to_fail(workers: list[subprocess.Popen[bytes]]) -> None:
    """Rank 0 ends half a second after rank 1, whose end it notices: long enough for a loaded machine."""
    first, second = os.pipe(), os.pipe()
    code = "import sys, time; print(flush=True); sys.stdin.read(); time.sleep({}); raise SystemExit({})"
    for stdin, seconds, number, passed in ((first[0], 0.5, 1, ()), (second[0], 0, 2, (first[1],))):
        command = [sys.executable, "-c", code.format(seconds, number)]
        workers.append(subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, pass_fds=passed))
        assert workers[-1].stdout is not None
        workers[-1].stdout.readline()
    for descriptor in (*first, *second):
        os.close(descriptor)
    assert nproc._wait(workers, []) == 2

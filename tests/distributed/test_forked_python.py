"""What launchers start as python in these tests ends, and is ended, as an interpreter would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import forked_python

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd_open(2)"),
]

SHOWING = """
import json, os, sys
with open(int(sys.argv[1]), closefd=False) as file:
    given = [sys.argv, os.getcwd(), os.environ["MINE"], sys.stdin.read(), file.read()]
print(json.dumps([*given, "torch" in sys.modules]))
print(len(os.sched_getaffinity(0)), file=sys.stderr)
"""
WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def start(folder: Path, code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(code)
    command = [forked_python(), "-u", "script.py", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
def test_it_has_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("of its own")
    with (tmp_path / "open").open() as file:
        words = [str(file.fileno())]
        process = start(
            tmp_path, SHOWING, *words, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[file.fileno()], env={**os.environ, "MINE": "here"},
            preexec_fn=lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
        )  # fmt: skip
        out, err = process.communicate("typed", timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) == [["script.py", words[0]], str(tmp_path), "here", "typed", "of its own", True]
    assert err == "1\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
        ("import os; os.abort()", -6),
    ],
)
def test_it_ends_as_the_script_does(tmp_path: Path, code: str, expected: int) -> None:
    process = start(tmp_path, code, stderr=subprocess.DEVNULL)
    process.communicate(timeout=60)
    assert process.returncode == expected


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 7), (signal.SIGUSR1, -signal.SIGUSR1), (signal.SIGKILL, -9)]
)
def test_a_signal_reaches_the_script(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Also SIGKILL, by which launchers end ranks: nothing is left."""
    process = start(tmp_path, WAITING)
    assert process.stdout is not None
    rank = psutil.Process(int(process.stdout.readline()))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    rank.wait(10)

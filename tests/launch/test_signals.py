"""Terminals that close while a step is under way."""

from __future__ import annotations

import subprocess
import sys

IGNORED = """
import os, signal
from classify.launch import signals
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with signals.stop_signals() as received:
    os.kill(os.getpid(), signal.SIGHUP)
print(received)
"""


def test_a_sighup_that_nohup_ignores_stays_ignored() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n")

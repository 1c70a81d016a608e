"""Signals that come while a step is under way, and terminals that close."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A step notes a signal; before it ends, an error ends the run.
NOTED = """
import os, signal
from classify.launch import signals
signal.signal(signal.NAME, signal.SIG_DFL)
try:
    with signals.stop_signals():
        os.kill(os.getpid(), signal.NAME)
        raise RuntimeError("connection closed by peer")
except RuntimeError:
    signals.end_if_terminated()
print("still here")
"""
IGNORED = NOTED.replace("SIG_DFL", "SIG_IGN")


def run(script: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_noted_signal_ends_the_process_when_an_error_was_faster(number: signal.Signals) -> None:
    assert run(NOTED.replace("NAME", number.name)) == (-number, "")


def test_a_sighup_that_nohup_ignores_stays_ignored() -> None:
    assert run(IGNORED.replace("NAME", "SIGHUP")) == (0, "still here\n")

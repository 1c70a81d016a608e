"""Signals that come while a step is under way."""

import signal
import subprocess
import sys

# A step notes SIGTERM; before it ends, an error ends the run.
NOTED = """
import os, signal
from classify.launch import interrupts
try:
    with interrupts.stop_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("connection closed by peer")
except RuntimeError:
    interrupts.end_if_terminated()
print("still here")
"""
LEFT_ALONE = NOTED.replace("        os.kill(os.getpid(), signal.SIGTERM)\n", "")


def run(script: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_a_noted_sigterm_ends_the_process_when_an_error_was_faster() -> None:
    assert run(NOTED) == (-signal.SIGTERM, "")


def test_without_a_signal_the_error_is_for_its_caller() -> None:
    assert run(LEFT_ALONE) == (0, "still here\n")

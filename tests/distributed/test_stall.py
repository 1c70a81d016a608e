"""A rank that stalls: torch's time-out ends the run, and the rank's stack stands on stderr before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT, forked_python, nproc_command, unlaunched

pytestmark = pytest.mark.distributed

# Rank 1 stalls in the middle of a step, at the draw of its dropout.
STALLING = """
import os

if os.environ.get("RANK") == "1":
    import ctypes, time
    import numpy

    class SeedSequence(numpy.random.SeedSequence):
        calls = 0

        def __init__(self, *args):
            SeedSequence.calls += 1
            if SeedSequence.calls == 40:
                wait_for_nothing()
            super().__init__(*args)

    def wait_for_nothing():
        {stall}

    numpy.random.SeedSequence = SeedSequence
"""


@pytest.mark.parametrize(
    "stall",
    [
        "time.sleep(1000)",
        pytest.param("ctypes.PyDLL(None).sleep(1000)", marks=pytest.mark.slow, id="with the interpreter's lock"),
    ],
)
def test_the_stack_of_a_rank_that_stalls(table: Path, model_folder: Path, tmp_path: Path, stall: str) -> None:
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(STALLING.format(stall=stall))
    words = [
        "--nproc", "2", "--data", str(table), "--model", str(model_folder), "--cpu", "--contrastive-steps", "0",
        "--report-to", "none", "--batch-size", "16", "--epochs", "500", "--output-dir", "out", "--ddp-timeout", "5",
    ]  # fmt: skip
    process = subprocess.Popen(
        nproc_command(*words),
        cwd=tmp_path,
        env={
            **unlaunched(),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "spy"), str(ROOT)]),
            "PYTHON_EXEC": forked_python(),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 1
    assert "in wait_for_nothing" in err
    assert "error: another process of this run has ended, or made no progress (--ddp-timeout)" in err
    assert "Continue with --resume." in err
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert other.status() == psutil.STATUS_ZOMBIE or other.cwd() != str(tmp_path)

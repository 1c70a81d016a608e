"""Print an error in one line, and return its exit code."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from classify.errors import ClassifyError, InputError, discard_output, disk_refusal, escape_controls, is_lost_peer
from classify.launch import interrupts, launcher, spawn

if TYPE_CHECKING:
    from classify.distributed.world import World


def print_error(error: BaseException, debug: bool) -> int:
    """Print an error's message and return its exit code."""
    if isinstance(error, ClassifyError):
        if error.reported:
            if debug:
                traceback.print_exc()
            return error.exit_code
        return fail(str(error), error.exit_code, debug, everywhere=error.everywhere)
    if isinstance(error, BrokenPipeError):
        # The reader of the output has ended, e.g. `| head`; that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, ModuleNotFoundError):
        where = f"{error.name!r} is not installed in {sys.prefix}"
        return fail(f"the package {where}; pip install {error.name}, or install classify-text again", 1, debug)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code = 1 if disk_refusal(error) is None else InputError.exit_code
        return fail(f"{where}{error.strerror or error}", code, debug, everywhere=False)
    _wait_for_peer_error(error)
    line = " ".join(str(error).split())[:300]
    return fail(f"internal error: {type(error).__name__}: {line} (--debug shows where)", 1, debug, everywhere=False)


def fail(message: str, code: int, debug: bool, everywhere: bool = True) -> int:
    """Print the error once per machine, and return its code.

    If every rank has the error, one process per machine prints it. The others wait a second, because a launcher ends
    all processes when the first one exits.
    """
    if debug:
        traceback.print_exc()
    if everywhere and not launcher.here().is_local_main:
        time.sleep(1.0)
        return code
    lines = [f"error: {line}\n" for line in escape_controls(message).split("\n")]
    for name, text in (("stdout", ""), ("stderr", "".join(lines))):
        stream = getattr(sys, name)
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # e.g. the terminal has closed, or | head has left: the exit code still says why
            discard_output(name)
    return code


def print_error_early(error: Exception) -> None:
    """Print an error before the other machines receive it, which may take long."""
    print_error(error, debug=False)
    if isinstance(error, ClassifyError):
        error.reported = True


def _wait_for_peer_error(error: BaseException) -> None:
    """Let the launcher end this process if a lost peer caused the error; the peer prints the cause.

    --nproc gives a rank time to print its error before it ends the others.
    """
    if launcher.here().is_launched and is_lost_peer(error):
        interrupts.end_if_terminated()
        time.sleep(3.0 + (spawn.PRINTING_SECONDS if launcher.here().is_worker else 0.0))


def forward_prediction_errors(*, use_cpu: bool) -> AbstractContextManager[None]:
    """Forward an error of this block to the processes of other machines, as they would start for a prediction."""

    def start() -> World:
        from classify.prediction.predict import start_world

        return start_world(use_cpu)

    return launcher.forward_errors(start, print_error_early)

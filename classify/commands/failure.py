"""Print an error in one line, and return its exit code."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from classify.errors import ClassifyError, InputError, discard_output, disk_refusal, escape_controls, is_lost_peer
from classify.launch import interrupts, launcher

if TYPE_CHECKING:
    from classify.distributed.world import World

# How long a rank that leaves the printing to another one waits for that, and until it knows that it failed alone.
_SILENT_SECONDS, _ALONE_SECONDS = 1.0, 6.0
# How long a rank whose peer is lost waits for the launcher; longer, since the peer may be waiting to print.
_LOST_SECONDS = 8.0


def print_error(error: BaseException, debug: bool) -> int:
    """Print an error's message and return its exit code."""
    if getattr(error, "reported", False):
        if debug:
            traceback.print_exc()
        return _exit_code(error)
    if isinstance(error, ClassifyError):
        return fail(str(error), error.exit_code, debug, everywhere=error.everywhere)
    if isinstance(error, BrokenPipeError):
        # The reader of the output has ended, e.g. `| head`; that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, ModuleNotFoundError):
        where = f"{error.name!r} is not installed in {sys.prefix}"
        return fail(f"the package {where}; pip install {error.name}, or install classify-text again", 1, debug)
    if isinstance(error, ImportError) and error.path and Path(error.path).parent.samefile(sys.path[0] or "."):
        return fail(f"{error.path} hides the module {error.name!r} that a library needs; rename it", 2, debug)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "; the temporary folder may be full (TMPDIR)" if not where and error.errno == errno.ENOSPC else ""
        return fail(f"{where}{error.strerror or error}{hint}", _exit_code(error), debug, everywhere=False)
    _wait_for_peer_error(error)
    line = " ".join(str(error).split())[:300]
    if _is_out_of_memory(error):
        return fail(f"out of memory ({line}); use a smaller --model, or free memory", 1, debug, everywhere=False)
    return fail(f"internal error: {type(error).__name__}: {line} (--debug shows where)", 1, debug, everywhere=False)


def _is_out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from classify.distributed.memory import out_of_memory

    return out_of_memory(error)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, ClassifyError):
        return error.exit_code
    return 1 if disk_refusal(error) is None else InputError.exit_code


def fail(message: str, code: int, debug: bool, everywhere: bool = True) -> int:
    """Print the error once per machine, and return its code.

    If every rank has the error, one process per machine prints it, and the others wait: a launcher ends all processes
    when the first one exits. One that it has not ended by then is the only one with the error, and prints it, too.
    """
    if debug:
        traceback.print_exc()
    place = launcher.here()
    if everywhere and not place.is_local_main:
        # A signal is agreed on by all ranks (codes from 128), and what other machines have is exchanged.
        may_be_alone = place.ends_peers and code < 128 and not place.spans_machines
        time.sleep(_ALONE_SECONDS if may_be_alone else _SILENT_SECONDS)
        if not may_be_alone:
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
    error.reported = True  # type: ignore[attr-defined]


def _wait_for_peer_error(error: BaseException) -> None:
    """Let the launcher end this process if a lost peer caused the error; the peer prints the cause."""
    if launcher.here().is_launched and is_lost_peer(error):
        interrupts.end_if_terminated()
        time.sleep(_LOST_SECONDS)


def forward_prediction_errors(*, use_cpu: bool) -> AbstractContextManager[None]:
    """Forward an error of this block to the processes of other machines, as they would start for a prediction."""

    def start() -> World:
        from classify.prediction.pytorch import start_world

        return start_world(use_cpu)

    return launcher.forward_errors(start, print_error_early)

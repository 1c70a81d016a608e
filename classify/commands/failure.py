"""Print an error in one line, and return its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

from classify import distributed
from classify.config.devices import DeviceConfig
from classify.errors import ClassifyError, InputError, Interrupted, discard_output, disk_refusal, escape_controls
from classify.launch.launch import Launch


def print_error(error: BaseException, debug: bool) -> int:
    """Print an error's message and return its exit code."""
    if isinstance(error, Interrupted) and not error.is_printed:
        return error.exit_code
    if isinstance(error, ClassifyError):
        return fail(str(error), error.exit_code, debug)
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
        return fail(f"{where}{error.strerror or error}{hint}", _exit_code(error), debug)
    line = " ".join(str(error).split())[:300]
    if _is_out_of_memory(error):
        return fail(f"out of memory ({line}); use a smaller --model, or free memory", 1, debug)
    return fail(f"internal error: {type(error).__name__}: {line} (--debug shows where)", 1, debug)


def _is_out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    return distributed.memory.out_of_memory(error)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, ClassifyError):
        return error.exit_code
    return 1 if disk_refusal(error) is None else InputError.exit_code


def fail(message: str, code: int, debug: bool) -> int:
    """Print the error, and return its code. Nobody waits: a launcher ends the other ranks, which may print it, too."""
    if debug:
        traceback.print_exc()
    lines = [f"error: {line}\n" for line in escape_controls(message).split("\n")]
    for name, text in (("stdout", ""), ("stderr", "".join(lines))):
        stream = getattr(sys, name)
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # e.g. the terminal has closed, or | head has left: the exit code still says why
            discard_output(name)
    return code


def announce_errors(launch: Launch, settings: DeviceConfig) -> AbstractContextManager[None]:
    """Tell the ranks of other machines of an error in this block, before the process group is formed."""
    if not launch.spans_machines:
        return contextlib.nullcontext()
    group = distributed.group
    return group.announce_errors(launch, lambda: group.start(settings._setup_devices(launch), settings.ddp_timeout))

"""Start the process, run a command, print its error and return its exit code."""

from __future__ import annotations

import difflib
import errno
import gc
import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from classify import distributed
from classify.commands import COMMANDS, load_command, usage
from classify.errors import ClassifyError, InputError, Interrupted, discard_output, disk_refusal, escape_controls
from classify.launch import process, signals
from classify.versions import __version__, check_platform


def main(argv: Sequence[str] | None = None, program: str = "classify") -> int:
    """Run a command and return its exit code: 0, 1 internal error, 2 bad input, 3 checkpoint, 129/130/143 signal."""
    if argv is not None:
        return _run(list(argv), program)
    # The libraries create a million objects that stay. Garbage collection over them, and at exit, would take a quarter
    # of a short command's time.
    gc.set_threshold(100_000, 50, 100)
    process.prepare_process()
    signals.handle_sigint()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as for some daemons
            discard_output(name)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot encode must not end a run
    try:
        return _run(sys.argv[1:], program)
    finally:
        gc.freeze()


def _run(arguments: list[str], program: str) -> int:
    debug = "--debug" in arguments
    try:
        check_platform()
        if program == "classify":
            return _dispatch(arguments)
        if arguments and arguments[0] in COMMANDS:
            raise InputError(
                f"{arguments[0]}: {program} takes flags only; type python -m classify {shlex.join(arguments)} instead."
            )
        return int(load_command("train").run(arguments, program))
    except (Exception, KeyboardInterrupt) as error:
        if signals.was_interrupted(error) and not isinstance(error, Interrupted):
            return fail("interrupted", 128 + signal.SIGINT, debug)
        return print_error(error, debug)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name, *words = arguments
    if name == "--version":
        print(f"classify {__version__}")
        return 0
    if name.startswith("-"):
        example = f"classify train {shlex.join(arguments)}"
        raise InputError(f"{name}: expected a command before the flags, e.g. {example}. See classify --help.")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(COMMANDS)}; see classify --help."
        raise InputError(f"unknown command {name!r}. {hint}")
    return int(load_command(name).run(words, f"classify {name}"))


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
        code = 1 if disk_refusal(error) is None else InputError.exit_code
        return fail(f"{where}{error.strerror or error}{hint}", code, debug)
    line = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or ("torch" in sys.modules and distributed.memory.out_of_memory(error)):
        less = "use a smaller --model or --max-length, --lora, or --contrastive-steps 0, or free memory"
        return fail(f"out of memory ({line}); {less}", 1, debug)
    return fail(f"internal error: {type(error).__name__}: {line} (--debug shows where)", 1, debug)


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

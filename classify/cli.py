"""Start the process, run a command, print its error and return its exit code."""

from __future__ import annotations

import difflib
import gc
import io
import shlex
import signal
import sys
from collections.abc import Sequence

from classify.commands import COMMANDS, load_command, usage
from classify.commands.failure import fail, print_error
from classify.errors import InputError, Interrupted, discard_output
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

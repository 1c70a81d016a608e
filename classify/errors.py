"""Errors written for the person who runs the program, each with its exit code.

A message is one line that says where, what was expected, what was found and what to do. The command line prints
it as it is and adds nothing, so a traceback never stands in its way (`--debug` shows it).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# What a disk answers that a person can mend: full, over its quota, failing, mounted read-only.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# And what it answers to a path of theirs.
_PATH_FAULTS = (
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
# Files below these are the installation's.
_INSTALLED = (Path(sys.prefix), Path(__file__).parent)

# All but line feeds and tabs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class ClassifyError(Exception):
    """Base of all errors with a message for the person. `exit_code` 1: our fault.

    `everywhere` says whether every rank of a distributed run meets the same error by itself. Then one process of each
    machine prints it; an error that only one rank can know is printed by that rank. `reported` is set where the line
    stands there already.
    """

    exit_code = 1
    everywhere = True
    reported = False


class InputError(ClassifyError):
    """What the person gave cannot be used: arguments, files, columns, labels. Exit 2."""

    exit_code = 2

    def __init__(self, *faults: str):
        """Collect one or more faults; each is a full line of its own."""
        super().__init__("\n".join(faults))
        self.faults = faults


class ErrorList(list[str]):
    """Faults found so far, to be raised together."""

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Note the faults of an InputError raised in this block, and go on behind it."""
        try:
            yield
        except InputError as error:
            self.extend(error.faults)

    def raise_if_any(self) -> None:
        """Raise one InputError with all of them."""
        if self:
            raise InputError(*self)


class DeviceError(InputError):
    """This rank's device or place in the process group is not as asked for. Exit 2."""

    everywhere = False


class RankError(ClassifyError):
    """Something only this rank can know, e.g. that its memory is full. Exit 1."""

    everywhere = False


class DiskError(InputError):
    """The disk does not take what this process writes. Exit 2."""

    everywhere = False


def escape_controls(text: str) -> str:
    """A text with its control characters, and those that turn the direction of writing, shown as \\x1b.

    Names and labels of a table may hold them; a terminal would obey.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def disk_refusal(error: BaseException) -> str | None:
    """What the disk says where an error is its refusal to take a file, e.g. "No space left on device"; else None.

    Libraries written in Rust (safetensors, tokenizers) raise errors of their own, which end in "(os error <number>)".
    """
    match = re.search(r"\(os error (\d+)\)", str(error))
    if match is not None:
        number, theirs = int(match[1]), True
    elif isinstance(error, OSError) and error.errno is not None:
        number, theirs = error.errno, error.filename is not None and not _is_installed(error.filename)
    else:
        return None
    return os.strerror(number) if number in _DISK_FAULTS or (number in _PATH_FAULTS and theirs) else None


def _is_installed(name: str | bytes | int) -> bool:
    return not isinstance(name, int) and any(
        Path(os.fsdecode(name)).absolute().is_relative_to(folder) for folder in _INSTALLED
    )


class CheckpointError(ClassifyError):
    """Checkpoints are there and none of them can be trusted. Exit 3."""

    exit_code = 3


class Interrupted(ClassifyError):
    """The run was stopped by a signal, after saving. Exit 128 + signal: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number

"""Errors written for the person who runs the program, each with its exit code.

A message is one line that says where, what was expected, what was found and what to do. The command line prints
it as it is and adds nothing, so a traceback never stands in its way (`--debug` shows it).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

# What a disk answers that a person can mend: full, over its quota, failing, mounted read-only, not permitted.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


class ClassifyError(Exception):
    """Base of all errors with a message for the person. `exit_code` 1: our fault.

    `everywhere` says whether every rank of a distributed run meets the same error by itself. Then one process of each
    machine prints it; an error that only one rank can know is printed by that rank.
    """

    exit_code = 1
    everywhere = True


class InputError(ClassifyError):
    """What the person gave cannot be used: arguments, files, columns, labels. Exit 2."""

    exit_code = 2

    def __init__(self, *faults: str):
        """Collect one or more faults; each is a full line of its own."""
        super().__init__("\n".join(faults))
        self.faults = faults


class Faults(list[str]):
    """Faults found so far, to be raised together."""

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
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


def disk_refusal(error: BaseException) -> str | None:
    """What the disk says where an error is its refusal to take a file, e.g. "No space left on device"; else None.

    Libraries written in Rust (safetensors, tokenizers) raise errors of their own, which end in "(os error <number>)".
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        match = re.search(r"\(os error (\d+)\)", str(error))
        number = int(match[1]) if match is not None else None
    return os.strerror(number) if number in _DISK_FAULTS else None


class CheckpointError(ClassifyError):
    """Checkpoints are there and none of them can be trusted. Exit 3."""

    exit_code = 3


class Interrupted(ClassifyError):
    """The run was stopped by a signal, after saving. Exit 128 + signal: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number

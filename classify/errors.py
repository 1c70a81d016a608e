"""Errors for users, each with its exit code.

A message is one line: where, what was expected, what was found, what to do. The command line prints it without a
traceback (`--debug` shows it).
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

# errno values of disk errors that the user can fix: full, over quota, failing, read-only.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# errno values of a user's path.
_PATH_FAULTS = (
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
# Files below these folders belong to the installation: that one is missing is no fault of the user.
_INSTALLED = (sys.prefix, os.path.dirname(__file__))
# All control characters except line feeds and tabs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class ClassifyError(Exception):
    """Base of all errors with a message for the user. Exit 1, unless a subclass says otherwise."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor, whose arguments are not `args`: joblib sends errors to its parent."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(ClassifyError):
    """Invalid input: arguments, files, columns, labels. Exit 2."""

    exit_code = 2

    def __init__(self, *faults: str):
        super().__init__("\n".join(faults))
        self.faults = faults


class ErrorList(list[str]):
    """Faults to be raised together."""

    def __init__(self, faults: Iterable[str] = ()):
        super().__init__(faults)
        self._errors: list[InputError] = []

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Add the faults of an InputError raised in this block, and continue after the block."""
        try:
            yield
        except InputError as error:
            self.extend(error.faults)
            self._errors.append(error)

    def raise_if_any(self) -> None:
        """Raise one InputError with all faults, if any; the error itself where it is the only one."""
        if len(self._errors) == 1 and len(self) == len(self._errors[0].faults):
            raise self._errors[0]
        if self:
            raise InputError(*self)


class DeviceError(InputError):
    """Invalid device, or rank in the process group, of this process. Exit 2."""


class RankError(ClassifyError):
    """An error of this rank only, e.g. out of memory. Exit 1."""


class DiskError(InputError):
    """The disk refuses a write of this process. Exit 2."""


# Items of a list that a message shows.
SHOWN = 5
# Characters of a cell that a message shows.
EXCERPT = 60


def list_some(
    items: Sequence[object], total: int | None = None, *, show: Callable[[object], str] = str, most: int = SHOWN
) -> str:
    """Join the first items of a list of `total` (default: `items` is the whole list): "a, b and 4 more"."""
    more = (len(items) if total is None else total) - min(len(items), most)
    return ", ".join(map(show, items[:most])) + (f" and {more} more" if more > 0 else "")


def discard_output(name: str) -> None:
    """Replace "stdout" or "stderr" by a stream that keeps nothing, where it is closed or its reader has left."""
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - stays open to the end


def escape_controls(text: str) -> str:
    """Escape control and bidirectional characters, e.g. as \\x1b, because a terminal would interpret them."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def disk_refusal(error: BaseException) -> str | None:
    """The message of an error of the disk or a user's path, e.g. "No space left on device"; else None.

    Libraries written in Rust (safetensors, tokenizers) raise errors that end in "(os error <number>)".
    """
    match = re.search(r"\(os error (\d+)\)", str(error))
    if match is not None:
        number, users_path = int(match[1]), True
    elif isinstance(error, OSError) and error.errno is not None:
        named = error.filename is not None and not str(error.filename).startswith(_INSTALLED)
        number, users_path = error.errno, named
    else:
        return None
    return os.strerror(number) if number in _DISK_FAULTS or (number in _PATH_FAULTS and users_path) else None


class CheckpointError(ClassifyError):
    """Checkpoints exist, but none is valid. Exit 3."""

    exit_code = 3


class Interrupted(ClassifyError):
    """The run was stopped by a signal, after saving. Exit 128 + signal: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."""

    def __init__(self, message: str, signal_number: int, *, is_printed: bool = True):
        super().__init__(message)
        self.exit_code = 128 + signal_number
        # All ranks raise it; one process of each machine prints it.
        self.is_printed = is_printed

"""What a disk holds when the power fails: only what was flushed, at every file operation of a process.

Two models of a file system. "strict": a file's bytes and a folder's entries exist after an fsync of each alone, which
is all that POSIX promises. "journal": entries appear at once and in order, as on ext4 and XFS, but a file without an
fsync is empty.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Of the audit events of file operations, the argument that may hold the descriptor of the folder that a path begins in.
OPERATIONS = {"open": None, "os.rename": 3, "os.mkdir": 2, "os.rmdir": 1, "os.remove": 1}


class Power:
    """Follows the file operations below a folder, which itself is on the disk already.

    `look(kind, name, state)` is called after each, with a folder that holds what one model of a disk would.
    """

    def __init__(self, root: Path, copies: Path, patch: pytest.MonkeyPatch):
        self.root, self.copies = root, copies
        self.contents: dict[int, bytes] = {}
        self.entries: dict[int, dict[str, int]] = {}
        self._kept: list[int] = []  # open descriptors, so that no number of an inode is used twice
        # Files are written in threads; what this class does itself is not followed.
        self._lock, self._own = threading.Lock(), threading.local()
        self._operations = 0
        self.look: Callable[[str, str, Path], object] = lambda kind, name, state: None
        self._patch = patch
        self._flush = os.fsync

    def begin(self) -> None:
        """Take all that is there as flushed, and follow this process from here on, to its end."""
        for folder, _, files in os.walk(self.root):
            for name in [*files, "."]:
                descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
                self._note(descriptor)
                os.close(descriptor)
        self._patch.setattr(os, "fsync", self._fsync)
        sys.addaudithook(self._on_event)

    def _fsync(self, descriptor: int) -> None:
        self._flush(descriptor)
        with self._unfollowed():
            self._note(descriptor)
            self._check("fsync")

    @contextlib.contextmanager
    def _unfollowed(self) -> Iterator[None]:
        with self._lock:
            self._own.busy = True
            try:
                yield
            finally:
                self._own.busy = False

    def _note(self, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        self._kept.append(os.dup(descriptor))
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            self.contents[number] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            return
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.entries[number] = {}
        for entry in os.scandir(path):
            self._kept.append(os.open(entry.path, os.O_RDONLY))
            self.entries[number][entry.name] = os.stat(entry.path).st_ino

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called before an operation, so the disk is as the one before has left it."""
        if getattr(self._own, "busy", False) or event not in OPERATIONS or isinstance(arguments[0], int):
            return
        place = OPERATIONS[event]
        begins = arguments[place] if place is not None else -1
        base = os.getcwd() if begins in (-1, None) else os.readlink(f"/proc/self/fd/{begins}")
        path = os.path.join(base, os.fspath(arguments[1] if event == "os.rename" else arguments[0]))
        is_read = event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not is_read and Path(path).is_relative_to(self.root):
            with self._unfollowed():
                self._check(f"before {event} {os.path.relpath(path, self.root)}")

    def _check(self, name: str) -> None:
        self._operations += 1
        for kind in ("strict", "journal"):
            state = self.copies / kind
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
            if kind == "strict":
                self._write_strict(self.root.stat().st_ino, state)
            else:
                self._write_journal(self.root, state)
            self.look(kind, f"operation {self._operations}, {name}", state)

    def _write_strict(self, folder: int, to: Path) -> None:
        for name, number in self.entries.get(folder, {}).items():
            if number in self.entries:
                (to / name).mkdir()
                self._write_strict(number, to / name)
            else:  # a folder that was never flushed is as good as an empty file: it has nothing in it
                (to / name).write_bytes(self.contents.get(number, b""))

    def _write_journal(self, folder: Path, to: Path) -> None:
        for entry in os.scandir(folder):
            if entry.is_dir():
                (to / entry.name).mkdir()
                self._write_journal(Path(entry.path), to / entry.name)
            else:
                (to / entry.name).write_bytes(self.contents.get(entry.stat().st_ino, b""))

"""Read standard input as its lines come, so that predictions do not wait for its end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.prediction.inputs import read_texts
from classify.tables.derived import TextColumns
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tables.source import STANDARD_INPUT
from classify.tables.table import Table

# Lines by which a table is recognized, and how long they are waited for once there is one; then, how long for more.
_FIRST_LINES, _FIRST_SECONDS, _SECONDS = 20, 2.0, 0.2
_MOST_BYTES, _BLOCK = 1 << 20, 1 << 16


class _Lines:
    """Complete lines of a file descriptor; those in an open `quote` are not divided, unless that takes too long."""

    def __init__(self, descriptor: int):
        self._descriptor, self._left = descriptor, b""
        self.quote, self.ended = b'"', False

    def read(self, least: int, seconds: float) -> bytes:
        """Return lines once there are `least`, or for `seconds` no more; all that is left at the end."""
        deadline: float | None = None
        while not self.ended:
            end = self._find_end()
            if end:
                deadline = deadline or time.monotonic() + seconds
                enough = self._left.count(b"\n", 0, end) >= least or len(self._left) >= _MOST_BYTES
                if enough or time.monotonic() >= deadline:
                    lines, self._left = self._left[:end], self._left[end:]
                    return lines
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if select.select([self._descriptor], [], [], wait)[0]:
                self._receive()
        lines, self._left = self._left, b""
        return lines

    def read_all(self) -> bytes:
        """Return what is left, at the end of the input."""
        while not self.ended:
            self._receive()
        lines, self._left = self._left, b""
        return lines

    def _receive(self) -> None:
        block = os.read(self._descriptor, _BLOCK)
        self._left += block
        self.ended = not block

    def _find_end(self) -> int:
        """Return where the last line ends that is not inside quotes; 0 without one."""
        end = self._left.rfind(b"\n") + 1
        while self.quote and end and self._left.count(self.quote, 0, end) % 2:
            end = self._left.rfind(b"\n", 0, end - 1) + 1
        return end


def read_batches(
    settings: dict[str, Any], text_column: str | None, pair_column: str | None, reading: ReadOptions
) -> Iterator[tuple[Table, TextColumns]]:
    """Yield the rows of standard input as they come, with their text columns.

    What its first lines are is what all are; where these are no table by themselves, as of JSON, all are read first.
    Raises InputError.
    """
    lines = _Lines(sys.stdin.fileno())
    with tempfile.TemporaryDirectory(prefix="classify-") as folder:
        path = Path(folder) / "stdin"
        content = lines.read(_FIRST_LINES, _FIRST_SECONDS)
        with _named(path):
            path.write_bytes(content)
            try:
                first, texts = read_texts(str(path), settings, text_column, pair_column, reading)
            except InputError:
                if lines.ended:
                    raise
                content += lines.read_all()
                path.write_bytes(content)
                first, texts = read_texts(str(path), settings, text_column, pair_column, reading)
        yield first.renamed(STANDARD_INPUT), texts
        # Later lines are read as the first ones were; a header is above these alone.
        found = {**first.reading, "header": False, "skip_lines": 0} if "delimiter" in first.reading else {}
        options = replace(
            ReadOptions().fill(found), encoding=first.reading.get("encoding"), columns=tuple(first.columns)
        )
        lines.quote = str(found.get("quote", "")).encode()
        offset = content.count(b"\n")
        while not lines.ended:
            if more := lines.read(1, _SECONDS):
                with _named(path):
                    path.write_bytes(more)
                    table = read_table(str(path), options=options)
                    if table.columns != first.columns:
                        raise InputError(
                            f"{path}: the lines from {offset + 1} on have other columns than the first ones."
                        )
                    table = replace(texts.derive(table), has_names=first.has_names)
                yield table.renamed(STANDARD_INPUT).moved(offset), texts
                offset += more.count(b"\n")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name standard input in errors about the file that holds a part of it."""
    try:
        yield
    except InputError as error:
        raise InputError(*(fault.replace(str(path), STANDARD_INPUT) for fault in error.faults)) from None

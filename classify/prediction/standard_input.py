"""Read standard input as its lines come, so that predictions do not wait for its end."""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.prediction.inputs import read_texts
from classify.tables.derived import TextColumns
from classify.tables.formats.base import ReadOptions
from classify.tables.source import STANDARD_INPUT
from classify.tables.table import Table

# Lines by which a table is recognized, and how long they are waited for once there is one; then, how long for more.
_FIRST_LINES, _FIRST_SECONDS, _SECONDS = 20, 2.0, 0.2
_MOST_BYTES, _BLOCK = 1 << 20, 1 << 16


class _Lines:
    """Complete lines of a file descriptor; a row whose quotes are open is not divided."""

    def __init__(self, descriptor: int):
        self._descriptor, self._left = descriptor, b""
        self.ended = False

    def read(self, least: int, seconds: float) -> bytes:
        """Return lines once there are `least`, or for `seconds` no more; all that is left at the end."""
        deadline: float | None = None
        while not self.ended and len(self._left) < _MOST_BYTES:
            if self._has_lines(1):
                deadline = deadline or time.monotonic() + seconds
                if self._has_lines(least) or time.monotonic() >= deadline:
                    break
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if select.select([self._descriptor], [], [], wait)[0]:
                block = os.read(self._descriptor, _BLOCK)
                self._left += block
                self.ended = not block
        end = len(self._left) if self.ended else self._left.rfind(b"\n") + 1
        lines, self._left = self._left[:end], self._left[end:]
        return lines

    def read_all(self) -> bytes:
        """Return what is left, at the end of the input."""
        rest = self._left
        while block := os.read(self._descriptor, _BLOCK):
            rest += block
        self._left, self.ended = b"", True
        return rest

    def _has_lines(self, count: int) -> bool:
        return self._left.count(b"\n") >= count and self._left.count(b'"') % 2 == 0


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

        def read(content: bytes) -> tuple[Table, TextColumns]:
            path.write_bytes(content)
            try:
                table, texts = read_texts(str(path), settings, text_column, pair_column, reading)
            except InputError as error:
                raise InputError(*(fault.replace(str(path), STANDARD_INPUT) for fault in error.faults)) from None
            return table.renamed(STANDARD_INPUT), texts

        first = lines.read(_FIRST_LINES, _FIRST_SECONDS)
        try:
            table, texts = read(first)
        except InputError:
            if lines.ended:
                raise
            first += lines.read_all()
            table, texts = read(first)
        yield table, texts
        while not lines.ended:
            if more := lines.read(1, _SECONDS):
                again, _ = read(first + more)
                if not set(table.columns) <= set(again.columns):
                    raise InputError(f"{STANDARD_INPUT}: later lines have other columns than the first ones.")
                yield again.slice(len(table)), texts

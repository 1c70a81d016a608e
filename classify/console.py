"""Progress for terminals, notebooks and logs, and aligned columns."""

from __future__ import annotations

import errno
import sys
import time
import unicodedata
from collections.abc import Sequence
from typing import Any, Self, TextIO

from tqdm import tqdm

from classify.errors import discard_output

# Delay in seconds of a `delayed` bar.
_DELAY = 2.0
# Seconds between two lines of progress where no bar can be drawn.
_INTERVAL = 10.0
_allowed = True


def allow_progress(allowed: bool) -> None:
    global _allowed
    _allowed = allowed


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print a line to standard output, or `file`.

    A reader that has left, as `| head` does, or a terminal that has closed must not end the work.
    """
    stream = sys.stdout if file is None else file
    if stream is None:  # a service without standard output
        return
    try:
        tqdm.write(line, file=stream)
        if hasattr(stream, "flush"):  # not all that replaces it has one
            stream.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is stream:
                discard_output(name)


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; notebooks and services replace standard streams, or have none."""
    return hasattr(stream, "isatty") and bool(stream.isatty())


class ProgressLines:
    """Progress as a line every ten seconds, with the methods of a tqdm bar, for logs and pipes."""

    disable = False

    def __init__(self, total: int, done: int, unit: str, file: TextIO | None = None):
        self._total, self._initial, self._count, self._unit = total, done, done, unit
        self._file, self._postfix = file, ""
        self._start = self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: float | None = 1) -> None:
        self._count += int(count or 0)
        now = time.monotonic()
        if now - self._printed < _INTERVAL:
            return
        self._printed, rate = now, (self._count - self._initial) / (now - self._start)
        left = f"{(self._total - self._count) / rate:,.0f} s left" if rate else "time left unknown"
        done = f"{self._count:,} of {self._total:,} {self._unit}s, {rate:,.3g} {self._unit}s/s, {left}"
        # Standard output, unless it holds results: standard error is for errors only.
        print_line(f"{done}, {self._postfix}" if self._postfix else done, self._file)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self._postfix = text

    def close(self) -> None:
        pass


def progress_bar(
    total: int, done: int, unit: str, *, enabled: bool, delayed: bool = False, lines: TextIO | None = None
) -> tqdm | ProgressLines:
    """Make a bar on the standard error stream, in a terminal or a notebook; elsewhere lines.

    Nothing is shown unless `enabled`. A bar that is `delayed` appears after two seconds. `lines` is where lines go,
    standard output by default.
    """
    enabled = enabled and _allowed and total > done
    has_bar = "ipykernel" in sys.modules or is_terminal(sys.stderr)
    if enabled and not has_bar:
        return ProgressLines(total, done, unit, lines)
    return tqdm(
        total=total, initial=done, disable=not enabled, leave=False, unit=unit, dynamic_ncols=True,
        unit_scale=total >= 10_000,  # 12.3k
        delay=_DELAY if delayed else 0,
    )  # fmt: skip


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(count_cells, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad_text, row, widths)).rstrip() for row in rows]


def format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count_cells(text: str) -> int:
    """The cells that a text takes in a terminal: Chinese characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def pad_text(text: str, cells: int) -> str:
    """Pad a text with spaces to a number of cells; a longer one is cut, with an ellipsis."""
    if count_cells(text) > cells:
        while count_cells(text) > cells - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (cells - count_cells(text))

"""Aligned columns, and progress bars, for terminals and notebooks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from tqdm import TqdmWarning, tqdm

# Seconds after which a bar appears for what is short with most tables.
_DELAY = 2.0
_allowed = True


def allow_progress(allowed: bool) -> None:
    """Allow progress bars in this process from here on, or none."""
    global _allowed
    _allowed = allowed


def progress_allowed() -> bool:
    """Return whether progress may be shown."""
    return _allowed


def progress_bar(total: int, done: int, unit: str, *, enabled: bool, delayed: bool = False) -> tqdm:
    """Make a bar on the standard error stream; invisible unless `enabled`, and in a terminal or a notebook.

    One that is `delayed` appears after two seconds.
    """
    notebook = "ipykernel" in sys.modules
    shown = enabled and _allowed and (notebook or sys.stderr.isatty())
    kind = tqdm
    if shown and notebook:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TqdmWarning)  # without ipywidgets it is a bar of characters
            from tqdm.auto import tqdm as kind
    scale = total >= 10_000  # 12.3k
    return kind(
        total=total,
        initial=done,
        disable=not shown,
        leave=False,
        unit=unit,
        unit_scale=scale,
        dynamic_ncols=True,
        delay=_DELAY if delayed else 0,
    )


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells, all as many, as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

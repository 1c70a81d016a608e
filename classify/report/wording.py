"""Numbers of things in words."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return e.g. "1 row", "1,200 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Cells that hold several labels: "a,b", "a|b", "a;b", or a list as JSON or Python writes it."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

# Share of values with several labels from which a column holds lists.
_LEAST = 0.01
# In a column of lists labels are few and short: rows per label at least, characters and words at most.
_ROWS_PER_LABEL, _LONGEST, _WORDS = 4, 60, 3
SEPARATORS = ("|", ";", ",")
# Separators that label names contain, too. The last are the commas of other scripts.
UNUSUAL_SEPARATORS = ("/", "+", "&", "\t", "\n", " and ", " ", "、", "，", "；", "،")
# Between the labels of a row that come from several columns; in no name.
COLUMN_SEPARATOR = "\x1f"
# Lists as NumPy prints them, which Python would join to one string.
_WITHOUT_COMMA = re.compile(r"""['"]\s+['"]""")
# An array of numbers as NumPy prints it.
_ARRAY = re.compile(r"\[\s*-?\d+(\s+-?\d+)+\s*\]")
# A tuple of names or whole numbers as Python prints it; neither (other) nor (1,234).
_TUPLE = re.compile(r"""\(\s*(['"].*['"]|-?\d+(, -?\d+)*)\s*,?\s*\)""", re.DOTALL)
# A tuple that may be a range, such as (18, 24).
_RANGE = re.compile(r"\(\s*(-?\d+), (-?\d+)\s*\)")
# The separator of cells such as ["a", "b"], or ('a', 'b') as Python writes tuples.
BRACKETS = "[]"


def find_separator(values: Sequence[str]) -> str | None:
    """Return what separates the labels of a column's non-empty values; None where each value is one label."""
    if _are_ranges(values):
        return None
    plain = [value for value in values if not _is_bracketed(value)]
    if values and not plain:
        return BRACKETS
    # JSON may have a list for several labels and a string for one.
    divided = sum(any(map(value.__contains__, SEPARATORS)) for value in plain) > _LEAST * len(values)
    if not divided and len(values) - len(plain) > _LEAST * len(values) and any(map(_lists_several, values)):
        return BRACKETS
    for separator in SEPARATORS:
        if sum(separator in value for value in plain) > _LEAST * len(values):
            return separator
    return None


def find_mixed(cells: Iterable[str]) -> tuple[str, str] | None:
    """Return a list of several labels in brackets, and a cell that a separator may divide; None without both.

    Ranges such as (10, 20] are names beside [0, 10].
    """
    cells = sorted(cells)
    listed = None if _are_ranges(cells) else next((cell for cell in cells if _lists_several(cell)), None)
    divided = (cell for cell in cells if cell[:1] not in "[(" and any(map(cell.__contains__, SEPARATORS)))
    return None if listed is None or (other := next(divided, None)) is None else (listed, other)


def split_cell(cell: str, separator: str | None) -> list[str]:
    """Return the labels of a cell, without empty ones. Raises ValueError for a malformed list."""
    cell = cell.strip()
    if separator is None or not cell:
        return [cell] if cell else []
    if separator == BRACKETS and cell[0] not in "[{(":
        return [cell]
    if separator == BRACKETS:
        return [name for label in _parse_list(cell) if (name := str(label).strip())]
    return [label for label in _split(cell, separator) if label]


def _split(cell: str, separator: str) -> list[str]:
    """Split at a separator; tags such as <java><python>, with nothing between them, at a space."""
    return [part.strip() for part in (cell.replace("><", "> <") if separator == " " else cell).split(separator)]


def undivided_cell(
    labels: Collection[str], separators: Iterable[str], known: Iterable[str] = ()
) -> tuple[str, str] | None:
    """Return a label that may be a list of other labels, and its separator; None without any.

    The others may be `known` labels, too.
    """
    names = {*labels, *known}
    for separator in separators:
        for label in labels:
            if separator == BRACKETS:
                parts = list(map(str, _parse_list(label))) if _lists_several(label) else []
            else:
                parts = _split(label, separator)
            # A list in quotes is no name.
            if len(parts) > 1 and (names.issuperset(parts) or (separator == BRACKETS and label[1:2] in ("'", '"'))):
                return label, separator
    return None


def are_lists(values: Sequence[str]) -> bool:
    """Return whether non-empty values are lists of labels: repeated parts, some values with two; or malformed lists."""
    separator = find_separator(values)
    if separator is None:
        return False
    try:
        lists = [split_cell(value, separator) for value in values]
    except ValueError:  # refused where they are read
        return separator == BRACKETS and any(
            "," in value or _WITHOUT_COMMA.search(value) or _ARRAY.fullmatch(value) for value in values
        )
    several = sum(len(labels) > 1 for labels in lists)
    counts = Counter(label for labels in lists for label in labels)
    return (
        several > _LEAST * len(lists)
        and len(counts) <= len(lists) / _ROWS_PER_LABEL
        and (separator == BRACKETS or len(counts) < len(set(values)))
        and max(map(len, counts)) <= _LONGEST
        and max(len(label.split()) for label in counts) <= _WORDS
    )


def unwrap(labels: Iterable[str]) -> dict[str, str]:
    """Map each label that is a list of one in brackets to the label in it; {} where some list has several."""
    inner: dict[str, str] = {}
    for label in labels:
        try:
            parts = split_cell(label, BRACKETS) if label.strip()[:1] == "[" else []
        except ValueError:
            return {}
        if len(parts) > 1:
            return {}
        if parts:
            inner[label] = parts[0]
    return inner


def is_empty_list(cell: str) -> bool:
    """Return whether a cell is a list without labels, such as [] or [""]."""
    try:
        return cell.startswith("[") and not split_cell(cell, BRACKETS)
    except ValueError:
        return False


def _is_bracketed(value: str) -> bool:
    """Return whether a value is a list in brackets, perhaps a malformed one, or a tuple."""
    return value[:1] + value[-1:] == "[]" or _list_length(value) is not None


def _are_ranges(values: Sequence[str]) -> bool:
    """Return whether some values are tuples, and each of these is a range of ages, say: two ascending numbers."""
    tuples = [value for value in values if value[:1] == "(" and _list_length(value) is not None]
    ranges = list(filter(None, map(_RANGE.fullmatch, tuples)))
    return len(tuples) == len(ranges) > 0 and all(int(found[1]) < int(found[2]) for found in ranges)


def _lists_several(value: str) -> bool:
    return (_list_length(value) or 0) > 1


def _list_length(value: str) -> int | None:
    """Return the number of labels of a list or a tuple; None for anything else, such as (other)."""
    try:
        return len(_parse_list(value)) if value[:1] + value[-1:] == "[]" or _TUPLE.fullmatch(value) else None
    except ValueError:
        return None


def _parse_list(cell: str) -> Sequence[object]:
    if _WITHOUT_COMMA.search(cell):
        raise ValueError("no comma between its labels")
    try:
        parsed = json.loads(cell)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash in a label
                parsed = ast.literal_eval(cell)
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"no list: {error}") from None
    if not isinstance(parsed, list | tuple):
        raise ValueError("no list")
    return parsed

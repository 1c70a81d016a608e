"""Which classes a column of labels holds, and the class number of each row."""

from __future__ import annotations

import math

import pyarrow.compute as pc

from classify.data.table import Table
from classify.errors import InputError

MIN_ROWS = 10


def find_labels(table: Table, label_column: str, more: Table | None = None) -> list[str]:
    """Class names from all rows of `--data` and `--eval-data`, numbers in numeric order, others in alphabetic order.

    Raises InputError for empty labels, too few rows, a single class, or a value of its own in every row.
    """
    faults = [fault for part in (table, more) if part is not None for fault in _empty_labels(part, label_column)]
    if faults:
        raise InputError(*faults)
    counts = table_counts(table, label_column)
    names = set(counts) | (set(table_counts(more, label_column)) if more is not None else set())
    rows = len(table)
    if rows < MIN_ROWS:
        raise InputError(f"{table.path}: expected at least {MIN_ROWS} rows. Got {rows} instead.")
    if len(names) == 1:
        raise InputError(
            f"{table.path}: expected at least two classes in column {label_column!r}. "
            f"Got only {next(iter(names))!r} in all {rows} rows instead; name another column with --label-column."
        )
    if max(counts.values()) < 2:
        raise InputError(
            f"{table.path}: expected at least 2 rows for some class. Got {rows} rows and as many different values in "
            f"column {label_column!r} instead; name another column with --label-column."
        )
    return sorted(names, key=_label_order)


def table_counts(table: Table, column: str) -> dict[str, int]:
    """How many rows each value of a column has."""
    pairs = pc.value_counts(table.arrow.column(column)).to_pylist()
    return {pair["values"]: pair["counts"] for pair in pairs}


def label_ids(table: Table, label_column: str, labels: list[str], known_from: str) -> list[int]:
    """Class numbers of all rows. Raises InputError naming labels that `known_from` does not have, with their lines."""
    index = {name: number for number, name in enumerate(labels)}
    values = table.column(label_column)
    faults: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        if value not in index:
            faults.setdefault(value, []).append(row)
    if faults:
        raise InputError(
            *(
                f"{table.where(rows)}: the label {name!r} is in no row of {known_from}; expected one of "
                f"{', '.join(map(repr, labels[:10]))}{' ...' if len(labels) > 10 else ''}."
                for name, rows in list(faults.items())[:5]
            )
        )
    return [index[value] for value in values]


def near_twins(labels: list[str]) -> list[tuple[str, str]]:
    """Pairs of class names that differ only in case or outer spaces, as typing mistakes do."""
    seen: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for name in labels:
        plain = name.strip().casefold()
        if plain in seen:
            pairs.append((seen[plain], name))
        seen.setdefault(plain, name)
    return pairs


def _empty_labels(table: Table, label_column: str) -> list[str]:
    empty = [row for row, value in enumerate(table.column(label_column)) if not value.strip()]
    if not empty:
        return []
    return [f"{table.where(empty)}: the label is empty; fill it in, or take such rows out."]


def _label_order(name: str) -> tuple[int, float, str]:
    try:
        number = float(name)
    except ValueError:
        return (1, 0.0, name)
    # "nan" has no place in an order, and would make it depend on the order it is asked in.
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)

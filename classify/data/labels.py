"""Which classes a column of labels holds, and the class number of each row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from classify.data.table import Table
from classify.data.text_hashes import normalize_text
from classify.errors import InputError

MIN_ROWS = 10


@dataclass(frozen=True)
class ClassNames:
    """What classes are called: for what stands in the table, the name of its class where that is another one.

    `unlabelled` is what stands there, besides nothing, where a row has no label; `rows` counts those of each label.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    unlabelled: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)

    def of(self, label: str) -> str | None:
        """The class of a label as it stands in a table; None where it stands for none."""
        return None if label in self.unlabelled or not label.strip() else self.names.get(label, label)

    def merged(self, *, normalized: bool) -> list[str]:
        """List each class with its labels and their rows where there are several.

        Either where they differ in case, spaces or Unicode form alone (`normalized`), or the others.
        """
        ways: dict[str, list[str]] = {}
        for label, name in self.names.items():
            ways.setdefault(name, []).append(label)
        return [
            " = ".join(f"{label!r} ({self.rows.get(label, 0)})" for label in sorted(same, key=self._most_rows_first))
            for same in ways.values()
            if len(same) > 1 and normalized == (len(set(map(normalize_text, same))) == 1)
        ]

    def _most_rows_first(self, label: str) -> tuple[int, str]:
        return (-self.rows.get(label, 0), label)


def name_classes(
    counts: Mapping[str, int],
    *,
    normalize: bool = True,
    given: str | None = None,
    unlabelled: frozenset[str] = frozenset(),
) -> ClassNames:
    """What the classes of these labels, with how many rows have each, are called.

    1.0 and 1 are one label where both occur, as one program writes what another reads. With `normalize` labels that
    differ in case, spaces or Unicode form are one, called as most rows call it. `given` renames:
    "0=negative,1=positive". Raises InputError where it names a label that does not occur, or a class twice.
    """
    chosen = {label: label for label in counts}
    for label in counts:
        whole = label.partition(".")[0]
        if re.fullmatch(r"[+-]?\d+\.0+", label) and whole in counts:
            chosen[label] = whole
    if normalize:
        ways: dict[str, list[str]] = {}
        for label in counts:
            ways.setdefault(normalize_text(chosen[label]), []).append(label)
        for same in ways.values():
            best = max(same, key=lambda label: (counts[label], label))
            chosen |= dict.fromkeys(same, chosen[best].strip())
    renamed = _renamed(given) if given is not None else {}
    unknown = sorted(set(renamed) - set(chosen.values()) - set(counts))
    if unknown:
        raise InputError(
            f"--label-names: {', '.join(map(repr, unknown))} is no label of --data; expected some of "
            f"{', '.join(map(repr, sorted(set(chosen.values()))[:10]))}."
        )
    new: dict[str, str] = {}
    for old, name in renamed.items():
        if new.setdefault(chosen.get(old, old), name) != name:
            raise InputError(
                f"--label-names gives {name!r} to {old!r}, which is one class with another label that it names; give "
                "it one name, or add --normalize-labels none."
            )
    return ClassNames({label: new.get(name, name) for label, name in chosen.items()}, unlabelled, dict(counts))


def _renamed(given: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given.split(",")]
    if not all(old.strip() and sign and new.strip() for old, sign, new in pairs):
        raise InputError(f"--label-names must be pairs such as 0=negative,1=positive. Got {given!r} instead.")
    names = {old.strip(): new.strip() for old, _, new in pairs}
    if len(names) < len(pairs):
        raise InputError(f"--label-names names a label twice: {given!r}; give each one name.")
    return names


def find_labels(
    table: Table, label_column: str, more: Table | None = None, classes: ClassNames | None = None
) -> list[str]:
    """Class names from all rows of `--data` and `--eval-data`, numbers in numeric order, others in alphabetic order.

    Raises InputError for too few rows with a label, a single class, or a value of its own in every row.
    """
    classes = classes or ClassNames()
    counts = class_counts(table, label_column, classes)
    names = set(counts) if more is None else {*counts, *class_counts(more, label_column, classes)}
    rows = sum(counts.values())
    if rows < MIN_ROWS:
        labelled = "rows" if rows == len(table) else "rows with a label"
        raise InputError(f"{table.path}: expected at least {MIN_ROWS} {labelled}. Got {rows} instead.")
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


def class_counts(table: Table, column: str, classes: ClassNames) -> dict[str, int]:
    """How many rows each class has."""
    counts: Counter[str] = Counter()
    for value, count in value_counts(table, column).items():
        name = classes.of(value)
        if name is not None:
            counts[name] += count
    return dict(counts)


def value_counts(table: Table, column: str) -> dict[str, int]:
    """How many rows each value of a column has."""
    pairs = pc.value_counts(table.arrow.column(column)).to_pylist()
    return {pair["values"]: pair["counts"] for pair in pairs}


def label_ids(
    table: Table, label_column: str, labels: list[str], known_from: str, classes: ClassNames | None = None
) -> npt.NDArray[np.int64]:
    """Class numbers of all rows, -1 of a row without a label.

    Raises InputError naming labels that `known_from` does not have, with their lines.
    """
    index: dict[str | None, int] = {None: -1} | {name: number for number, name in enumerate(labels)}
    if label_column not in table.columns:
        return np.full(len(table), -1)
    values, numbers = table.values(label_column)
    named = list(map((classes or ClassNames()).of, values))
    faults: dict[str, list[int]] = {}
    for number, name in enumerate(named):
        if name is not None and name not in index:
            faults.setdefault(name, []).extend(np.flatnonzero(numbers == number).tolist())
    if faults:
        raise InputError(
            *(
                f"{table.where(rows)}: the label {name!r} is in no row of {known_from}; expected one of "
                f"{', '.join(map(repr, labels[:10]))}{' ...' if len(labels) > 10 else ''}."
                for name, rows in list(faults.items())[:5]
            )
        )
    return np.array([index[name] for name in named], dtype=np.int64)[numbers]


def case_variants(labels: list[str]) -> list[tuple[str, str]]:
    """Return pairs of class names that differ in case, spaces or Unicode form alone, as typing mistakes do."""
    seen: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for name in labels:
        key = normalize_text(name)
        if key in seen:
            pairs.append((seen[key], name))
        seen.setdefault(key, name)
    return pairs


def check_empty_labels(table: Table, label_column: str) -> None:
    """Raise InputError where more than half of the rows have an empty label."""
    values, numbers = table.values(label_column)
    empty = np.flatnonzero(np.isin(numbers, [place for place, value in enumerate(values) if not value.strip()]))
    if 2 * len(empty) > len(table):
        raise InputError(
            f"{table.where(empty.tolist())}: the label is empty in {len(empty)} of {len(table)} rows; name another "
            "column with --label-column, or have such rows left out (--drop-unlabelled) or predicted "
            "(--predict-unlabelled)."
        )


def _label_order(name: str) -> tuple[int, float, str]:
    try:
        number = float(name)
    except ValueError:
        return (1, 0.0, name)
    # "nan" has no place in an order, and would make it depend on the order it is asked in.
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)

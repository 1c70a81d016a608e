"""The labels of a run's tables: the names of the classes, cells without a label, and names as texts."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from classify.data.reading import InputTables
from classify.data.soft_labels import PREFIX, SoftLabels
from classify.errors import InputError, list_some
from classify.tables.labels import (
    ClassNames,
    find_divided,
    find_missing,
    is_no_label,
    name_classes,
    no_such_label,
    sort_key,
)
from classify.tables.table import Table, normalize_text

# Contests publish test tables whose only label value is this; it means unlabelled.
_WITHHELD = "-1"
# Letters in a row that a name made of words has at least.
_LETTERS = 3
# Letters that an abbreviation in capitals has at most.
_ABBREVIATION = 4
_ENGLISH = "this is about {}"


def find_class_names(tables: InputTables, count: Callable[[Table, str], Mapping[str, int]]) -> ClassNames:
    """The class names of a run's tables, and the label values that mean unlabelled.

    `count` gives the rows of each label of a table's column. Raises InputError for faults of --label-names and
    --unlabelled-value.
    """
    config, column, test = tables.config, tables.columns.label, tables.test
    counts: Counter[str] = Counter()
    for table in tables.learned:
        counts.update(count(table, column))
    # A label that only the test table has is not a class, but may be another spelling of one.
    tested = {} if test is None or not test.has_column(column) else count(test, column)
    counts.update(dict.fromkeys([*tested, *tables.known_labels], 0))
    normalize, value = config.normalize_labels == "auto", config.unlabelled_value
    outside = ClassNames(normalized=normalize, outside=config.out_of_scope_label)
    unlabelled = set(filter(outside.is_outside, counts))
    if value is not None:
        key = normalize_text(value)
        same = {label for label in counts if label == value or (normalize and normalize_text(label) == key)}
        if not same:
            raise InputError(no_such_label(value))
        unlabelled |= same
    if set(tested) == {_WITHHELD} and not counts[_WITHHELD]:
        unlabelled.add(_WITHHELD)
    kept = kept_labels(tables)
    missing = {label: counts[label] for label in find_missing(counts) if label not in kept}
    divided = find_divided(config.label_names, counts, normalize=normalize)
    unlabelled |= {*missing, *divided}
    named = {label: count for label, count in counts.items() if label not in unlabelled and not is_no_label(label)}
    names = name_classes(
        named, normalize=normalize, requested=config.label_names, unlabelled=frozenset(unlabelled), divided=divided
    )
    return dataclasses.replace(names, missing=missing, outside=outside.outside)


def kept_labels(tables: InputTables) -> set[str]:
    pairs = [pair.partition("=") for pair in (tables.config.label_names or "").split(",")]
    return {old.strip() for old, _, new in pairs if old.strip() == new.strip()}


def check_empty_labels(tables: InputTables, *, or_none: bool = False) -> None:
    """Raise InputError where more than half of a table's rows have an empty label, and no flag expects that.

    `or_none`: an empty cell may also mean that no label applies. Columns of empty cells alone, or of one label beside
    them, are refused elsewhere.
    """
    column, config, test = tables.columns.label, tables.config, tables.test
    if config.drop_unlabelled or config.predict_unlabelled:
        return
    has_labels = test is not None and test.has_column(column) and not test.is_blank(column).all()
    for table in tables.every if has_labels else tables.learned:
        cells, numbers = table.dictionary_encode(column)
        is_empty = [not cell.strip() if or_none else is_no_label(cell) for cell in cells]
        empty = np.flatnonzero(np.array(is_empty, dtype=bool)[numbers])
        if 2 * len(empty) > len(table) and len(cells) > (1 if or_none else 2):
            none = "if no label applies to them, give --task multi; else " if or_none else ""
            raise InputError(
                f"{table.describe_rows(empty.tolist())}: column {column!r} is empty in {len(empty)} of {len(table)} "
                f"rows; {none}name another one with --label-column, or leave such rows out (--drop-unlabelled), or "
                "predict them (--predict-unlabelled)."
            )


def add_soft_labels(labels: list[str], soft: SoftLabels | None, classes: ClassNames) -> list[str]:
    """The labels, and those that only columns of probabilities name; some of these must be labels.

    Raises InputError where none is.
    """
    if soft is None or not soft.labels:
        return labels
    names = soft.class_names(classes)
    if not {*names} & {*labels}:
        raise InputError(
            f"--soft-labels: none of the columns {list_some([PREFIX + name for name in soft.labels], show=repr)} names "
            f"a label ({list_some(labels, show=repr)}); rename them, or drop the flag."
        )
    return sorted({*labels, *names}, key=sort_key)


def label_texts(labels: Sequence[str], *, is_english: bool) -> tuple[str, ...]:
    """A training text for each label, in order; () where some label is a number, a code or an abbreviation.

    With few rows, a row that says "this is about billing" is worth several of that class.
    """
    # Spaces between the words of snake_case, kebab-case and CamelCase, too.
    apart = (re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", re.sub(r"[_\-]+", " ", label)) for label in labels)
    names = [" ".join(name.split()) for name in apart]
    if not all(map(_is_of_words, names)):
        return ()
    return tuple((_ENGLISH if is_english else "{}").format(name) for name in names)


def _is_of_words(name: str) -> bool:
    if any(letter.isalpha() and letter > "\u2e80" for letter in name):  # a script whose words are a letter or two
        return True
    letters = re.findall(r"[^\W\d_]+", name)
    longest = max(map(len, letters), default=0)
    return longest >= _LETTERS and not (name.isupper() and longest <= _ABBREVIATION)

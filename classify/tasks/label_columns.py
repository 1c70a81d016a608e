"""The labels of a run's tables: the names of the classes, and cells without a label."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from classify.data.reading import InputTables
from classify.errors import InputError
from classify.tables.labels import ClassNames, class_counts, find_missing, is_no_label, name_classes, no_such_label
from classify.tables.names import PREDICTED
from classify.tables.table import Table
from classify.tables.text_hashes import normalize_text

# Contests publish test tables whose only label value is one of these; it means unlabelled.
_WITHHELD = frozenset({"-1", ""})


def find_class_names(tables: InputTables, count: Callable[[Table, str], Mapping[str, int]]) -> ClassNames:
    """Return the class names of a run's tables, and the label values that mean unlabelled.

    `count` returns the rows of each label of a table's column. Raises InputError for faults of --label-names and
    --unlabelled-value.
    """
    config, column, test = tables.config, tables.columns.label, tables.test
    counts: Counter[str] = Counter()
    for table in tables.learned:
        counts.update(count(table, column))
    normalize = config.normalize_labels == "auto"
    unlabelled = set()
    # A label that only the test table has is not a class, but may be another spelling of one.
    tested = {} if test is None or not test.has_column(column) else count(test, column)
    counts.update(dict.fromkeys(tested, 0))
    if config.unlabelled_value is not None:
        key = normalize_text(config.unlabelled_value)
        unlabelled |= {
            label
            for label in counts
            if label == config.unlabelled_value or (normalize and normalize_text(label) == key)
        }
        if not unlabelled:
            raise InputError(no_such_label(config.unlabelled_value))
    outside = ClassNames(normalized=normalize, outside=config.out_of_scope_label)
    unlabelled |= set(filter(outside.is_outside, counts))
    if len(tested) == 1 and set(tested) <= _WITHHELD and not any(counts[value] for value in tested):
        unlabelled |= set(tested)
    kept = set(config.label_names.split(",")) if config.label_names is not None else set()
    missing = {label: counts[label] for label in find_missing(counts) if f"{label}={label}" not in kept}
    unlabelled |= set(missing)
    named = {label: count for label, count in counts.items() if label not in unlabelled and not is_no_label(label)}
    names = name_classes(named, normalize=normalize, requested=config.label_names, unlabelled=frozenset(unlabelled))
    return dataclasses.replace(names, missing=missing, outside=outside.outside)


def refuse_unlabelled_files(tables: InputTables) -> None:
    """Raise InputError where one of several joined files has no label at all, and no flag expects that."""
    if not (tables.config.drop_unlabelled or tables.config.predict_unlabelled):
        for table in tables.learned:
            _refuse_unlabelled_file(table, tables.columns.label)


def _refuse_unlabelled_file(table: Table, column: str) -> npt.NDArray[np.bool_]:
    """Return (rows,) whether each row has no label. Raises InputError where no row of a joined file has one."""
    values, numbers = table.dictionary_encode(column)
    is_empty, start = np.array(list(map(is_no_label, values)), dtype=bool)[numbers], 0
    for path, rows in table.files:
        if rows and is_empty[start : start + rows].all():
            raise InputError(
                f"{path}: none of its {rows} rows has a label in column {column!r}. If another column holds them, such "
                f"as a corrected {PREDICTED}, rename that one and delete the empty one; else leave the rows out "
                "(--drop-unlabelled), or predict them (--predict-unlabelled)."
            )
        start += rows
    return is_empty


def check_empty_labels(tables: InputTables) -> None:
    """Raise InputError where more than half of a table's rows have an empty label, and no flag expects that."""
    column, config, test = tables.columns.label, tables.config, tables.test
    if config.drop_unlabelled or config.predict_unlabelled:
        return
    has_labels = test is not None and test.has_column(column) and not test.is_blank(column).all()
    for table in [*tables.learned, *([test] if test is not None and has_labels else [])]:
        empty = np.flatnonzero(_refuse_unlabelled_file(table, column))
        if 2 * len(empty) > len(table):
            if len({label for source in tables.learned for label in class_counts(source, column, ClassNames())}) == 1:
                return  # refused as a single class: empty cells may mean the other
            where = table.describe_rows(empty.tolist())
            raise InputError(
                f"{where}: the label is empty in {len(empty)} of {len(table)} rows; name another column with "
                "--label-column, or leave such rows out (--drop-unlabelled), or predict them (--predict-unlabelled)."
            )

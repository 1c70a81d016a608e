"""Tables with labels, for scoring a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.splits import mark_outside
from classify.errors import InputError, list_some
from classify.modeling.result_folder import read_settings
from classify.prediction.inputs import read_texts
from classify.tables.options import ReadOptions
from classify.tables.roles import rename_alike
from classify.tables.table import Table
from classify.tables.texts import TextColumns, join_labels
from classify.tasks.base import Task
from classify.tasks.registry import trained_task

_JOINED = "labels"


@dataclass(frozen=True)
class LabelledTable:
    """A table, its text columns, the task, and the rows (n,) that have a label with their targets (n, ...).

    `outside` (m,) are the rows whose label means none of the classes; `column` is that of the labels.
    """

    table: Table
    texts: TextColumns
    task: Task
    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[Any]
    outside: npt.NDArray[np.int64]
    column: str


def read_labelled(
    model: str,
    data: str | Table,
    label_column: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> LabelledTable:
    """Read a table with the columns and labels that a model was trained on. Raises InputError with the candidates."""
    settings = read_settings(model)
    table, texts = read_texts(data, settings, text_column, pair_column, options)
    task = trained_task(model)
    table, column = _find_label_column(table, settings.get("label_columns", []), label_column, task.labels)
    task = replace(task, targets=task.targets.for_table(table, column))
    rows = np.flatnonzero(task.targets.labelled(table, column))
    if not len(rows):
        raise InputError(f"{table.path}: expected rows with a label in column {column!r}. Got none.")
    targets = task.targets.encode(table, column, f"the training data of {model}")[rows]
    outside = np.flatnonzero(mark_outside(table, column, task.targets.classes))
    return LabelledTable(table, texts, task, rows, targets, outside, column)


def _find_label_column(
    table: Table, trained: Sequence[str], flag: str | None, labels: Sequence[str]
) -> tuple[Table, str]:
    """The table with one column of labels, and its name."""
    if flag is None:
        table = rename_alike(table, trained)
    names = list(trained) if flag is None else [name.strip() for name in flag.split(",")]
    if flag is None and not all(map(table.has_column, names)) and all(map(table.has_column, labels)):
        names = list(labels)  # a column of 0 and 1 for each
    missing = [name for name in names if name not in table.columns]
    if missing or not names:
        listed = ", ".join(map(repr, table.columns))
        which = f"no column {missing[0]!r}" if missing else "the model does not say which column holds the labels"
        raise InputError(f"{table.path}: {which}; it has: {listed}. Name it with --label-column.")
    if len(names) == 1:
        return table, names[0]
    named = {name.lower() for name in names}
    absent = [name for name in (trained if len(trained) > 1 else labels) if name.lower() not in named]
    if absent:
        listed = list_some(absent, show=repr)
        raise InputError(
            f"--label-column {flag}: expected a column for each label of the model. Got none for {listed}, so no row "
            "would have these labels; name a column for each."
        )
    joined = next(name for name in (_JOINED, *(f"{_JOINED}_{n}" for n in range(99))) if not table.has_column(name))
    return join_labels(table, names, joined), joined

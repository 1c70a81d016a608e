"""The tasks there are: which one a table asks for, and which one a model was trained for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from classify.data.content import column_stats
from classify.data.reading import InputTables
from classify.errors import InputError
from classify.tasks.base import Task
from classify.tasks.single_label import SingleLabel

# What --task says where each value of the label column is a class.
SINGLE = "single"
TASKS: dict[str, type[Task]] = {task.name: task for task in (SingleLabel,)}


def recognize(tables: InputTables) -> Task:
    """The task that the labels of these tables ask for.

    Raises InputError where they fit none, and where they ask for one that is not supported: it is said, and never
    trained as something else.
    """
    table, column = tables.train, tables.columns.label
    if tables.task == SINGLE:
        return SingleLabel.of(tables)
    stats = column_stats(table, column)
    way = "name another column with --label-column, or take each value as a class with --task single"
    if stats.is_list:
        example = next(value for value in stats.values if re.search("[,|;]", value))
        raise InputError(
            f"{table.path}: column {column!r} holds several labels a row, e.g. {example!r} (multi-label "
            f"classification), which is not supported; {way}."
        )
    if stats.is_score:
        raise InputError(
            f"{table.path}: column {column!r} holds numbers on a scale, e.g. {stats.values[0]} (regression), which is "
            f"not supported; {way}."
        )
    return SingleLabel.of(tables)


def trained_task(name: str | None, labels: Sequence[str]) -> Task:
    """The task of a result folder; folders without its name were trained on one label a row.

    Raises InputError for a task that this version does not know.
    """
    if name is not None and name not in TASKS:
        raise InputError(
            f"classify.json: the model was trained for {name!r}; this version knows {', '.join(TASKS)}. Predict with "
            "the version that trained it (run.json names it)."
        )
    return TASKS[name or SingleLabel.name](labels)

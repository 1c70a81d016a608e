"""Select the task of a table or of a trained model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from classify.data.content import column_stats
from classify.data.reading import InputTables
from classify.errors import InputError
from classify.tasks.base import Task
from classify.tasks.single_label import SingleLabel

# Value of --task: each value of the label column is a class.
SINGLE = "single"
TASKS: dict[str, type[Task]] = {task.name: task for task in (SingleLabel,)}


def recognize(tables: InputTables) -> Task:
    """Return the task of these labels. Raises InputError for multi-label classification, regression and no fit."""
    table, column = tables.train, tables.columns.label
    if tables.config.task == SINGLE:
        return SingleLabel.of(tables)
    stats = column_stats(table, column)
    way = "give another --label-column, or --task single to take each value as a class"
    if stats.is_list:
        example = next(value for value in stats.values if re.search("[,|;]", value))
        raise InputError(
            f"{table.path}: column {column!r} has several labels per row, e.g. {example!r}; multi-label "
            f"classification is not supported; {way}."
        )
    if stats.is_score:
        raise InputError(
            f"{table.path}: column {column!r} holds numbers on a scale, e.g. {stats.values[0]}; regression is "
            f"not supported; {way}."
        )
    return SingleLabel.of(tables)


def trained_task(settings: Mapping[str, Any], labels: Sequence[str]) -> Task:
    """Return the task of a result folder, from its classify.json; the default is one label per row.

    Raises InputError for unknown tasks.
    """
    name = settings.get("task")
    if name is not None and name not in TASKS:
        raise InputError(
            f"classify.json: expected the task {', '.join(TASKS)}. Got {name!r} instead; predict with the version that "
            "trained the model (see run.json)."
        )
    return TASKS[name or SingleLabel.name](labels)

"""The tasks there are: which one a table asks for, and which one a model was trained for."""

from __future__ import annotations

from collections.abc import Sequence

from classify.data.corpus import Tables
from classify.errors import InputError
from classify.tasks.base import Task
from classify.tasks.single_label import SingleLabel

TASKS: dict[str, type[Task]] = {task.name: task for task in (SingleLabel,)}


def recognise(tables: Tables) -> Task:
    """The task that the labels of these tables ask for. Raises InputError where they fit none."""
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

"""The tasks there are: which one a table asks for, and which one a model was trained for."""

from __future__ import annotations

from collections.abc import Sequence

from classify.data.corpus import Tables
from classify.tasks.base import Task
from classify.tasks.single_label import SingleLabel

TASKS: dict[str, type[Task]] = {task.name: task for task in (SingleLabel,)}


def recognise(tables: Tables) -> Task:
    """The task that the labels of these tables ask for. Raises InputError where they fit none."""
    return SingleLabel.of(tables)


def trained_task(name: str | None, labels: Sequence[str]) -> Task:
    """The task of a result folder; folders without its name were trained on one label a row."""
    return TASKS[name or SingleLabel.name](labels)

"""Select the task of a table or of a trained model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from classify.data.reading import InputTables
from classify.errors import EXCERPT, InputError
from classify.modeling.result_folder import read_labels, read_settings
from classify.tables import rules
from classify.tables.decide import Doubt, DoubtError
from classify.tables.label_lists import COLUMN_SEPARATOR, are_numbers_or_lists, parse_list
from classify.tables.profile import profile
from classify.tasks.base import Task
from classify.tasks.multi_label import MultiLabel, count_cells, find_separator
from classify.tasks.regression import Regression
from classify.tasks.single_label import SingleLabel

# Objects, and lists of objects or lists.
_NESTED = re.compile(r"\s*(\{.*:|\[\s*[\[{])", re.DOTALL)
# Tags of tokens in CoNLL's tables, such as B-PER.
_TOKEN_TAG = re.compile(r"[BILUES]-\S+")
# By the value of --task.
TASKS: dict[str, type[Task]] = {"single": SingleLabel, "multi": MultiLabel, "regression": Regression}
_BY_NAME: dict[str, type[Task]] = {task.name: task for task in TASKS.values()}


def recognize(tables: InputTables) -> Task:
    """Return the task of these labels: the one that --task names, or by their content.

    Raises InputError where the labels do not fit.
    """
    with tables.train.add_hint():
        return _recognize(tables)


def _recognize(tables: InputTables) -> Task:
    requested, columns, path = tables.config.task, tables.columns, tables.train.path
    if requested != "auto":
        if requested != "multi" and len(columns.labels) > 1:
            names = ", ".join(columns.labels)
            raise InputError(f"--task {requested}: --label-column names several columns: {names}; name one.")
        return TASKS[requested].of(tables)
    if len(columns.labels) > 1:
        every = (table for table in (tables.train, tables.eval, tables.test) if table is not None)
        joined = {cell for table in every for cell in table.dictionary_encode(columns.label)[0]}
        has_one = all(cell and COLUMN_SEPARATOR not in cell for cell in joined)
        return SingleLabel.of(tables) if has_one else MultiLabel.of(tables)
    # Of all rows: few may be lists or objects.
    cells = count_cells(tables)
    _refuse_annotations(path, columns.label, cells)
    column = profile(tables.train, columns.label, tables.config.unlabelled_value)
    is_named = tables.config.label_names is not None or tables.config.label_separator is not None
    if are_numbers_or_lists(cells) and not is_named:
        example = next(value for value in cells if "," in value)
        shown = ("a number with a decimal comma", "several labels (--task multi)")
        raise DoubtError(path, [Doubt(f"{example!r} in {columns.label!r}", shown, "--task regression")])
    if rules.is_score(column):
        return Regression.of(tables)
    if rules.is_numeric(column) and tables.config.label_separator is None:
        return SingleLabel.of(tables)
    return SingleLabel.of(tables) if find_separator(tables, cells) is None else MultiLabel.of(tables)


def _refuse_annotations(path: str, column: str, labels: Collection[str]) -> None:
    """Raise InputError where labels are those of spans or tokens, as tools for annotation export them."""
    nested = next((label for label in sorted(labels) if _NESTED.match(label) and not _lists_names(label)), None)
    if nested is not None:
        raise InputError(
            f"{path}: column {column!r} holds {nested[:EXCERPT]!r}; expected names of classes for the whole text, not "
            "objects or spans. Export one label, or a list of labels, per text, or add --task single."
        )
    tags = [label for label in labels if _TOKEN_TAG.fullmatch(label)]
    if tags and {"O"} < set(labels) == {"O", *tags}:
        raise InputError(
            f"{path}: column {column!r} holds tags of tokens: 'O' and {min(tags)!r}; this program classifies whole "
            "texts. Give a row per text, or --task single if each row is one."
        )


def _lists_names(cell: str) -> bool:
    """Return whether a cell is a list of names, or an object around one."""
    try:
        return all(isinstance(name, str | int) for name in parse_list(cell))
    except ValueError:
        return False


def trained_task(folder: str) -> Task:
    """Return the task of a result folder. Raises InputError if it is not a result folder, or for unknown tasks."""
    settings = read_settings(folder)
    if settings["task"] not in _BY_NAME:
        raise InputError(
            f"classify.json: expected one of the tasks {', '.join(_BY_NAME)}. Got {settings['task']!r} instead; "
            "predict with the version that trained the model (see run.json)."
        )
    try:
        return task_of(settings["task"], read_labels(folder), settings)
    except KeyError as error:
        raise InputError(
            f"--model {folder}: classify.json has no {error}; restore the file of the training run."
        ) from None


def task_of(name: str, labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    """Return a task by its name, its labels and what it keeps for prediction."""
    return _BY_NAME[name].from_settings(labels, settings)


def primary_metric(name: str) -> str | None:
    """Return the metric that compares models of a task, by the name in metrics.json; None for unknown tasks."""
    return _BY_NAME[name].primary if name in _BY_NAME else None

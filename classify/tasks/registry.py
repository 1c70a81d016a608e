"""Select the task of a table or of a trained model."""

from __future__ import annotations

import re
from collections.abc import Collection

from classify.data.reading import InputTables
from classify.errors import InputError
from classify.modeling.result_folder import read_labels, read_settings
from classify.tables.content import SAMPLE, column_stats
from classify.tables.label_lists import BRACKETS, SEPARATORS, UNUSUAL_SEPARATORS, undivided_cell
from classify.tasks.base import Task
from classify.tasks.multi_label import MultiLabel, distinct_cells, refuse_mixed_lists
from classify.tasks.regression import Regression
from classify.tasks.single_label import SingleLabel

# Objects, and lists of objects or lists.
_NESTED = re.compile(r"\s*(\{.*:|\[\s*[\[{])", re.DOTALL)
# Tags of tokens in CoNLL's tables, such as B-PER.
_TOKEN_TAG = re.compile(r"[BILUES]-\S+")
_SHOWN = 60
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
    requested = tables.config.task
    if requested != "auto":
        if requested != "multi" and len(tables.columns.labels) > 1:
            names = ", ".join(tables.columns.labels)
            raise InputError(f"--task {requested}: --label-column names several columns: {names}; name one.")
        return TASKS[requested].of(tables)
    stats = column_stats(tables.train, tables.columns.label, tables.config.unlabelled_value)
    _refuse_annotations(tables.train.path, tables.columns.label, set(stats.values))
    if stats.is_numbers_or_lists and tables.config.label_names is None:
        example = next(value for value in stats.values if "," in value)
        raise InputError(
            f"{tables.train.path}: column {tables.columns.label!r} holds {example!r}: a number with a decimal comma, "
            "or several labels? Give --task regression, or --task multi."
        )
    if stats.is_score and len(tables.columns.labels) == 1:
        return Regression.of(tables)
    # Of all rows: few may be lists or objects.
    cells = distinct_cells(tables.train, tables.columns.label, tables.config.unlabelled_value)
    _refuse_annotations(tables.train.path, tables.columns.label, cells)
    if len(tables.columns.labels) > 1 or stats.is_list:
        return MultiLabel.of(tables)
    refuse_mixed_lists(tables)
    # Thousands of cells that mostly differ are no classes, and refused below.
    may_be_classes = len(cells) <= max(SAMPLE, len(tables.train) / 2)
    separators = (BRACKETS, *SEPARATORS, *UNUSUAL_SEPARATORS)
    undivided = undivided_cell(sorted(cells), separators) if may_be_classes else None
    if undivided is not None:
        raise InputError(
            f"{tables.train.path}: column {tables.columns.label!r} holds {undivided[0]!r}: one class, or several "
            "labels? Give --task single, or --task multi."
        )
    return SingleLabel.of(tables)


def _refuse_annotations(path: str, column: str, labels: Collection[str]) -> None:
    """Raise InputError where labels are those of spans or tokens, as tools for annotation export them."""
    nested = next((label for label in sorted(labels) if _NESTED.match(label)), None)
    if nested is not None:
        raise InputError(
            f"{path}: column {column!r} holds {nested[:_SHOWN]!r}; expected names of classes for the whole text, not "
            "objects or spans. Export one label, or a list of labels, per text, or add --task single."
        )
    tags = [label for label in labels if _TOKEN_TAG.fullmatch(label)]
    if tags and {"O"} < set(labels) == {"O", *tags}:
        raise InputError(
            f"{path}: column {column!r} holds tags of tokens: 'O' and {min(tags)!r}; this program classifies whole "
            "texts. Give a row per text, or --task single if each row is one."
        )


def trained_task(folder: str) -> Task:
    """Return the task of a result folder. Raises InputError if it is not a result folder, or for unknown tasks."""
    settings = read_settings(folder)
    name = settings["task"]
    if name not in _BY_NAME:
        raise InputError(
            f"classify.json: expected one of the tasks {', '.join(_BY_NAME)}. Got {name!r} instead; predict with the "
            "version that trained the model (see run.json)."
        )
    try:
        return _BY_NAME[name].from_settings(read_labels(folder), settings)
    except KeyError as error:
        raise InputError(
            f"--model {folder}: classify.json has no {error}; restore the file of the training run."
        ) from None


def primary_metric(name: str) -> str | None:
    """Return the metric that compares models of a task, by the name in metrics.json; None for unknown tasks."""
    return _BY_NAME[name].primary if name in _BY_NAME else None

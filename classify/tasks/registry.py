"""Select the task of a table or of a trained model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classify.data.reading import InputTables
from classify.errors import InputError, list_some
from classify.evaluation.scope import Scope
from classify.modeling.result_folder import read_labels, read_settings
from classify.tables.labels import (
    BRACKETS,
    SEPARATORS,
    find_missing,
    find_separator,
    refuse_objects,
    split_cell,
    value_counts,
)
from classify.tables.profile import parse_number, profile
from classify.tables.source import Question, QuestionError
from classify.tasks import hierarchy, multi_column, multi_label, regression, single_label
from classify.tasks.base import JOIN, Task
from classify.tasks.label_columns import kept_labels

# The file of each task, by the value of --task.
TASKS = {"single": single_label, "multi": multi_label, "regression": regression}
# What --label-separator calls characters that a shell hides.
_NAMED = {"tab": "\t", "newline": "\n", "space": " ", r"\t": "\t"}
# A number with a decimal comma, or a list of two different digits.
_NUMBER_OR_LIST = re.compile(r"\d{1,2}|(\d\d?),(?!\1$)\d")


def recognize(tables: InputTables) -> Task:
    """The task of these labels: the one that --task names, or by their content.

    Raises InputError where the labels do not fit.
    """
    requested, columns = tables.config.task, tables.columns
    if tables.config.hierarchy == "on" and requested not in ("auto", "single"):
        raise InputError(f"--hierarchy: works with one label per row; drop it, or --task {requested}.")
    if columns.are_separate:
        return multi_column.from_tables(tables)
    if len(columns.labels) > 1 and requested not in ("auto", "multi"):
        names = ", ".join(columns.labels)
        raise InputError(f"--task {requested}: --label-column names several columns: {names}; name one.")
    if len(columns.labels) > 1:
        with_labels = (table for table in tables.every if table.has_column(columns.label))
        joined = {cell for table in with_labels for cell in table.dictionary_encode(columns.label)[0]}
        has_one = requested == "auto" and all(len(split_cell(cell, BRACKETS)) == 1 for cell in joined)
        task = single_label.from_tables(tables) if has_one else multi_label.from_tables(tables, BRACKETS)
    elif requested == "auto":
        task = _recognize_column(tables)
    elif requested == "multi":
        task = multi_label.from_tables(tables, _find_separator(tables, _count_cells(tables)) or JOIN)
    else:
        task = _single(tables) if requested == "single" else regression.from_tables(tables)
    if tables.config.out_of_scope_label is not None and not task.answers.has_confidence:
        raise InputError("--out-of-scope-label works with one label per row; drop the flag (see the line task:).")
    return task


def _recognize_column(tables: InputTables) -> Task:
    config, name, path = tables.config, tables.columns.label, tables.train.path
    cells = _count_cells(tables)  # of all rows: few may be lists or objects
    refuse_objects(cells, f"{path}: column {name!r}")
    example = next((cell for cell in cells if "," in cell), None)
    is_read = config.label_names is not None or config.label_separator is not None
    if example is not None and not is_read and all(map(_NUMBER_OR_LIST.fullmatch, cells)):
        question = f"is {example!r} in column {name!r} a number or several labels"
        raise QuestionError(path, [Question(question, (), ("--task regression", "--label-separator ,"))])
    if config.label_separator is None and not any("," in cell and parse_number(cell) is None for cell in cells):
        column = profile(tables.train, name, config.unlabelled_value)
        if column.is_score or column.is_numeric:
            return (regression if column.is_score else single_label).from_tables(tables)
    separator = None if config.hierarchy == "on" else _find_separator(tables, cells)
    return _single(tables) if separator is None else multi_label.from_tables(tables, separator)


def _single(tables: InputTables) -> Task:
    """One class per row, which may be a path in a hierarchy."""
    task = single_label.from_tables(tables)
    return hierarchy.from_classes(task, tables) or task


def _count_cells(tables: InputTables) -> Counter[str]:
    """Count the rows of the non-empty cells of all learned rows, without those that mean unlabelled."""
    cells: Counter[str] = Counter()
    for table in tables.learned:
        for cell, rows in value_counts(table, tables.columns.label).items():
            cells[cell.strip()] += rows
    none = {"", tables.config.unlabelled_value, *find_missing(cells)} - kept_labels(tables)
    return Counter({cell: rows for cell, rows in cells.items() if cell not in none})


def _find_separator(tables: InputTables, cells: Mapping[str, int]) -> str | None:
    """What separates the labels of a cell, as --label-separator says or as it looks; None for one label.

    Raises QuestionError where it is doubtful.
    """
    if tables.config.label_separator is not None:
        return _NAMED.get(tables.config.label_separator, tables.config.label_separator)
    found = find_separator(cells)
    if not isinstance(found, Question):
        return found
    if tables.config.task != "multi":
        raise QuestionError(tables.train.path, [found])
    return next((sign for sign in SEPARATORS if any(sign in cell for cell in cells)), BRACKETS)


def trained_task(folder: str) -> Task:
    """The task of a result folder. Raises InputError if it is not a result folder, or for unknown tasks."""
    settings = read_settings(folder)
    try:
        task = from_settings(settings["task"], read_labels(folder), settings)
    except KeyError as error:
        raise InputError(
            f"--model {folder}: classify.json has no {error}; restore the file of the training run."
        ) from None
    return replace(task, scope=Scope.read(Path(folder), settings))


def from_settings(name: str, labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    """The task of that name in classify.json. Raises InputError for one that is unknown, KeyError without a setting."""
    files = {file.NAME: file for file in (*TASKS.values(), multi_column, hierarchy)}
    if name not in files:
        raise InputError(
            f"classify.json: expected one of the tasks {', '.join(files)}. Got {name!r} instead; "
            "predict with the version that trained the model (see run.json)."
        )
    task: Task = files[name].from_settings(labels, settings)
    return task


def check_teacher(folder: str, task: Task) -> None:
    """Raise InputError where a result folder cannot teach this task."""
    teacher = trained_task(folder)
    known = {task.targets.classes.of(label) or label for label in teacher.labels} & {*task.labels}
    if teacher.name != task.name or (task.answers.has_labels and not known):
        expected = list_some(task.labels, show=repr) if task.answers.has_labels else "scores"
        raise InputError(
            f"--teacher {folder}: it predicts {list_some(teacher.labels, show=repr)} (task {teacher.name}). Expected "
            f"labels of {expected} (task {task.name})."
        )
    if missing := {*task.labels} - known if not task.answers.has_confidence and task.answers.has_labels else ():
        raise InputError(
            f"--teacher {folder}: it knows no label {list_some(sorted(missing), show=repr)}, and with several labels a "
            "row it would teach that none has them; give a teacher of all labels."
        )

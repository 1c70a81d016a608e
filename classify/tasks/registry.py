"""Select the task of a table or of a trained model."""

from __future__ import annotations

from classify.data.reading import InputTables
from classify.errors import InputError
from classify.modeling.result_folder import read_labels, read_settings
from classify.tables.labels import BRACKETS, are_numbers_or_lists, refuse_objects, split_cell
from classify.tables.profile import parse_number, profile
from classify.tables.source import Question, QuestionError
from classify.tasks import multi_label, regression, single_label
from classify.tasks.base import Task
from classify.tasks.multi_label import count_cells, find_separator

# The file of each task, by the value of --task.
TASKS = {"single": single_label, "multi": multi_label, "regression": regression}


def recognize(tables: InputTables) -> Task:
    """The task of these labels: the one that --task names, or by their content.

    Raises InputError where the labels do not fit.
    """
    requested, columns, path = tables.config.task, tables.columns, tables.train.path
    if requested != "auto":
        if requested != "multi" and len(columns.labels) > 1:
            names = ", ".join(columns.labels)
            raise InputError(f"--task {requested}: --label-column names several columns: {names}; name one.")
        task: Task = TASKS[requested].from_tables(tables)
        return task
    if len(columns.labels) > 1:
        with_labels = (table for table in tables.every if table.has_column(columns.label))
        joined = {cell for table in with_labels for cell in table.dictionary_encode(columns.label)[0]}
        has_one = all(len(split_cell(cell, BRACKETS)) == 1 for cell in joined)
        return single_label.from_tables(tables) if has_one else multi_label.from_tables(tables)
    # Of all rows: few may be lists or objects.
    cells = count_cells(tables)
    refuse_objects(cells, f"{path}: column {columns.label!r}")
    column = profile(tables.train, columns.label, tables.config.unlabelled_value)
    is_named = tables.config.label_names is not None or tables.config.label_separator is not None
    if are_numbers_or_lists(cells) and not is_named:
        example = next(value for value in cells if "," in value)
        question = f"is {example!r} in column {columns.label!r} a number or several labels"
        raise QuestionError(path, [Question(question, (), ("--task regression", "--label-separator ,"))])
    lists = any("," in cell and parse_number(cell) is None for cell in cells)
    if column.is_score and tables.config.label_separator is None and not lists:
        return regression.from_tables(tables)
    if column.is_numeric and tables.config.label_separator is None and not lists:
        return single_label.from_tables(tables)
    if find_separator(tables, cells) is None:
        return single_label.from_tables(tables)
    return multi_label.from_tables(tables)


def trained_task(folder: str) -> Task:
    """The task of a result folder. Raises InputError if it is not a result folder, or for unknown tasks."""
    settings, files = read_settings(folder), {file.NAME: file for file in TASKS.values()}
    if settings["task"] not in files:
        raise InputError(
            f"classify.json: expected one of the tasks {', '.join(files)}. Got {settings['task']!r} instead; "
            "predict with the version that trained the model (see run.json)."
        )
    try:
        task: Task = files[settings["task"]].from_settings(read_labels(folder), settings)
        return task
    except KeyError as error:
        raise InputError(
            f"--model {folder}: classify.json has no {error}; restore the file of the training run."
        ) from None

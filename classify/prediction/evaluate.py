"""Read a table with labels, score a trained model on it, and write a folder that reports and comparisons read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split_record import SplitRecord
from classify.data.splits import mark_rows
from classify.errors import InputError, list_some
from classify.evaluation.metrics import Sampling, Scores, write_metrics
from classify.evaluation.scope import COLUMN, OUTSIDE_FILE
from classify.evaluation.scored_rows import ScoredRows
from classify.files import atomic_dir, make_folders, write_json
from classify.modeling.result_folder import describe_start, read_settings
from classify.prediction.predictor import Predictor
from classify.prediction.suggest import CHOSEN, RANDOM, UNCERTAIN
from classify.tables.labels import join_labels
from classify.tables.roles import TextColumns, find_trained, named_columns, rename_alike
from classify.tables.table import Table, TextHashes
from classify.tasks.base import MISSING, Task
from classify.tasks.columns import FILE, PredictionColumns
from classify.tasks.registry import trained_task

# Seed of the intervals.
_SEED = 42


@dataclass(frozen=True)
class LabelledTable:
    """A table, its text columns, the task, and the rows (n,) that have a label with their targets (n, ...).

    `trained` (n,): whether the model was trained on the text, of which `hashes` (n,) has the hash. `outside` (m,) are
    the rows whose label means none of the classes; `column` is that of the labels. Of a table in which some rows were
    chosen at random, these alone are scored, and not `not_random` others.
    """

    table: Table
    texts: TextColumns
    task: Task
    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[Any]
    hashes: TextHashes
    trained: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.int64]
    column: str
    not_random: int = 0


def read_labelled(model: str, table: Table, texts: TextColumns, label_column: str | None = None) -> LabelledTable:
    """Find the labels that a model was trained on in a table. Raises InputError with the candidates."""
    settings = read_settings(model)
    task = trained_task(model)
    known_from = f"the training data of {model}"
    if task.columns:
        table, names = _find_label_columns(table, [one.name for one in task.columns], label_column)
        column, targets = ",".join(names), task.targets.encode(table, ",".join(names), known_from)
        for one in task.columns:
            if one.name not in names:
                targets[:, one.cells] = MISSING
        rows = np.flatnonzero((targets != MISSING).any(axis=1))
    else:
        table, column = _find_label_column(table, settings.get("label_columns", []), label_column, task.labels)
        rows = np.flatnonzero(task.targets.labelled(table, column))
        targets = task.targets.encode(table, column, known_from)
    if not len(rows):
        raise InputError(f"{table.path}: expected rows with a label in column {column!r}. Got none.")
    not_random = 0
    if table.has_column(CHOSEN) and {*table.dictionary_encode(CHOSEN)[0]} & {UNCERTAIN, RANDOM}:
        at_random = rows[mark_rows(table, CHOSEN, RANDOM.__eq__)[rows]]
        if not len(at_random):
            raise InputError(f"{table.path}: none of the rows that were chosen at random has a label yet.")
        rows, not_random = at_random, len(rows) - len(at_random)
    targets = targets[rows]
    # An exported model has no scope: it cannot be scored on rows of no class.
    outside = np.flatnonzero(mark_rows(table, column, task.targets.classes.is_outside) & (task.scope is not None))
    hashes = table.text_hashes(texts.whole)[rows]
    trained = SplitRecord.find(model).find_trained(hashes)
    return LabelledTable(table, texts, task, rows, targets, hashes, trained, outside, column, not_random)


def _find_label_column(
    table: Table, trained: Sequence[str], flag: str | None, labels: Sequence[str]
) -> tuple[Table, str]:
    """The table with one column of labels, and its name."""
    names = named_columns(table, flag, "--label-column")
    if flag is None:
        table = rename_alike(table, trained)
        names = list(trained)
        if not all(map(table.has_column, names)) and all(map(table.has_column, labels)):
            names = list(labels)  # a column of 0 and 1 for each
        if not names:
            raise InputError(f"{table.path}: which column has the labels? The model does not say; give --label-column.")
        names = [find_trained(table, name, "--label-column") for name in names]
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
    joined = " + ".join(names)
    return join_labels(table, names, joined), joined


def _find_label_columns(table: Table, trained: Sequence[str], flag: str | None) -> tuple[Table, list[str]]:
    """The table, and those label columns of the model that it has, or that a flag names."""
    table = rename_alike(table, trained)
    names = list(filter(table.has_column, trained)) if flag is None else named_columns(table, flag, "--label-column")
    unknown = [name for name in names if name not in trained]
    if unknown or not names:
        listed = list_some(trained, show=repr)
        got = repr(unknown[0]) if unknown else f"columns {', '.join(map(repr, table.columns))}"
        raise InputError(f"{table.path}: expected some of the label columns {listed}. Got {got} instead.")
    return table, names


def evaluate(predictor: Predictor, labelled: LabelledTable, folder: Path) -> tuple[Scores, Scores | None]:
    """Score the rows that have a label and write metrics.json, predictions.csv, evaluation.parquet and run.json.

    The files have the form of a training run's; metrics.json has `model`, the folder of that run, and `trained_rows`,
    the number of rows that it was trained on. Returns the scores of all rows, and of the rows that it was not trained
    on, None where these are all or none. A collective; the main process writes.
    """
    table, task, targets, scope = labelled.table, labelled.task, labelled.targets, labelled.task.scope
    predictor.world.check_same({"data": " ".join(map(table.digest, labelled.texts.inputs))})
    every = np.sort(np.concatenate([labelled.rows, labelled.outside]))
    outputs = predictor.table_outputs(table, labelled.texts, every)
    inside, outside = (outputs[np.isin(every, rows)] for rows in (labelled.rows, labelled.outside))
    (logits, in_scope), trained = task.split(inside), labelled.trained

    def score(rows: npt.NDArray[np.bool_]) -> Scores:
        return task.scores.score(logits[rows], targets[rows], _SEED, sampling=Sampling(labelled.hashes[rows]))

    scores = score(np.ones(len(targets), dtype=bool))
    unseen = score(~trained) if trained.any() and not trained.all() else None
    with predictor.world.sync_errors():
        if not predictor.world.is_main:
            return scores, unseen
        predicted = task.answers.decide(task.answers.probabilities(logits))
        rejected: dict[str, Any] = {}
        if scope is not None and in_scope is not None:
            rejected[COLUMN] = scope.describe(in_scope, predicted == targets, outside[:, -1])
        columns = PredictionColumns(task)
        make_folders(folder)
        (folder / OUTSIDE_FILE).unlink(missing_ok=True)  # of an earlier evaluation
        with atomic_dir(folder) as made:  # or a full disk would leave files of two evaluations
            columns.write(made / FILE, table, labelled.rows, inside)
            if len(outside):
                columns.write(made / OUTSIDE_FILE, table, labelled.outside, outside)
            ScoredRows(labelled.hashes, targets, logits, predicted, None, trained).write(made)
            write_metrics(
                made,
                task.scores.majority(targets, targets),
                None if unseen is None else (unseen, None, task.scores.majority(targets, targets[~trained])),
                task=task.name,
                eval=None,
                test=scores.as_json(),
                calibration=None,
                baseline=None,
                model=os.path.abspath(predictor.folder),
                trained_rows=int(trained.sum()),
                texts=labelled.texts.as_settings(),
                label_column=labelled.column,
                probabilities=task.scores.probability_scores(logits, targets, _SEED),
                **rejected,
            )
            write_json(made / "run.json", {**describe_start(table, task.name), "status": "finished"})
    return scores, unseen

"""Score a trained model on a table with labels, and write a folder that reports and comparisons read."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.evaluation.metrics import Sampling, Scores
from classify.evaluation.predictions_file import write_predictions
from classify.evaluation.scope import COLUMN, OUTSIDE_FILE
from classify.evaluation.scored_rows import ScoredRows
from classify.files import atomic_dir, make_folders, write_json
from classify.prediction.columns import PredictionColumns
from classify.prediction.labelled import LabelledTable
from classify.prediction.predictor import Predictor
from classify.prediction.stream import logit_blocks
from classify.versions import versions

# Seed of the intervals.
_SEED = 42


def evaluate(
    predictor: Predictor, labelled: LabelledTable, folder: Path, trained: npt.NDArray[np.bool_]
) -> tuple[Scores, Scores | None]:
    """Score the rows that have a label and write metrics.json, predictions.csv, evaluation.parquet and run.json.

    Their form is that of a training run; metrics.json has `model`, the folder of that run, and `trained_rows`, how many
    of the rows it was trained on: those `trained` (rows,). Returns the scores of all rows, and of those that it was not
    trained on, None where these are all or none. A collective; the main process writes.
    """
    table, task, targets = labelled.table, labelled.task, labelled.targets
    predictor.world.check_same({"data": " ".join(map(table.digest, labelled.texts.inputs))})
    every = np.sort(np.concatenate([labelled.rows, labelled.outside]))
    outputs = np.concatenate([block for _, block in logit_blocks(predictor, table, labelled.texts, every)])
    inside, outside = (outputs[np.isin(every, rows)] for rows in (labelled.rows, labelled.outside))
    logits, texts = predictor.split_outputs(inside)[0], table.text_hashes(labelled.texts.whole)[labelled.rows]

    def score(rows: npt.NDArray[np.bool_]) -> Scores:
        return task.scores.score(logits[rows], targets[rows], _SEED, sampling=Sampling(texts[rows]))

    scores = score(np.ones(len(targets), dtype=bool))
    unseen = score(~trained) if trained.any() and not trained.all() else None
    with predictor.world.sync_errors():
        if predictor.world.is_main:
            _write(predictor, labelled, folder, inside, outside, scores, unseen, trained)
    return scores, unseen


def _write(
    predictor: Predictor,
    labelled: LabelledTable,
    folder: Path,
    inside: npt.NDArray[np.float32],
    outside: npt.NDArray[np.float32],
    scores: Scores,
    unseen: Scores | None,
    trained: npt.NDArray[np.bool_],
) -> None:
    table, task, targets, scope = labelled.table, labelled.task, labelled.targets, predictor.scope
    logits, in_scope = predictor.split_outputs(inside)
    probabilities = task.answers.probabilities(logits)
    columns = PredictionColumns(task, scope=scope)
    hashes = table.text_hashes(labelled.texts.whole)[labelled.rows]
    unseen_majority = {} if unseen is None else {"unseen": task.scores.majority(targets, targets[~trained]).metrics}
    metrics: dict[str, Any] = {
        "task": task.name,
        "model": os.path.abspath(predictor.folder),
        "trained_rows": int(trained.sum()),
        "texts": labelled.texts.as_settings(),
        "label_column": labelled.column,
        "eval": None,
        "test": {**scores.as_json(), **({} if unseen is None else {"unseen": unseen.as_json()})},
        "probabilities": task.scores.probability_scores(logits, targets, _SEED),
        "calibration": None,
        "baseline": None,
        "majority": {**task.scores.majority(targets, targets).as_json(), **unseen_majority},
    }
    if scope is not None and in_scope is not None:
        right = task.answers.decide(probabilities) == targets
        metrics[COLUMN] = scope.describe(in_scope, right, outside[:, -1])
    data = {"path": table.path, "sha256": table.sha256, "rows": len(table), "columns": table.columns}
    record = {"command": sys.orig_argv, "cwd": os.getcwd(), "task": task.name, "data": data, "guesses": []}
    record["date"] = datetime.now().isoformat(timespec="seconds")
    make_folders(folder)
    (folder / OUTSIDE_FILE).unlink(missing_ok=True)  # of an earlier evaluation
    with atomic_dir(folder) as made:  # or a full disk would leave files of two evaluations
        files = {"predictions.csv": (labelled.rows, inside)}
        if scope is not None and len(outside):
            files[OUTSIDE_FILE] = labelled.outside, outside
        for name, (rows, outputs) in files.items():
            write_predictions(made / name, table, rows, columns.names, columns.cells(outputs))
        ScoredRows(hashes, targets, logits, task.answers.decide(probabilities), None, trained).write(made)
        write_json(made / "metrics.json", metrics)
        write_json(made / "run.json", {**record, "versions": versions(), "status": "finished"})

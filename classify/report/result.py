"""A result folder, as the sections of a report read it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.languages import UNKNOWN
from classify.evaluation.metrics import SCORED_ROWS, display_name
from classify.evaluation.scored_rows import ScoredRows, Threshold
from classify.files import read_json
from classify.modeling.result_folder import read_settings, trained_texts
from classify.prediction.explanations import read_explanations
from classify.report.environment import count
from classify.tables.roles import TextColumns
from classify.tables.table import Table
from classify.tasks.base import Column, Task
from classify.tasks.columns import FOLD_COLUMN, PredictionColumns, read_predictions
from classify.tasks.registry import trained_task

# Precisions for which a threshold is reported.
PRECISIONS = (0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class Result:
    """The files of a finished run, or of an evaluation of the `model` of a run.

    Scores and rows are of texts that the model was not trained on, unless it was trained on all of them: `left_out` are
    the rows that are not here, and `places` (rows,) says where the others stand in predictions.csv. Each of several
    label columns has a view of its own, see `by_column`.
    """

    folder: Path
    model: Path
    settings: dict[str, Any]  # classify.json of the model
    metrics: Mapping[str, Any]
    scores: Mapping[str, Any]  # of the test split, or validation where there is none
    majority: Mapping[str, Any]
    baseline: Mapping[str, Any] | None
    run: Mapping[str, Any]
    log: tuple[Mapping[str, Any], ...]
    rows: ScoredRows
    places: npt.NDArray[np.int64]
    left_out: int
    table: Table  # predictions.csv
    columns: TextColumns
    texts: tuple[str, ...]
    task: Task
    added: tuple[str, ...]  # the columns of the table that hold predictions
    column: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Read a folder. Raises OSError, ValueError or InputError where a file is missing or damaged."""
        metrics = read_json(folder / "metrics.json")
        model = Path(metrics.get("model", folder))
        settings = read_settings(str(model))
        table, every = read_predictions(folder), ScoredRows.read(folder)
        places = every.unseen
        if len(places) < len(table):
            table = replace(table, arrow=table.arrow.take(places))
        columns = trained_texts(metrics.get("texts", settings))
        cells = zip(*(table.column(name) for name in columns.named), strict=True)
        task = trained_task(str(model))
        scores, majority, baseline = (
            entry and {**entry, **entry.get("unseen", {})}
            for entry in (metrics["test"] or metrics["eval"], metrics["majority"], metrics["baseline"])
        )
        return cls(
            folder=folder,
            model=model,
            settings=settings,
            metrics=metrics,
            scores=scores,
            majority=majority,
            baseline=baseline,
            run=read_json(folder / "run.json"),
            log=_read_log(folder / "train_log.jsonl"),
            rows=every.take(places),
            places=places,
            left_out=len(every.targets) - len(places),
            table=table,
            columns=columns,
            texts=tuple(map(" · ".join, cells)),
            task=task,
            added=(*PredictionColumns(task).names, FOLD_COLUMN),
        )

    @functools.cached_property
    def by_column(self) -> dict[str, Result]:
        """The result of each of several label columns that has scores, as if it were the only one; {} where it is."""
        scored = self.scores.get("columns", {})
        return {column.name: self._of_column(column) for column in self.task.columns if column.name in scored}

    def _of_column(self, column: Column) -> Result:
        name, rows = column.name, column.rows(self.rows.targets)
        has_thresholds = column.task.answers.thresholds is not None
        keys = ("method", "folds", *(("thresholds",) if has_thresholds else ()))
        of_run = {key: self.scores[key] for key in keys if key in self.scores}
        calibration = (self.metrics.get("calibration") or {"columns": {}})["columns"].get(name)
        return replace(
            self,
            metrics={**self.metrics, "calibration": calibration},
            scores={**of_run, **self.scores["columns"][name]},
            majority=self.majority["columns"][name],
            baseline=self.baseline and {**self.metrics["baseline"]["columns"][name], **self.baseline["columns"][name]},
            rows=column.take(self.rows),
            places=self.places[rows],
            table=self.table.with_arrow(self.table.arrow.take(rows)),
            texts=tuple(self.texts[row] for row in rows.tolist()),
            task=column.task,
            column=name,
        )

    @property
    def is_training(self) -> bool:
        return self.model == self.folder

    @property
    def trained_rows(self) -> int:
        return len(self.texts) if self.rows.trained is not None and self.rows.trained.all() else 0

    @property
    def language(self) -> str | None:
        shares = self.settings.get("languages", {}) if self.is_training else {}
        return next((code for code, share in shares.items() if code != UNKNOWN and share > 0.5), None)

    @functools.cached_property
    def thresholds(self) -> list[Threshold]:
        rows = self.independent
        shown = self.probabilities[rows], self.rows.targets[rows]
        return list(filter(None, (self.task.answers.find_threshold(*shown, precision) for precision in PRECISIONS)))

    @functools.cached_property
    def independent(self) -> npt.NDArray[np.int64]:
        return self.rows.independent if not self.trained_rows else replace(self.rows, trained=None).independent

    @functools.cached_property
    def explanations(self) -> Mapping[int, Mapping[str, Any]]:
        numbers = {place: number for number, place in enumerate(self.places.tolist())}
        return {numbers[row]: one for row, one in read_explanations(self.folder, self.column).items() if row in numbers}

    @property
    def scored(self) -> str:
        """How many rows were scored, and which, e.g. "200 test rows"."""
        rows = self.scores["rows"]
        if method := self.scores.get("method"):
            return f"{count(rows, 'row')} by {method}"
        split = "row" if not self.is_training else "test row" if self.metrics["test"] else "validation row"
        chosen = self.is_training and self.scores.get("thresholds") == SCORED_ROWS
        return (
            count(rows, split)
            + (", on which the thresholds were chosen, too" if chosen else "")
            + (f", without {count(self.left_out, 'row')} whose text was trained on" if self.left_out else "")
        )

    def score_row(self, name: str) -> dict[str, Any]:
        """A metric with its interval, beside the baseline's and that of the most frequent label."""
        return {
            "name": display_name(name),
            "value": self.scores[name],
            "interval": self.scores.get(f"{name}_interval"),
            "baseline": (self.baseline or {}).get(name),
            "majority": self.majority.get(name),
        }

    @functools.cached_property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(rows, outputs) the calibrated probabilities, or (rows, 1) scores."""
        return self.task.answers.probabilities(self.rows.logits)

    @functools.cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.probabilities.max(axis=1))

    @functools.cached_property
    def predicted(self) -> npt.NDArray[Any]:
        return self.task.answers.decide(self.probabilities) if self.rows.predicted is None else self.rows.predicted


def _read_log(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The lines of train_log.jsonl; the last one may be torn."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return tuple(entries)

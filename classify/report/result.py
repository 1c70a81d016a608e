"""A result folder, as the sections of a report read it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.languages import UNKNOWN
from classify.evaluation.automation import Threshold, find_threshold
from classify.evaluation.metrics import display_name
from classify.evaluation.multi_label_metrics import SCORED_ROWS
from classify.evaluation.predictions_file import FOLD_COLUMN, read_predictions
from classify.evaluation.scope import COLUMN
from classify.evaluation.scored_rows import ScoredRows
from classify.files import read_json
from classify.modeling.result_folder import read_settings, trained_texts
from classify.prediction.explanations import read_explanations
from classify.report.environment import count
from classify.tables.table import Table
from classify.tasks.base import Task
from classify.tasks.registry import trained_task

# Precisions for which a threshold is reported.
PRECISIONS = (0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class Result:
    """The files of a finished run, or of an evaluation of the `model` of a run."""

    folder: Path
    model: Path
    settings: dict[str, Any]  # classify.json of the model
    metrics: Mapping[str, Any]
    run: Mapping[str, Any]
    log: tuple[Mapping[str, Any], ...]
    rows: ScoredRows
    table: Table  # predictions.csv
    texts: tuple[str, ...]
    task: Task

    places: npt.NDArray[np.int64]  # of these rows in predictions.csv

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Read a folder. Raises OSError, ValueError or InputError where a file is missing or damaged.

        Rows whose text the model was trained on are left out, unless all are: a report is about new texts.
        """
        metrics = read_json(folder / "metrics.json")
        model = Path(metrics.get("model", folder))
        settings = read_settings(str(model))
        table = read_predictions(folder)
        rows = ScoredRows.read(folder)
        places = np.arange(len(rows.targets))
        if rows.trained is not None and not rows.trained.all():
            places = np.flatnonzero(~rows.trained)
            table, rows = replace(table, arrow=table.arrow.take(places)), rows.take(places)
        columns = [table.column(name) for name in trained_texts(metrics.get("texts", settings)).named]
        return cls(
            folder,
            model,
            settings,
            metrics,
            read_json(folder / "run.json"),
            _read_log(folder / "train_log.jsonl"),
            rows,
            table,
            tuple(" · ".join(cells) for cells in zip(*columns, strict=True)),
            trained_task(str(model)),
            places,
        )

    @property
    def is_training(self) -> bool:
        return self.model == self.folder

    @property
    def trained_rows(self) -> int:
        """How many rows there are, if the model was trained on all of them; else 0."""
        return len(self.texts) if self.rows.trained is not None and self.rows.trained.all() else 0

    @property
    def language(self) -> str | None:
        """The code of the language that most texts are in; None where they are mixed, or it is not known."""
        shares = self.settings.get("languages", {}) if self.is_training else {}
        return next((code for code, share in shares.items() if code != UNKNOWN and share > 0.5), None)

    @functools.cached_property
    def thresholds(self) -> list[Threshold]:
        """The thresholds of confidence for the `PRECISIONS` that can be reached."""
        return self.find_thresholds(PRECISIONS)

    def find_thresholds(self, precisions: Iterable[float]) -> list[Threshold]:
        """The thresholds of confidence for those of the `precisions` that can be reached."""
        rows = self.independent
        confidence, right = self.probabilities.max(axis=1)[rows], (self.predicted == self.rows.targets)[rows]
        found = (find_threshold(confidence, right, precision) for precision in precisions)
        return [one for one in found if one is not None]

    @property
    def reads_pairs(self) -> bool:
        return trained_texts(self.settings).pair is not None

    @property
    def other_columns(self) -> dict[str, list[str]]:
        texts = trained_texts(self.metrics.get("texts", self.settings)).named
        labels = (*self.settings.get("label_columns", ()), self.metrics.get("label_column"))
        used = {*texts, *labels, *self.task.answers.columns(), FOLD_COLUMN, COLUMN}
        return {name: self.table.column(name) for name in self.table.columns if name not in used}

    @functools.cached_property
    def training_scores(self) -> Mapping[str, Any]:
        metrics = read_json(self.model / "metrics.json")
        return dict(metrics["test"] or metrics["eval"])

    @property
    def scores(self) -> Mapping[str, Any]:
        """The metrics of the rows: of the test split, or validation where there is none."""
        return self._of_rows(self._scores)

    @property
    def _scores(self) -> Mapping[str, Any]:
        scores: Mapping[str, Any] = self.metrics["test"] or self.metrics["eval"]
        return scores

    def _of_rows(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """An entry of metrics.json with the metrics of the rows that the model was not trained on."""
        return {**entry, **entry.get("unseen", {})}

    @property
    def majority(self) -> Mapping[str, Any]:
        return self._of_rows(self.metrics["majority"])

    @property
    def baseline(self) -> Mapping[str, Any] | None:
        return self.metrics["baseline"] and self._of_rows(self.metrics["baseline"])

    @functools.cached_property
    def independent(self) -> npt.NDArray[np.int64]:
        """The rows that thresholds, tests and calibration go by; see `ScoredRows.independent`."""
        return self.rows.independent if not self.trained_rows else replace(self.rows, trained=None).independent

    @functools.cached_property
    def explanations(self) -> Mapping[int, Mapping[str, Any]]:
        """The explanations of rows by their number here; see `read_explanations`."""
        numbers = {place: number for number, place in enumerate(self.places.tolist())}
        return {numbers[row]: one for row, one in read_explanations(self.folder).items() if row in numbers}

    @property
    def folds(self) -> int:
        return int(self.scores.get("folds", 0))

    @property
    def scored(self) -> str:
        """How many rows were scored, and which, e.g. "200 test rows"."""
        rows = self.scores["rows"]
        chosen = ", on which the thresholds were chosen, too" if self.scores.get("thresholds") == SCORED_ROWS else ""
        if method := self.scores.get("method"):
            return f"{count(rows, 'row')} by {method}"
        if not self.is_training:
            return count(rows, "row") + self._left_out
        return count(rows, "test row" if self.metrics["test"] else "validation row") + chosen + self._left_out

    @property
    def _left_out(self) -> str:
        """In words that rows were trained on; "" where none was, or all."""
        if "unseen" not in self._scores:
            return ""
        seen = int(self._scores["rows"]) - int(self.scores["rows"])
        return f", without {count(seen, 'row')} whose text was trained on"

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

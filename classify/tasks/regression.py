"""Regression: each row has a number. While a model is trained its output is the standardized target."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify import tasks
from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels
from classify.data.splits import Targets, mark_rows
from classify.errors import EXCERPT, InputError
from classify.evaluation.metrics import (
    INDEPENDENT,
    NORMAL_QUANTILE,
    Array,
    MajorityBaseline,
    Sampling,
    Scores as SplitScores,
)
from classify.findings import Finding, decided
from classify.tables.labels import MIN_ROWS, no_such_label
from classify.tables.profile import parse_number
from classify.tables.table import Table
from classify.tasks.base import EXACT, Answers, FitRows, Head, Layer, Loss, Scores, Task
from classify.tasks.label_columns import check_empty_labels

NAME = "regression"
# Numbers with a comma that may be thousands, as 1,234, or fractions.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
# Number of parts of the sorted targets by which splits are stratified.
_STRATA = 5
# Strength of the ridge on features that were trained on the same targets.
_TRAINED_ENCODER_ALPHA = 1e4


@dataclass(frozen=True, eq=False)
class NumberTargets(Targets):
    """Numbers (rows,) float32. `unit` is their standard deviation, `unlabelled` the cell that means none, if any."""

    dtype = np.float32

    unit: float = 1.0
    unlabelled: str | None = None

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        return mark_rows(table, column, self._is_label)

    def _is_label(self, cell: str) -> bool:
        return bool(cell.strip()) and not _is_same(cell.strip(), self.unlabelled)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.float32]:
        if not table.has_column(column):
            return np.zeros(len(table), dtype=np.float32)
        values, numbers = table.dictionary_encode(column)
        labelled = [(value, self._is_label(value)) for value in values]
        scores = [value for value, is_label in labelled if is_label]
        with_comma = [score.strip() for score in scores if "," in score]
        if with_comma and all(map(_THOUSANDS.fullmatch, with_comma)):
            example = with_comma[0]
            raise InputError(
                f"{table.path}: column {column!r} holds {example!r}, which may be a thousand or a fraction; write "
                "thousands without a comma, or fractions with a point."
            )
        parsed = [parse_number(value.strip()) if is_label else 0.0 for value, is_label in labelled]
        targets = np.array(parsed, dtype=np.float32)  # None becomes NaN
        wrong = np.flatnonzero(~np.isfinite(targets))
        if len(wrong):
            where = table.describe_rows(np.flatnonzero(np.isin(numbers, wrong)).tolist())
            cell = values[wrong[0]].strip()[:EXCERPT]
            raise InputError(
                f"{where}: expected a finite number in column {column!r}. Got {cell!r} instead; if that means no "
                f"score, empty the cells (or train with --unlabelled-value={shlex.quote(cell)}), else correct it."
            )
        return targets[numbers]

    def soften(self, targets: Array, soft: SoftLabels) -> Array:
        if soft.labels:
            raise InputError("--soft-labels: a score has no probabilities; drop the flag.")
        return targets

    def decode(self, targets: Array) -> list[float]:
        return [float(score) for score in targets]

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """The fifth of the sorted targets that each row is in."""
        cuts = np.unique(np.quantile(targets, np.arange(1, _STRATA) / _STRATA)) if len(targets) else np.empty(0)
        return np.searchsorted(cuts, targets, side="right").astype(np.int64)

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return np.array([len(targets)])

    def summary(self, targets: Array) -> str:
        low, first, middle, third, high = np.quantile(targets, [0, 0.25, 0.5, 0.75, 1]).tolist()
        return f"scores: {low:g} to {high:g}, quartiles {first:g}, {middle:g}, {third:g}"

    def settings(self) -> dict[str, Any]:
        return {"unit": self.unit, **({} if self.unlabelled is None else {"unlabelled_value": self.unlabelled})}

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """1 for equal numbers, falling to 0 at two standard deviations."""
        distance = np.abs(targets[:, None] - targets[None, :]) / self.unit
        return np.clip(1 - distance / 2, 0, 1).astype(np.float32)


class NumberHead(Head):
    """One output, trained by the squared error of standardized targets: minus `center`, over `scale`."""

    problem_type = "regression"
    probe = "ridge regression"

    def check(self, config: TrainingConfig) -> None:
        super().check(config)
        requested = {
            "--class-weights": config.class_weights != "none",
            "--loss focal": config.loss == "focal",
            "--label-smoothing-factor": config.label_smoothing_factor > 0,
        }
        if flags := [flag for flag, is_given in requested.items() if is_given]:
            raise InputError(f"{' and '.join(flags)}: scores have no classes; drop the flag, or give --task single.")
        if config.save_dtype != "float32":
            raise InputError(
                f"--save-dtype {config.save_dtype}: the output layer holds the mean of the scores, which 16 bits would "
                "round or overflow; drop the flag."
            )

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        return tasks.losses.SquaredError(self.center, self.scale)

    def trained_penalty(self, *, is_final: bool) -> float:
        return _TRAINED_ENCODER_ALPHA

    def choose_standard(self, rows: FitRows) -> float:
        return float(self._fit_ridge(rows, None).alpha_)

    def fit_standard(self, rows: FitRows, penalty: float | None) -> Layer:
        """Fit a ridge regression, whose alpha is the penalty; there are no classes to weight."""
        solver = self._fit_ridge(rows, penalty)
        return np.atleast_2d(solver.coef_), np.atleast_1d(solver.intercept_)

    def _fit_ridge(self, rows: FitRows, alpha: float | None) -> Any:
        return tasks.heads.fit_ridge(rows.features, (rows.targets - self.center) / self.scale, alpha, rows.weights)

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        return np.array([self.scale], dtype=np.float32), np.array([self.center], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class NumberAnswers(Answers):
    """A score: the output times `scale` plus `center`. A finished model's output layer contains them."""

    purpose = "gives a text a score"
    outputs = "scores"
    has_labels = False
    first_columns = ("predicted_score",)
    set_columns = ("score_low", "score_high")
    sections = (
        "next_steps", "scores", "scatter", "errors", "slices", "sources", "curve", "usage", "data", "course",
        "decisions",
    )  # fmt: skip

    center: float = 0.0
    scale: float = 1.0

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return logits.astype(np.float64) * self.scale + self.center

    def decide(self, probabilities: Array) -> npt.NDArray[np.float64]:
        return probabilities[:, 0]

    def fitted(self, probabilities: Array, targets: Array) -> Self:
        return replace(self, center=0.0, scale=1.0)

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        for row in probabilities:
            yield [f"{row[0]:{digits}}"]

    def misfit(self, probabilities: Array, targets: Array) -> npt.NDArray[np.float64]:
        return np.asarray(np.abs(probabilities[:, 0] - targets), dtype=np.float64)

    def set_fields(self, probabilities: Array, limit: float, digits: str = EXACT) -> Iterator[list[str]]:
        for row in probabilities:
            yield [f"{row[0] - limit:{digits}}", f"{row[0] + limit:{digits}}"]


@dataclass(frozen=True, eq=False)
class NumberScores(Scores):
    """Pearson's and Spearman's correlation, mean squared and mean absolute error; the loss is in squared `unit`s."""

    primary = "pearson"
    row_metric = "mae"
    selection = ("pearson", "spearman", "mse", "mae", "loss")

    unit: float = 1.0

    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        from scipy.stats import rankdata

        predicted, targets = predicted.astype(np.float64), targets.astype(np.float64)
        errors = predicted - targets
        return {
            "pearson": _correlation(predicted, targets),
            "spearman": _correlation(rankdata(predicted), rankdata(targets)),
            "mse": float(np.mean(errors**2)),
            "mae": float(np.mean(np.abs(errors))),
        }

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        metrics = self.metrics(self.answers.decide(self.answers.probabilities(logits)), targets)
        intervals = {"pearson": correlation_interval(metrics["pearson"], len(targets), sampling)}
        return SplitScores(metrics, len(targets), {"loss": metrics["mse"] / self.unit**2}, intervals)

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        return -np.abs(predicted.astype(np.float64) - targets)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        mean = float(train_targets.mean(dtype=np.float64))
        return MajorityBaseline(f"{mean:.4g}", self.metrics(np.full(len(targets), mean), targets))

    def linear_model(self, targets: Array, seed: int) -> tuple[str, Any, int]:
        return tasks.baseline.RIDGE, tasks.baseline.ridge_regression(random_state=seed), 1


def make(
    labels: Sequence[str],
    center: float = 0.0,
    scale: float = 1.0,
    unit: float = 1.0,
    unlabelled: str | None = None,
    findings: Sequence[Finding] = (),
) -> Task:
    """The task of one output; `center` and `scale` are mean and standard deviation of the targets it is trained on."""
    names = list(labels)
    targets = NumberTargets(names, findings=tuple(findings), unit=unit, unlabelled=unlabelled)
    answers = NumberAnswers(names, center=center, scale=scale)
    head = NumberHead(names, center=center, scale=scale)
    return Task(NAME, targets, head, NumberScores(names, answers, unit, row_unit=unit), answers)


def from_tables(tables: InputTables) -> Task:
    """The task of the training table's numbers. Raises InputError where they do not fit."""
    if tables.config.label_names is not None:
        raise InputError("--label-names: scores have no classes; drop the flag, or give --task single.")
    check_empty_labels(tables)
    table, column = tables.train, tables.columns.label
    unlabelled = tables.config.unlabelled_value
    cells, _ = table.dictionary_encode(column)
    if unlabelled is not None and not any(_is_same(cell.strip(), unlabelled) for cell in cells):
        raise InputError(no_such_label(unlabelled))
    targets = NumberTargets([column], unlabelled=unlabelled)
    values = targets.encode(table, column, "--data")[targets.labelled(table, column)]
    if len(values) < MIN_ROWS:
        raise InputError(f"{table.path}: expected at least {MIN_ROWS} rows with a number. Got {len(values)} instead.")
    center, scale = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    if scale == 0:
        raise InputError(
            f"{table.path}: expected different numbers in column {column!r}. Got {values[0]:g} in all rows "
            "instead; name another column with --label-column."
        )
    why = f"numbers with mean {center:.4g} and standard deviation {scale:.4g}"
    task = decided("task", "a score for each row", why, "--task single, --label-column", True)
    return make([column], center, scale, scale, unlabelled, [task])


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    return make(labels, unit=settings["unit"], unlabelled=settings.get("unlabelled_value"))


def _correlation(first: Array, second: Array) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    # Of a constant the mean is rounded, so differences from it need not be 0.
    if not len(first) or not np.ptp(first) or not np.ptp(second):
        return 0.0
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm > 0 else 0.0


def correlation_interval(correlation: float, rows: int, sampling: Sampling = INDEPENDENT) -> tuple[float, float] | None:
    """The 95 % interval of a correlation by Fisher's transformation (1921); None for fewer than 4 texts."""
    rows = int((sampling.group(rows).max(initial=-1) + 1) / sampling.variance)
    if rows < 4 or abs(correlation) >= 1:
        return None
    middle, half = np.arctanh(correlation), NORMAL_QUANTILE / np.sqrt(rows - 3)
    return float(np.tanh(middle - half)), float(np.tanh(middle + half))


def _is_same(cell: str, value: str | None) -> bool:
    """Whether a cell is a value, or the same number: programs write -1 as -1.0."""
    if value is None or cell == value:
        return cell == value
    number = parse_number(cell)
    return number is not None and number == parse_number(value)

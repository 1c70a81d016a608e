"""Multi-label classification: each row has any number of labels, none included."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify import evaluation, tasks
from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels
from classify.data.splits import Targets, mark_rows
from classify.errors import InputError
from classify.evaluation.metrics import (
    INDEPENDENT,
    Array,
    MajorityBaseline,
    Sampling,
    Scores as SplitScores,
    binary_cross_entropy,
    label_scores,
    sigmoid,
)
from classify.findings import decided
from classify.tables.labels import (
    BRACKETS,
    SEPARATORS,
    ClassNames,
    is_no_label,
    list_counts,
    refuse_unknown,
    sort_labels,
    split_cell,
    value_counts,
)
from classify.tables.table import Table
from classify.tasks.base import EXACT, JOIN, Answers, FitRows, Head, Layer, Loss, Scores, Task, Weights, format_value
from classify.tasks.label_columns import add_soft_labels, check_empty_labels, find_class_names

NAME = "multi_label"
_THRESHOLD = 0.5
# Number of labels whose cross-validation chooses C for all.
_CHOOSING_LABELS = 4
# Probabilities nearer to 0 or 1 have the log odds of this one.
_LEAST = 1e-6
# Largest weight of a label's rows under --class-weights balanced.
_MOST_WEIGHT = 100.0


@dataclass(frozen=True, eq=False)
class LabelSetTargets(Targets):
    """0 or 1 for each label, (rows, labels) uint8.

    `separator` stands between the labels of a cell of the training table. `empty_is_labelled`: a row with an empty cell
    has no label, which is known.
    """

    per_label = True
    dtype = np.uint8

    separator: str | None = JOIN
    empty_is_labelled: bool = True

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        """An empty cell, or list, is a row without labels, unless a flag says what else to do with it.

        Where all cells are empty no row has a label: a file may hold no labels of a test.
        """
        marks = mark_rows(table, column, self._is_known)
        return marks & mark_rows(table, column, lambda cell: bool(cell.strip())).any()

    def _is_known(self, cell: str) -> bool:
        labels = [label for label in self._split(cell.strip()) if not is_no_label(label)]
        return not self.classes.unlabelled.issuperset(labels) if labels else self.empty_is_labelled

    def _split(self, cell: str) -> list[str]:
        """The labels of a cell as the training table separates them, else as a sign that divides it into known ones."""
        trained = split_cell(cell, self.separator)
        ways = itertools.chain([trained], (split_cell(cell, separator) for separator in (None, *SEPARATORS)))
        return next((labels for labels in ways if all(map(self.classes.knows, labels))), trained)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.uint8]:
        if not table.has_column(column):
            return np.zeros((len(table), len(self.labels)), dtype=np.uint8)
        values, numbers = table.dictionary_encode(column)
        named = [[name for label in self._split(value) if (name := self.classes.of(label))] for value in values]
        refuse_unknown(named, numbers, table, self.labels, known_from)
        index = {name: number for number, name in enumerate(self.labels)}
        targets = np.zeros((len(values), len(self.labels)), dtype=np.uint8)
        for place, names in enumerate(named):
            targets[place, [index[name] for name in names]] = 1
        return targets[numbers]

    def soften(self, targets: Array, soft: SoftLabels) -> npt.NDArray[np.float32]:
        """The probability of each label (rows, labels); 0 or 1 in rows without, or with other labels."""
        likely = soft.replace(targets, self.labels, self.classes)
        corrected = ((likely >= _THRESHOLD) != (targets > 0)).any(axis=1)
        return np.where(corrected[:, None], targets, likely).astype(np.float32)

    def decode(self, targets: Array) -> list[list[str]]:
        return [[self.labels[number] for number in np.flatnonzero(row)] for row in targets]

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """Each row's rarest label, and one more number for rows without any."""
        targets = likely_labels(targets)
        counts = targets.sum(axis=0, dtype=np.int64)
        rarity = np.where(targets > 0, counts, np.iinfo(np.int64).max)
        return np.where(targets.any(axis=1), rarity.argmin(axis=1), len(self.labels))

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return np.asarray(targets.sum(axis=0, dtype=np.int64))

    def summary(self, targets: Array) -> str:
        counts, none = self.label_counts(targets), int((~targets.any(axis=1)).sum())
        return (
            f"labels: {len(counts)}, {counts.sum() / max(1, len(targets)):.2f} per row, none in {none} rows: "
            f"{list_counts(self.labels, counts)}"
        )

    def settings(self) -> dict[str, Any]:
        return {"empty_is_labelled": self.empty_is_labelled, **self.classes.as_settings()}

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """The share of common labels (Jaccard); 1 for two rows without any."""
        targets = likely_labels(targets)
        both = targets.astype(np.float32) @ targets.T.astype(np.float32)
        sizes = targets.sum(axis=1, dtype=np.float32)
        either = sizes[:, None] + sizes[None, :] - both
        return np.where(either > 0, both / np.maximum(either, 1), 1.0).astype(np.float32)


class LabelSetHead(Head):
    """An output per label, trained by binary cross-entropy."""

    problem_type = "multi_label_classification"
    probe = "one logistic regression per label"

    def balance(self, targets: Array) -> Weights:
        """The weights of the rows that have each label, next to 1 for the others."""
        counts = likely_labels(targets).sum(axis=0, dtype=np.int64)
        return np.clip((len(targets) - counts) / np.maximum(counts, 1), 1.0, _MOST_WEIGHT).astype(np.float32)

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        gamma, smoothing = tasks.losses.FOCAL_GAMMA if config.loss == "focal" else 0.0, config.label_smoothing_factor
        return tasks.losses.BinaryCrossEntropy(smoothing, self.class_weights(config, targets), gamma)

    def trained_penalty(self, *, is_final: bool) -> float:
        return tasks.heads.TRAINED_ENCODER_C

    def choose_standard(self, rows: FitRows) -> float:
        """The mean C, of its logarithm, of the most balanced labels."""
        targets = likely_labels(rows.targets)
        counts = targets.sum(axis=0, dtype=np.int64)
        balance = np.minimum(counts, len(targets) - counts)
        options = []
        for number in np.argsort(-balance)[:_CHOOSING_LABELS].tolist():
            if balance[number]:
                weights = _weigh_rows(targets, number, rows.class_weights, rows.weights)
                options.append(tasks.heads.choose_c(rows.features, targets[:, number].astype(np.int64), weights))
        return float(np.exp(np.mean(np.log(options)))) if options else 1.0

    def fit_standard(self, rows: FitRows, penalty: float | None) -> Layer:
        """Fit one logistic regression per label, all with one C; a label of no row, or of all, gets zero weights.

        A row with a probability is one with the label and one without, weighted by it.
        """
        c = self.choose_standard(rows) if penalty is None else penalty
        shares, targets, places = None, rows.targets, np.arange(len(rows.targets))
        if targets.dtype != np.uint8:
            shares, places = np.concatenate([targets, 1 - targets]), np.tile(places, 2)
            targets = np.concatenate([np.ones_like(targets, np.uint8), np.zeros_like(targets, np.uint8)])
            rows = rows.take(places)
        counts = (targets if shares is None else targets * shares).sum(axis=0, dtype=np.float64)
        total, outputs = len(np.unique(places)), len(self.labels)
        weight, bias = np.zeros((outputs, rows.features.shape[1])), np.zeros(outputs)
        for number in range(outputs):
            if 0 < counts[number] < total:
                share = None if shares is None else shares[:, number]
                weights = _weigh_rows(targets, number, rows.class_weights, rows.weights, share)
                if weights is not None and shares is not None:
                    weights = np.asarray(weights / 2, dtype=np.float32)  # of two that stand for one
                solver = tasks.heads.fit_logistic(rows.features, targets[:, number], c, weights)
                weight[number], bias[number] = solver.coef_[0], solver.intercept_[0]
            else:  # half a row of the other kind
                chance = (counts[number] + 0.5) / (total + 1)
                bias[number] = math.log(chance / (1 - chance))
        return weight, bias

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        if not calibrate:
            return None
        pairs = zip(logits.T, targets.T, strict=True)
        scale, shift = np.array([evaluation.calibration.fit_scale_and_shift(*pair) for pair in pairs], np.float32).T
        return scale, shift


class LabelSetAnswers(Answers):
    """The labels whose probability reaches their threshold, and the probability of each label."""

    thresholds: npt.NDArray[np.float64]
    purpose = "assigns any of {} labels to a text"
    first_columns = ("predicted_labels",)
    sections = (
        "next_steps", "scores", "per_class", "errors", "slices", "sources", "curve", "usage",
        "data", "course", "decisions",
    )  # fmt: skip

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return sigmoid(logits)

    def decide(self, probabilities: Array) -> npt.NDArray[np.uint8]:
        return (probabilities >= self.thresholds).astype(np.uint8)

    def fitted(self, probabilities: Array, targets: Array) -> Self:
        return replace(self, thresholds=evaluation.calibration.choose_thresholds(probabilities, targets))

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        predicted = self.decide(probabilities) if predicted is None else predicted
        for row in predicted:
            yield [JOIN.join(self.labels[number] for number in np.flatnonzero(row))]

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        """The smallest distance of a label's log odds from its threshold's."""
        odds, limits = (
            np.log(values / (1 - values))
            for values in (numbers.clip(_LEAST, 1 - _LEAST) for numbers in (probabilities, self.thresholds))
        )
        return np.asarray(np.abs(odds - limits).min(axis=1))


class LabelSetScores(Scores):
    """Micro and macro F1, Jaccard, the share of rows with exactly the right labels, and average precision."""

    primary = "macro_f1"
    row_metric = "jaccard"
    selection = (
        "average_precision", "micro_f1", "macro_f1", "weighted_f1", "jaccard", "subset_accuracy", "roc_auc", "loss",
    )  # fmt: skip

    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        right, total = (predicted & targets).sum(axis=0), predicted.sum(axis=0) + targets.sum(axis=0)
        micro, macro = evaluation.bootstrap.f1_of_counts(right[None], total[None])[0]
        return {
            "micro_f1": float(micro),
            "macro_f1": float(macro),
            "jaccard": float(self.row_scores(predicted, targets).mean()),
            "subset_accuracy": float((predicted == targets).all(axis=1).mean()),
        }

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        """Average precision is the mean over labels with a row.

        The area under the ROC curve is the mean over those that also have a row without them.
        """
        from sklearn.metrics import average_precision_score, roc_auc_score

        assert self.answers.thresholds is not None
        probabilities = self.answers.probabilities(logits)
        predicted = self.answers.decide(probabilities) if predicted is None else predicted
        rows, guessed = targets.sum(axis=0, dtype=np.float64), predicted.sum(axis=0, dtype=np.float64)
        per_class = label_scores(self.labels, (predicted & targets).sum(axis=0), guessed, rows)
        precisions = []
        for number, (label, threshold) in enumerate(zip(self.labels, self.answers.thresholds.tolist(), strict=True)):
            pair = targets[:, number], probabilities[:, number]
            precisions.append(float(average_precision_score(*pair)) if rows[number] else 0.0)
            per_class[label] |= {"average_precision": precisions[-1], "threshold": threshold}
        occurring = [precision for precision, count in zip(precisions, rows, strict=True) if count]
        varied = np.flatnonzero((rows > 0) & (rows < len(targets)))
        f1 = [one["f1"] for one in per_class.values()]
        details = {
            "weighted_f1": float(np.average(f1, weights=rows)) if rows.any() else 0.0,
            "roc_auc": float(roc_auc_score(targets[:, varied], probabilities[:, varied])) if len(varied) else 0.5,
            "loss": binary_cross_entropy(logits, targets),
        }
        average = float(np.mean(occurring)) if occurring else 0.0
        intervals = evaluation.bootstrap.f1_intervals(targets, predicted, seed, sampling)
        metrics = {**self.metrics(predicted, targets), "average_precision": average}
        return SplitScores(metrics, len(targets), details, intervals, per_class)

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """Common over all labels of each row (Jaccard), 1 where both are none (Godbole and Sarawagi, 2004)."""
        both, either = (predicted & targets).sum(axis=1), (predicted | targets).sum(axis=1)
        return np.where(either > 0, both / np.maximum(either, 1), 1.0)

    def renumber(self, values: Array, labels: Sequence[str]) -> npt.NDArray[np.uint8]:
        """A column for each of `labels`, 0 for labels that this model does not know."""
        renumbered = np.zeros((len(values), len(labels)), dtype=np.uint8)
        renumbered[:, [labels.index(label) for label in self.labels]] = values
        return renumbered

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any]:
        return evaluation.calibration.binary_scores(logits.ravel(), targets.ravel(), seed)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        sets, counts = np.unique(train_targets, axis=0, return_counts=True)
        frequent = sets[counts.argmax()]
        label = format_value([self.labels[number] for number in np.flatnonzero(frequent)])
        return MajorityBaseline(label, self.metrics(np.repeat(frequent[None], len(targets), axis=0), targets))

    def linear_model(self, targets: Array, seed: int) -> tuple[str, Any, int]:
        return tasks.baseline.LOGREG, tasks.baseline.ThresholdedRegression(seed), len(self.labels)


def make(labels: Sequence[str], thresholds: Sequence[float] | None = None, **reading: Any) -> Task:
    names = list(labels)
    answers = LabelSetAnswers(names, np.array([_THRESHOLD] * len(names) if thresholds is None else thresholds))
    return Task(NAME, LabelSetTargets(names, **reading), LabelSetHead(names), LabelSetScores(names, answers), answers)


def from_tables(tables: InputTables, separator: str | None = JOIN) -> Task:
    """The task with the labels of the training and validation tables, which `separator` divides.

    Raises InputError where they do not fit.
    """
    column, config = tables.columns.label, tables.config
    joins_columns = len(tables.columns.labels) > 1
    classes = find_class_names(tables, functools.partial(_count_labels, separator=separator))
    if classes.divided:
        raise InputError(
            f"--label-names: {min(classes.divided)!r} can be divided where a row has one label, and here rows have "
            "several; label its rows again."
        )
    names = {name for label, rows in classes.rows.items() if rows and (name := classes.of(label))}
    labels = sort_labels(tables.train, column, names, len(tables.train), recur=2 * len(names) <= len(tables.train))
    labels = add_soft_labels(labels, tables.soft, classes)
    if not joins_columns and config.task == "auto":
        check_empty_labels(tables, or_none=True)
    why = "lists" if separator == BRACKETS else f"labels of a row are separated by {separator!r}"
    task = decided("task", f"any of {len(labels)} labels", why, "--task single, --label-column", True)
    return make(
        labels,
        classes=classes,
        findings=(task, *classes.findings()),
        separator=separator,
        empty_is_labelled=joins_columns or not (config.drop_unlabelled or config.predict_unlabelled),
    )


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    stored = settings.get("thresholds", {})
    thresholds = [stored.get(label, _THRESHOLD) for label in labels]
    empty_is_labelled = settings.get("empty_is_labelled", True)
    return make(
        labels, thresholds, classes=ClassNames.from_settings(labels, settings), empty_is_labelled=empty_is_labelled
    )


def _count_labels(table: Table, column: str, separator: str | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for value, rows in value_counts(table, column).items():
        for label in set(split_cell(value, separator)):
            counts[label] += rows
    return counts


def likely_labels(targets: Array) -> npt.NDArray[np.uint8]:
    """The labels (rows, labels), 0 or 1, of targets that may be probabilities."""
    return targets if targets.dtype == np.uint8 else (targets >= _THRESHOLD).astype(np.uint8)


def _weigh_rows(targets: Array, number: int, class_weights: Weights, *more: Weights) -> Weights:
    """The weights (rows,) of the rows with a label and of the others, 1 on average."""
    by_class = None
    if class_weights is not None:
        by_class = np.where(targets[:, number] > 0, class_weights[number], 1).astype(np.float32)
    return tasks.heads.average_one(by_class, *more)

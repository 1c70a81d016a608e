"""Multi-label classification: each row has any number of labels, none included."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.splits import mark_rows
from classify.errors import InputError
from classify.evaluation import multi_label_metrics
from classify.evaluation.baseline import LOGREG, LinearModel, MajorityBaseline
from classify.evaluation.calibration import binary_scores, fit_scale_and_shift
from classify.evaluation.metrics import (
    INDEPENDENT,
    Array,
    Sampling,
    Scores as SplitScores,
    binary_cross_entropy,
    sigmoid,
)
from classify.evaluation.predictions_file import EXACT, JOIN
from classify.findings import decided, note
from classify.tables.labels import (
    BRACKETS,
    MIN_ROWS,
    SEPARATORS,
    ClassNames,
    find_missing,
    find_separator as find_separator_of,
    is_no_label,
    label_sort_key,
    list_counts,
    parse_separator,
    refuse_unknown,
    split_cell,
    value_counts,
)
from classify.tables.source import Question, QuestionError
from classify.tables.table import Table
from classify.tasks import heads
from classify.tasks.base import Answers, Head, Loss, Scores, Targets, Task, format_value
from classify.tasks.heads import Layer, Weights
from classify.tasks.label_columns import find_class_names, kept_labels

if TYPE_CHECKING:
    import torch

NAME = "multi_label"
# Target of a padding row, which the loss ignores.
_NO_ROW = 255
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

    separator: str | None = JOIN
    empty_is_labelled: bool = True

    def for_table(self, table: Table, column: str) -> Self:
        """Labels spelled as in this table; `_split` finds what separates them, or several label columns."""
        counts = [
            part for cell in value_counts(table, column) for sign in SEPARATORS for part in split_cell(cell, sign)
        ]
        return replace(self, classes=self.classes.spell(counts, self.labels))

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
        known = {*self.labels, *self.classes.names, *self.classes.unlabelled}
        ways = [split_cell(cell, separator) for separator in (self.separator, None, *SEPARATORS)]
        return next((labels for labels in ways if known.issuperset(labels)), ways[0])

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.uint8]:
        if not table.has_column(column):
            return np.zeros((len(table), len(self.labels)), dtype=np.uint8)
        index = {name: number for number, name in enumerate(self.labels)}
        values, numbers = table.dictionary_encode(column)
        targets = np.zeros((len(values), len(self.labels)), dtype=np.uint8)
        faults: dict[str, list[int]] = {}
        for place, value in enumerate(values):
            for label in self._split(value):
                name = self.classes.of(label)
                if name in index:
                    targets[place, index[name]] = 1
                elif name is not None:
                    faults.setdefault(name, []).append(place)
        refuse_unknown(faults, numbers, table, self.labels, known_from)
        return targets[numbers]

    def decode(self, targets: Array) -> list[list[str]]:
        return [[self.labels[number] for number in np.flatnonzero(row)] for row in targets]

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """Each row's rarest label, and one more number for rows without any."""
        counts = targets.sum(axis=0, dtype=np.int64)
        rarity = np.where(targets > 0, counts, np.iinfo(np.int64).max)
        return np.where(targets.any(axis=1), rarity.argmin(axis=1), len(self.labels))

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return np.asarray(targets.sum(axis=0, dtype=np.int64))

    def has_label(self, targets: Array, number: int) -> npt.NDArray[np.bool_]:
        return np.asarray(targets[:, number] > 0)

    def summary(self, targets: Array) -> str:
        """The labels, most frequent first, with their rows."""
        counts, none = self.label_counts(targets), int((~targets.any(axis=1)).sum())
        return (
            f"labels: {len(counts)}, {counts.sum() / max(1, len(targets)):.2f} per row, none in {none} rows: "
            f"{list_counts(self.labels, counts)}"
        )

    def settings(self) -> dict[str, Any]:
        return {"empty_is_labelled": self.empty_is_labelled, **self.classes.as_settings()}

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """The share of common labels (Jaccard); 1 for two rows without any."""
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
        counts = targets.sum(axis=0, dtype=np.int64)
        return np.clip((len(targets) - counts) / np.maximum(counts, 1), 1.0, _MOST_WEIGHT).astype(np.float32)

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        weights = self.class_weights(config, targets)
        return BinaryCrossEntropy(
            config.label_smoothing_factor, weights, heads.FOCAL_GAMMA if config.loss == "focal" else 0.0
        )

    def trained_penalty(self, *, is_final: bool) -> float:
        return heads.TRAINED_ENCODER_C

    def choose_penalty(self, features: Array, targets: Array, class_weights: Weights = None) -> float:
        return _choose_c(heads.standardize(features)[0], targets, class_weights)

    def fit(
        self, features: Array, targets: Array, penalty: float | None = None, class_weights: Weights = None
    ) -> Layer:
        """Fit one logistic regression per label, all with one C; a label of no row, or of all, gets zero weights."""
        standard, mean, scale = heads.standardize(features)
        counts, outputs = targets.sum(axis=0, dtype=np.int64), len(self.labels)
        weight, bias = np.zeros((outputs, features.shape[1])), np.zeros(outputs)
        c = _choose_c(standard, targets, class_weights) if penalty is None else penalty
        for number in range(outputs):
            if 0 < counts[number] < len(targets):
                rows = _row_weights(targets, number, class_weights)
                solver = heads.fit_logistic(standard, targets[:, number], c, rows)
                weight[number], bias[number] = solver.coef_[0], solver.intercept_[0]
            else:  # half a row of the other kind
                share = (counts[number] + 0.5) / (len(targets) + 1)
                bias[number] = math.log(share / (1 - share))
        return heads.fold_back(weight, bias, mean, scale)

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        """A scale and a shift for each label."""
        if not calibrate:
            return None
        fitted = [fit_scale_and_shift(logits[:, number], targets[:, number]) for number in range(len(self.labels))]
        scale, shift = np.array(fitted, dtype=np.float32).T
        return scale, shift


class LabelSetAnswers(Answers):
    """The labels whose probability reaches their threshold, and the probability of each label."""

    thresholds: npt.NDArray[np.float64]
    purpose = "assigns any of {} labels to a text"
    sections = (
        "next_steps", "scores", "per_class", "worst_rows", "slices", "curve", "usage",
        "data", "course", "decisions",
    )  # fmt: skip

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return sigmoid(logits)

    def decide(self, probabilities: Array) -> npt.NDArray[np.uint8]:
        return (probabilities >= self.thresholds).astype(np.uint8)

    def fitted(self, probabilities: Array, targets: Array) -> Self:
        """Choose each label's threshold by F1."""
        return replace(self, thresholds=multi_label_metrics.choose_thresholds(probabilities, targets))

    def columns(self) -> list[str]:
        return ["predicted_labels", *(f"prob_{label}" for label in self.labels)]

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        predicted = self.decide(probabilities) if predicted is None else predicted
        for row, has in zip(probabilities, predicted, strict=True):
            labels = JOIN.join(self.labels[number] for number in np.flatnonzero(has))
            yield [labels, *(f"{p:{digits}}" for p in row)]

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        """The smallest distance of a label's log odds from its threshold's."""
        from scipy.special import logit

        odds, limits = (logit(values.clip(_LEAST, 1 - _LEAST)) for values in (probabilities, self.thresholds))
        return np.asarray(np.abs(odds - limits).min(axis=1))


class LabelSetScores(Scores):
    """Micro and macro F1, Jaccard, the share of rows with exactly the right labels, and average precision."""

    primary = "macro_f1"
    row_metric = "jaccard"
    selection = (
        "average_precision",
        "micro_f1",
        "macro_f1",
        "weighted_f1",
        "jaccard",
        "subset_accuracy",
        "roc_auc",
        "loss",
    )

    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        return multi_label_metrics.decision_metrics(predicted, targets)

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        probabilities = self.answers.probabilities(logits)
        loss = binary_cross_entropy(logits, targets)
        predicted = self.answers.decide(probabilities) if predicted is None else predicted
        scores = multi_label_metrics.score(
            predicted, probabilities, targets, self.labels, loss=loss, seed=seed, sampling=sampling
        )
        assert self.answers.thresholds is not None
        for label, threshold in zip(self.labels, self.answers.thresholds.tolist(), strict=True):
            scores.per_class[label]["threshold"] = threshold
        return scores

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """The Jaccard index of each row's labels, 1 where both are none."""
        return multi_label_metrics.jaccard(predicted, targets)

    def renumber(self, values: Array, labels: Sequence[str]) -> npt.NDArray[np.uint8]:
        """A column for each of `labels`, 0 for labels that this model does not know."""
        renumbered = np.zeros((len(values), len(labels)), dtype=np.uint8)
        renumbered[:, [labels.index(label) for label in self.labels]] = values
        return renumbered

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any]:
        """They are over all labels of all rows."""
        return binary_scores(logits.ravel(), targets.ravel(), seed)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        """Score predicting the most frequent set of labels."""
        sets, counts = np.unique(train_targets, axis=0, return_counts=True)
        frequent = sets[counts.argmax()]
        label = format_value([self.labels[number] for number in np.flatnonzero(frequent)])
        return MajorityBaseline(label, self.metrics(np.repeat(frequent[None], len(targets), axis=0), targets))

    def linear_model(self, targets: Array, seed: int) -> LinearModel:
        return LinearModel(LOGREG, multi_label_metrics.ThresholdedRegression(seed), len(self.labels))


def make(labels: Sequence[str], thresholds: Sequence[float] | None = None, **reading: Any) -> Task:
    """The task of these labels, each with its threshold; `reading` are further fields of the targets."""
    names = list(labels)
    chosen = [multi_label_metrics.THRESHOLD] * len(names) if thresholds is None else thresholds
    answers = LabelSetAnswers(names, np.array(chosen))
    return Task(NAME, LabelSetTargets(names, **reading), LabelSetHead(names), LabelSetScores(names, answers), answers)


def from_tables(tables: InputTables) -> Task:
    """The task with the labels of the training and validation tables. Raises InputError where they do not fit."""
    column, config, path = tables.columns.label, tables.config, tables.train.path
    joins_columns, separator = len(tables.columns.labels) > 1, BRACKETS
    if not joins_columns:
        separator = find_separator(tables, count_cells(tables)) or JOIN
    classes = find_class_names(tables, functools.partial(_count_labels, separator=separator))
    names = {name for label, rows in classes.rows.items() if rows and (name := classes.of(label))}
    if len(tables.train) < MIN_ROWS:
        raise InputError(f"{path}: expected at least {MIN_ROWS} rows. Got {len(tables.train)} instead.")
    if len(names) < 2:
        raise InputError(
            f"{path}: expected at least two labels in column {column!r}. Got {len(names)} instead; "
            "name another column with --label-column."
        )
    if 2 * len(names) > len(tables.train):
        raise InputError(
            f"{path}: expected labels that occur in several rows in column {column!r}. Got {len(names)} different "
            f"labels in {len(tables.train)} rows instead; name another column with --label-column"
            f"{', or give --task single' if config.task == 'auto' else ''}."
        )
    empty_is_labelled = joins_columns or not (config.drop_unlabelled or config.predict_unlabelled)
    if empty_is_labelled and not joins_columns and config.task == "auto":
        for table in tables.every:
            if table.has_column(column):
                _refuse_mostly_empty(table, column)
    labels = sorted(names, key=label_sort_key)
    why = "lists" if separator == BRACKETS else f"labels of a row are separated by {separator!r}"
    task = decided("task", f"any of {len(labels)} labels", why, "--task single, --label-column", True)
    findings = [task, *classes.findings()]
    joined = next((label for label in labels if JOIN in label), None)
    if joined is not None:
        findings.append(note(f"the label {joined!r} holds {JOIN}, which separates labels in predictions.csv"))
    return make(
        labels, classes=classes, findings=tuple(findings), separator=separator, empty_is_labelled=empty_is_labelled
    )


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    """The task of a trained model, with the thresholds of its labels."""
    stored = settings.get("thresholds", {})
    thresholds = [stored.get(label, multi_label_metrics.THRESHOLD) for label in labels]
    empty_is_labelled = settings.get("empty_is_labelled", True)
    return make(labels, thresholds, classes=ClassNames.from_settings(settings), empty_is_labelled=empty_is_labelled)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy, averaged over the labels of a row, with label smoothing and weights of positive labels.

    With a `gamma` above 0 it is the focal loss, as for `CrossEntropy`, of each label.

    Every row weighs 1, so a step's loss is the mean over its rows however they are sharded.
    """

    padding = _NO_ROW

    label_smoothing: float = 0.0
    positive_weights: Weights = None
    gamma: float = 0.0

    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum over rows; logits and targets (n, labels)."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        counted = targets[:, :1] != _NO_ROW
        present = self.aims(targets)
        aims = present * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = binary_cross_entropy_with_logits(
            logits.float(), aims, reduction="none", pos_weight=heads.send_weights(self.positive_weights, logits.device)
        )
        if self.gamma:
            wrong = (logits.float().sigmoid() - present).abs()
            losses = losses * wrong**self.gamma
        return (losses * counted).sum() / logits.shape[1]

    def aims(self, targets: torch.Tensor) -> torch.Tensor:
        """Return 1 for the labels of a row, else 0."""
        return targets.clamp(max=1).float()


def count_cells(tables: InputTables) -> Counter[str]:
    """Count the rows of the non-empty cells of all learned rows, without those that mean unlabelled."""
    cells: Counter[str] = Counter()
    for table in tables.learned:
        for cell, rows in value_counts(table, tables.columns.label).items():
            cells[cell.strip()] += rows
    none = {"", tables.config.unlabelled_value, *find_missing(cells)} - kept_labels(tables)
    return Counter({cell: rows for cell, rows in cells.items() if cell not in none})


def find_separator(tables: InputTables, cells: Mapping[str, int]) -> str | None:
    """What separates the labels of a cell, as --label-separator says or as it looks; None for one label.

    Raises QuestionError where it is doubtful.
    """
    config = tables.config
    if config.label_separator is not None:
        return parse_separator(config.label_separator)
    found = find_separator_of(cells)
    if isinstance(found, Question):
        if config.task != "multi":
            raise QuestionError(tables.train.path, [found])
        return next((sign for sign in SEPARATORS if any(sign in cell for cell in cells)), BRACKETS)
    return found


def _refuse_mostly_empty(table: Table, column: str) -> None:
    """Raise InputError where most rows have no label: they may have none, or not have been labelled yet.

    Where all have none, the table is there to be predicted.
    """
    empty = int(table.is_blank(column).sum())
    if 2 * empty > len(table) > empty:
        raise InputError(
            f"{table.path}: {empty} of {len(table)} rows have an empty cell in column {column!r}. If no label applies "
            "to them, give --task multi; if they have not been labelled, --drop-unlabelled or "
            "--predict-unlabelled."
        )


def _count_labels(table: Table, column: str, separator: str | None) -> Counter[str]:
    """Count the rows of each label of a column."""
    counts: Counter[str] = Counter()
    for value, rows in value_counts(table, column).items():
        for label in set(split_cell(value, separator)):
            counts[label] += rows
    return counts


def _row_weights(targets: Array, number: int, class_weights: Weights) -> Weights:
    if class_weights is None:
        return None
    return heads.mean_one(np.where(targets[:, number] > 0, class_weights[number], 1).astype(np.float32))


def _choose_c(standard: npt.NDArray[np.float32], targets: Array, class_weights: Weights) -> float:
    """The mean C, of its logarithm, of the most balanced labels on standardized features (rows, width)."""
    counts = targets.sum(axis=0, dtype=np.int64)
    balance = np.minimum(counts, len(targets) - counts)
    frequent = [number for number in np.argsort(-balance)[:_CHOOSING_LABELS].tolist() if balance[number]]
    options = [
        heads.choose_c(standard, targets[:, number].astype(np.int64), _row_weights(targets, number, class_weights))
        for number in frequent
    ]
    return float(np.exp(np.mean(np.log(options)))) if options else 1.0

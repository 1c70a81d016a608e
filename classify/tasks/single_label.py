"""Single-label classification: each row has one of the classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.splits import mark_rows
from classify.errors import EXCERPT
from classify.evaluation.baseline import LOGREG, LinearModel, MajorityBaseline
from classify.evaluation.calibration import fit_temperature, probability_scores
from classify.evaluation.metrics import (
    INDEPENDENT,
    Array,
    Sampling,
    Scores as SplitScores,
    class_metrics,
    classification_metrics,
    score_classes,
    softmax,
)
from classify.evaluation.predictions_file import EXACT, JOIN
from classify.findings import Finding, decided
from classify.tables.labels import ClassNames, find_labels, find_odd_row, list_counts, refuse_unknown, value_counts
from classify.tables.profile import parse_number
from classify.tables.source import QuestionError
from classify.tables.table import Table
from classify.tasks import heads
from classify.tasks.base import Answers, Head, Loss, Scores, Targets, Task
from classify.tasks.heads import Layer, Weights
from classify.tasks.label_columns import check_empty_labels, find_class_names, kept_labels

if TYPE_CHECKING:
    import torch

NAME = "single_label"
# Target of a padding row; torch's cross-entropy ignores it.
_NO_LABEL = -100
# Classes up to which C after steps on pairs is that of `heads`; where epochs follow, it grows in proportion beyond.
_FEW_CLASSES = 8
# The same where no epochs follow; beyond, C grows with the square, up to the largest that is tried: among many classes
# some are alike, and a strong penalty never predicts the rarer one.
_FEW_FINAL_CLASSES = 3
# Different numbers from which labels may be scores.
_FEWEST_SCORES = 3
# Numbers of the scale from 0 to 10 (NPS), which are no indices.
_NPS_SCORES = 11
# Between labels, or the parts of one.
_DIVIDERS = frozenset("|;")


@dataclass(frozen=True, eq=False)
class ClassTargets(Targets):
    """Class numbers (rows,), -1 for a row without a label."""

    def for_table(self, table: Table, column: str) -> Self:
        """Labels that differ from a class in case, spaces or Unicode form alone are that class."""
        return replace(self, classes=self.classes.spell(value_counts(table, column), self.labels))

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        return mark_rows(table, column, lambda cell: self.classes.of(cell) is not None)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.int64]:
        if not table.has_column(column):
            return np.full(len(table), -1)
        index: dict[str | None, int] = {None: -1} | {name: number for number, name in enumerate(self.labels)}
        values, numbers = table.dictionary_encode(column)
        named = list(map(self.classes.of, values))
        faults: dict[str, list[int]] = {}
        for number, name in enumerate(named):
            if name is not None and name not in index:
                faults.setdefault(name, []).append(number)
        refuse_unknown(faults, numbers, table, self.labels, known_from)
        return np.array([index[name] for name in named], dtype=np.int64)[numbers]

    def decode(self, targets: Array) -> list[str]:
        return [self.labels[number] for number in targets.tolist()]

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        return targets

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return np.bincount(targets, minlength=len(self.labels))

    def has_label(self, targets: Array, number: int) -> npt.NDArray[np.bool_]:
        return np.asarray(targets == number)

    def summary(self, targets: Array) -> str:
        """The classes, largest first, with their rows."""
        counts = self.label_counts(targets)
        ratio = counts.max() / max(1, counts.min())
        return f"classes: {len(counts)}, the largest {ratio:.1f} times the smallest: {list_counts(self.labels, counts)}"

    def settings(self) -> dict[str, Any]:
        return self.classes.as_settings()

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """1 for two rows of a class, 0 for rows of two."""
        return (targets[:, None] == targets[None, :]).astype(np.float32)


class ClassHead(Head):
    """An output per class, trained by cross-entropy."""

    problem_type = "single_label_classification"
    probe = "logistic regression"

    def balance(self, targets: Array) -> Weights:
        """Weights inversely proportional to the rows of a class, 1 on average over rows; 1 for a class without rows.

        As scikit-learn's "balanced" (King and Zeng, 2001).
        """
        counts = np.bincount(targets, minlength=len(self.labels))
        present = max(1, int((counts > 0).sum()))
        weights = np.where(counts > 0, len(targets) / (present * np.maximum(counts, 1)), 1.0)
        return weights.astype(np.float32)

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        weights = self.class_weights(config, targets)
        return CrossEntropy(
            config.label_smoothing_factor, weights, heads.FOCAL_GAMMA if config.loss == "focal" else 0.0
        )

    def trained_penalty(self, *, is_final: bool) -> float:
        if not is_final:
            return heads.TRAINED_ENCODER_C * max(1.0, len(self.labels) / _FEW_CLASSES)
        return min(heads.C_VALUES[-1], heads.TRAINED_ENCODER_C * max(1.0, len(self.labels) / _FEW_FINAL_CLASSES) ** 2)

    def choose_penalty(self, features: Array, targets: Array, class_weights: Weights = None) -> float:
        return heads.choose_c(heads.standardize(features)[0], targets, _row_weights(class_weights, targets))

    def fit(
        self, features: Array, targets: Array, penalty: float | None = None, class_weights: Weights = None
    ) -> Layer:
        """Fit a multinomial logistic regression; the penalty is its C.

        Two classes have one direction w: it becomes -w/2 and +w/2, whose softmax is the same sigmoid. A class without a
        row (all its rows are in the validation split) gets zero weights and the smallest bias minus 1.
        """
        standard, mean, scale = heads.standardize(features)
        row_weights = _row_weights(class_weights, targets)
        weight, bias = np.zeros((len(self.labels), features.shape[1])), np.zeros(len(self.labels))
        present = np.unique(targets)
        if len(present) > 1:
            c = heads.choose_c(standard, targets, row_weights) if penalty is None else penalty
            solver = heads.fit_logistic(standard, targets, c, row_weights)
            if len(present) == 2:
                half, offset = solver.coef_[0] / 2, float(solver.intercept_[0]) / 2
                weight[present], bias[present] = np.stack([-half, half]), [-offset, offset]
            else:
                weight[present], bias[present] = solver.coef_, solver.intercept_
        absent = np.setdiff1d(np.arange(len(self.labels)), present)
        bias[absent] = bias[present].min() - 1.0
        return heads.fold_back(weight, bias, mean, scale)

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        """One temperature for all classes, as scale and shift."""
        if not calibrate:
            return None
        scale = 1 / fit_temperature(logits, targets)
        return np.full(len(self.labels), scale, dtype=np.float32), np.zeros(len(self.labels), dtype=np.float32)


class ClassAnswers(Answers):
    """The most probable class, its confidence, and the probability of each class."""

    purpose = "assigns one of {} classes to a text"
    has_confidence = True
    set_columns = ("label_set",)
    sections = (
        "next_steps", "scores", "automation", "per_class", "confusion", "errors", "suspects", "slices", "curve",
        "usage", "reliability", "data", "course", "decisions",
    )  # fmt: skip

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return softmax(logits)

    def decide(self, probabilities: Array) -> npt.NDArray[np.int64]:
        """The most probable class; the first one on ties."""
        return probabilities.argmax(axis=1)

    def columns(self) -> list[str]:
        return ["predicted_label", "confidence", *(f"prob_{label}" for label in self.labels)]

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        for row, best in zip(probabilities, self.decide(probabilities).tolist(), strict=True):
            numbers = [f"{p:{digits}}" for p in row]
            yield [self.labels[best], numbers[best], *numbers]

    def misfit(self, probabilities: Array, targets: Array) -> npt.NDArray[np.float64]:
        """1 minus the probability of each target."""
        return 1 - probabilities[np.arange(len(targets)), targets]

    def set_fields(self, probabilities: Array, limit: float, digits: str = EXACT) -> Iterator[list[str]]:
        """Yield the labels of each set, the most probable one, which is always in it, first."""
        for row, order in zip(probabilities, np.argsort(-probabilities, axis=1, kind="stable"), strict=True):
            count = max(1, int((1 - row <= limit).sum()))
            yield [JOIN.join(self.labels[number] for number in order[:count])]

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        """The margins between the two most probable classes."""
        second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
        return np.asarray(first - second)


class ClassScores(Scores):
    """Accuracy and F1 of classes."""

    primary = "macro_f1"
    share = "accuracy"
    row_metric = "accuracy"

    @property
    def selection(self) -> tuple[str, ...]:
        return class_metrics(len(self.labels))

    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        return classification_metrics(predicted, targets)

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        return score_classes(logits, targets, self.labels, seed, sampling)

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """1 where the class is right, else 0."""
        return (predicted == targets).astype(np.float64)

    def renumber(self, values: Array, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        return np.array([labels.index(label) for label in self.labels])[values]

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any]:
        return probability_scores(logits, targets, seed)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        """Score predicting the largest class of training; the first one on ties."""
        largest = int(np.bincount(train_targets, minlength=len(self.labels)).argmax())
        return MajorityBaseline(self.labels[largest], self.metrics(np.full_like(targets, largest), targets))

    def linear_model(self, targets: Array, seed: int) -> LinearModel:
        from sklearn.linear_model import LogisticRegression

        return LinearModel(LOGREG, LogisticRegression(C=10), len(np.unique(targets)))


def make(labels: Sequence[str], classes: ClassNames = ClassNames(), findings: Sequence[Finding] = ()) -> Task:  # noqa: B008
    """The task of these classes."""
    names = list(labels)
    answers = ClassAnswers(names)
    targets = ClassTargets(names, classes, tuple(findings))
    return Task(NAME, targets, ClassHead(names), ClassScores(names, answers), answers)


def from_tables(tables: InputTables) -> Task:
    """The task with the classes of the training and validation tables. Raises InputError where labels do not fit."""
    check_empty_labels(tables)
    classes, columns = find_class_names(tables, value_counts), tables.columns
    odd = find_odd_row(tables.train, columns.text, columns.label, classes, kept_labels(tables))
    if odd is not None:
        raise QuestionError(tables.train.path, [odd])
    labels = find_labels(tables.train, tables.columns.label, tables.eval, classes)
    why, flag = "one label per row", "--label-column"
    joined = next((label for label in labels if not _DIVIDERS.isdisjoint(label)), None)
    if _may_be_scores(labels):
        why = f"labels are numbers, {labels[0]} to {labels[-1]}; a score is possible, too"
        flag = "--task regression"
    elif joined is not None:
        why, flag = f"{joined[:EXCERPT]!r} is one class; its parts may be several labels, too", "--task multi"
    task = decided("task", f"one of {len(labels)} classes", why, flag, True)
    return make(labels, classes, [task, *classes.findings()])


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    """The task of a trained model, with the spelling of its labels."""
    return make(labels, ClassNames.from_settings(settings))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy with optional label smoothing (Szegedy et al., 2016, section 7) and class weights.

    With a `gamma` above 0 each row's loss is multiplied by (1 - p) ** gamma, p the probability of its label: Lin et
    al., 2017, "Focal Loss for Dense Object Detection", equation 4.

    The loss of a batch is the weighted mean: the sum over rows of weight times loss, divided by the sum of weights.
    Both sums are over all ranks and micro-batches of a step, so the mean does not depend on how a batch is sharded.
    """

    padding = _NO_LABEL

    label_smoothing: float = 0.0
    class_weights: Weights = None
    gamma: float = 0.0

    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the losses; logits (n, classes), class indices (n,)."""
        from torch.nn.functional import cross_entropy

        logits, smoothing = logits.float(), self.label_smoothing
        weights = heads.send_weights(self.class_weights, logits.device)
        if not self.gamma:
            return cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing, reduction="sum")
        losses = cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing, reduction="none")
        right = logits.softmax(dim=1).gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return (losses * (1 - right) ** self.gamma).sum()

    def weight_sum(self, targets: Array) -> float:
        return float(len(targets)) if self.class_weights is None else float(self.class_weights[targets].sum())


def _may_be_scores(labels: Sequence[str]) -> bool:
    """Whether labels are three or more numbers, but not codes such as 0123 or the usual indices 0, 1, 2, ..."""
    if any(len(label) > 1 and label[0] == "0" and label.isdigit() for label in labels):
        return False
    numbers = [number for label in labels if (number := parse_number(label)) is not None and math.isfinite(number)]
    return len(numbers) == len(labels) >= _FEWEST_SCORES and not _are_indices(sorted(numbers))


def _are_indices(numbers: Sequence[float] | npt.NDArray[np.float64]) -> bool:
    """Whether sorted numbers are 0, 1, 2, ...: usually class indices, but 0 to 10 is a scale (NPS)."""
    return len(numbers) != _NPS_SCORES and list(numbers) == list(range(len(numbers)))


def _row_weights(class_weights: Weights, targets: Array) -> Weights:
    return None if class_weights is None else heads.mean_one(class_weights[targets])

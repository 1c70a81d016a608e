"""Single-label classification: each row has one of the classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from classify import evaluation, tasks
from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels
from classify.data.splits import Targets, mark_rows
from classify.evaluation.metrics import (
    INDEPENDENT,
    Array,
    MajorityBaseline,
    Sampling,
    Scores as SplitScores,
    cross_entropy,
    divide,
    label_scores,
    share_interval,
    softmax,
)
from classify.findings import Finding, decided
from classify.tables.labels import ClassNames, find_labels, find_odd_row, list_counts, refuse_unknown, value_counts
from classify.tables.profile import parse_number
from classify.tables.source import QuestionError
from classify.tables.table import Table
from classify.tasks.base import EXACT, JOIN, Answers, FitRows, Head, Layer, Loss, Scores, Task, Weights
from classify.tasks.label_columns import add_soft_labels, check_empty_labels, find_class_names, kept_labels

NAME = "single_label"
# Classes up to which C after steps on pairs is that of `heads`; where epochs follow, it grows in proportion beyond.
_FEW_CLASSES = 8
# The same where no epochs follow; beyond, C grows with the square, up to the largest that is tried: among many classes
# some are alike, and a strong penalty never predicts the rarer one.
_FEW_FINAL_CLASSES = 3
# Classes above which the share of rows with the right class among the `_TOP` most probable ones is of interest.
_MANY_CLASSES = 20
# Probability up to which a class is left out of the fit of a head.
_SMALLEST_SHARE = 0.01
# Of the most probable classes, as ImageNet is scored.
_TOP = 5


def most_probable(targets: Array) -> npt.NDArray[np.int64]:
    """The classes (rows,) of targets, which may be soft ones (rows, classes)."""
    return targets if targets.ndim == 1 else targets.argmax(axis=1)


class ClassTargets(Targets):
    """Class numbers (rows,), -1 for a row without a label."""

    are_extended = True
    dtype = np.int64

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        return mark_rows(table, column, lambda cell: self.classes.of(cell) is not None)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.int64]:
        if not table.has_column(column):
            return np.full(len(table), -1)
        values, numbers = table.dictionary_encode(column)
        named = list(map(self.classes.of, values))
        refuse_unknown(([] if name is None else [name] for name in named), numbers, table, self.labels, known_from)
        index: dict[str | None, int] = {None: -1} | {name: number for number, name in enumerate(self.labels)}
        return np.array([index[name] for name in named], dtype=np.int64)[numbers]

    def decode(self, targets: Array) -> list[str]:
        return [self.labels[number] for number in targets.tolist()]

    def soften(self, targets: Array, soft: SoftLabels) -> npt.NDArray[np.float32]:
        """The probability of each class (rows, classes); 1 for the class of a row without, or with another label."""
        soft.check_sums()
        certain = np.arange(len(self.labels)) == targets[:, None]
        likely = soft.replace(certain, self.labels, self.classes)
        corrected = (targets >= 0) & (likely.argmax(axis=1) != targets)
        return np.where(corrected[:, None], certain, likely).astype(np.float32)

    def in_form_of(self, targets: Array, others: Array) -> Array:
        if targets.ndim == others.ndim or others.ndim == 1:
            return super().in_form_of(targets, others)
        return np.eye(len(self.labels), dtype=others.dtype)[targets]

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        return most_probable(targets)

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return np.bincount(most_probable(targets), minlength=len(self.labels))

    def summary(self, targets: Array) -> str:
        counts = self.label_counts(targets)
        ratio = counts.max() / max(1, counts.min())
        return f"classes: {len(counts)}, the largest {ratio:.1f} times the smallest: {list_counts(self.labels, counts)}"

    def settings(self) -> dict[str, Any]:
        return self.classes.as_settings()

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """1 for rows of one class; of soft targets the cosine, 0 where another class is the most probable one."""
        numbers = most_probable(targets)
        same = numbers[:, None] == numbers[None, :]
        if targets.ndim == 1:
            return same.astype(np.float32)
        unit = targets / np.linalg.norm(targets, axis=1, keepdims=True)
        return np.where(same, unit @ unit.T, 0.0).astype(np.float32)


class ClassHead(Head):
    """An output per class, trained by cross-entropy."""

    problem_type = "single_label_classification"
    refits = True

    @property
    def probe(self) -> str:  # type: ignore[override]
        return "linear discriminant" if len(self.labels) > tasks.heads.MOST_CLASSES else "logistic regression"

    def balance(self, targets: Array) -> Weights:
        """Weights inversely proportional to the rows of a class, 1 on average over rows; 1 for a class without rows.

        As scikit-learn's "balanced" (King and Zeng, 2001).
        """
        counts = np.bincount(most_probable(targets), minlength=len(self.labels))
        present = max(1, int((counts > 0).sum()))
        weights = np.where(counts > 0, len(targets) / (present * np.maximum(counts, 1)), 1.0)
        return weights.astype(np.float32)

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        gamma = tasks.losses.FOCAL_GAMMA if config.loss == "focal" else 0.0
        kind = tasks.losses.CrossEntropy if targets.ndim == 1 else tasks.losses.SoftCrossEntropy
        return kind(config.label_smoothing_factor, self.class_weights(config, targets), gamma)

    def trained_penalty(self, *, is_final: bool) -> float:
        heads = tasks.heads
        if not is_final:
            return heads.TRAINED_ENCODER_C * max(1.0, len(self.labels) / _FEW_CLASSES)
        return min(heads.C_VALUES[-1], heads.TRAINED_ENCODER_C * max(1.0, len(self.labels) / _FEW_FINAL_CLASSES) ** 2)

    def choose_standard(self, rows: FitRows) -> float:
        numbers = most_probable(rows.targets)
        if len(self.labels) > tasks.heads.MOST_CLASSES:
            return tasks.heads.TRAINED_ENCODER_C  # a discriminant has none to choose
        weights = tasks.heads.average_one(_weights_of(rows.class_weights, numbers), rows.weights)
        return tasks.heads.choose_c(rows.features, numbers, weights)

    def fit_standard(self, rows: FitRows, penalty: float | None) -> Layer:
        """Fit a multinomial logistic regression; the penalty is its C. Of very many classes, a linear discriminant.

        Two classes have one direction w: it becomes -w/2 and +w/2, whose softmax is the same sigmoid. A class without a
        row (all its rows are in the validation split) gets zero weights and the smallest bias minus 1. A row of soft
        targets is a row of each class that it may have, weighted by its probability.
        """
        if penalty is None and len(np.unique(most_probable(rows.targets))) > 1:
            penalty = self.choose_standard(rows)
        weight, bias = np.zeros((len(self.labels), rows.features.shape[1])), np.zeros(len(self.labels))
        numbers, shares, total = rows.targets, None, len(rows.targets)
        if rows.targets.ndim > 1:
            places, numbers = np.nonzero(rows.targets > _SMALLEST_SHARE)
            shares, rows = rows.targets[places, numbers], rows.take(places)
        present, standard = np.unique(numbers), rows.features
        weights = None
        if len(present) > 1:
            weights = tasks.heads.average_one(_weights_of(rows.class_weights, numbers), rows.weights, shares)
            if shares is not None and weights is not None:  # those of a row stand for one
                weights = weights * (total / len(numbers))
        if len(self.labels) > tasks.heads.MOST_CLASSES:
            weight, bias = tasks.heads.fit_discriminant(standard, numbers, len(self.labels), weights)
        elif len(present) > 1:
            solver = tasks.heads.fit_logistic(standard, numbers, penalty or tasks.heads.TRAINED_ENCODER_C, weights)
            if len(present) == 2:
                half, offset = solver.coef_[0] / 2, float(solver.intercept_[0]) / 2
                weight[present], bias[present] = np.stack([-half, half]), [-offset, offset]
            else:
                weight[present], bias[present] = solver.coef_, solver.intercept_
        absent = np.setdiff1d(np.arange(len(self.labels)), present)
        bias[absent] = bias[present].min() - 1.0
        return weight, bias

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        """One temperature for all classes, as scale and shift."""
        if not calibrate:
            return None
        scale = 1 / evaluation.calibration.fit_temperature(logits, targets)
        return np.full(len(self.labels), scale, dtype=np.float32), np.zeros(len(self.labels), dtype=np.float32)


class ClassAnswers(Answers):
    """The most probable class, its confidence, and the probability of each class."""

    purpose = "assigns one of {} classes to a text"
    has_confidence = True
    first_columns = ("predicted_label", "confidence")
    set_columns = ("label_set",)
    sections: ClassVar[tuple[str, ...]] = (
        "next_steps", "scores", "automation", "per_class", "confusion", "errors", "suspects", "slices", "sources",
        "curve", "usage", "reliability", "data", "course", "decisions",
    )  # fmt: skip

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return softmax(logits)

    def decide(self, probabilities: Array) -> npt.NDArray[np.int64]:
        """The most probable class; the first one on ties."""
        return probabilities.argmax(axis=1)

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        for row, best in zip(probabilities, self.decide(probabilities).tolist(), strict=True):
            yield [self.labels[best], f"{row[best]:{digits}}"]

    def misfit(self, probabilities: Array, targets: Array) -> npt.NDArray[np.float64]:
        return 1 - probabilities[np.arange(len(targets)), targets]

    def set_fields(self, probabilities: Array, limit: float, digits: str = EXACT) -> Iterator[list[str]]:
        """Yield the labels of each set, the most probable one, which is always in it, first."""
        for row, order in zip(probabilities, np.argsort(-probabilities, axis=1, kind="stable"), strict=True):
            count = max(1, int((1 - row <= limit).sum()))
            yield [JOIN.join(self.labels[number] for number in order[:count])]

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
        return np.asarray(first - second)


class ClassScores(Scores):
    """Accuracy and F1 of classes."""

    primary = "macro_f1"
    share = "accuracy"
    row_metric = "accuracy"

    @property
    def selection(self) -> tuple[str, ...]:
        further = ["f1"] * (len(self.labels) == 2) + ["top_5_accuracy"] * (len(self.labels) > _MANY_CLASSES)
        return ("macro_f1", "accuracy", "weighted_f1", "balanced_accuracy", "mcc", "loss", *further)

    def _count(self, predicted: Array, targets: Array) -> tuple[Array, Array, Array]:
        """The rows (classes,) that are predicted correctly as each class, predicted as it, and labelled as it."""
        right, guessed, rows = (
            np.bincount(classes, minlength=len(self.labels)).astype(np.float64)
            for classes in (predicted[predicted == targets], predicted, targets)
        )
        return right, guessed, rows

    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        """Accuracy, and macro F1 over the classes in `targets` or `predicted`."""
        right, guessed, rows = self._count(predicted, targets)
        f1 = divide(2 * right, guessed + rows)[guessed + rows > 0]
        return {"accuracy": float(np.mean(predicted == targets)), "macro_f1": float(f1.mean())}

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        """Balanced accuracy is the mean recall of the classes in `targets`.

        Two classes also have the F1 of the second one, as scikit-learn's f1_score and GLUE's MRPC and QQP; more than 20
        have the share of rows whose class is among the five most probable ones.
        """
        from sklearn.metrics import matthews_corrcoef

        predicted, total = logits.argmax(axis=1), len(targets)
        right, guessed, rows = self._count(predicted, targets)
        per_class, occurs = label_scores(self.labels, right, guessed, rows), guessed + rows > 0
        details = {
            "weighted_f1": float(np.average(divide(2 * right, guessed + rows)[occurs], weights=rows[occurs])),
            "balanced_accuracy": float(divide(right, rows)[rows > 0].mean()),
            "mcc": float(matthews_corrcoef(targets, predicted)) if occurs.sum() > 1 else 0.0,
            "loss": cross_entropy(logits, targets),
        }
        if len(self.labels) == 2:
            details["f1"] = per_class[self.labels[1]]["f1"]
        if len(self.labels) > _MANY_CLASSES:
            best = np.argpartition(-logits, _TOP - 1, axis=1)[:, :_TOP]
            details["top_5_accuracy"] = float((best == targets[:, None]).any(axis=1).mean())
        intervals = {
            "accuracy": share_interval(predicted == targets, sampling),
            "macro_f1": evaluation.bootstrap.macro_f1_interval(targets, predicted, seed, sampling),
        }
        counts = dict(zip(self.labels, guessed.astype(int).tolist(), strict=True))
        return SplitScores(self.metrics(predicted, targets), total, details, intervals, per_class, counts)

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        return (predicted == targets).astype(np.float64)

    def renumber(self, values: Array, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        return np.array([labels.index(label) for label in self.labels])[values]

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any]:
        return evaluation.calibration.probability_scores(logits, targets, seed)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        """Score predicting the largest class of training; the first one on ties."""
        largest = int(np.bincount(train_targets, minlength=len(self.labels)).argmax())
        return MajorityBaseline(self.labels[largest], self.metrics(np.full_like(targets, largest), targets))

    def linear_model(self, targets: Array, seed: int) -> tuple[str, Any, int]:
        classes = len(np.unique(targets))
        if classes > tasks.heads.MOST_CLASSES:
            return tasks.baseline.BAYES, tasks.baseline.naive_bayes(), classes
        return tasks.baseline.LOGREG, tasks.baseline.logistic_regression(), classes


def make(labels: Sequence[str], classes: ClassNames = ClassNames(), findings: Sequence[Finding] = ()) -> Task:  # noqa: B008
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
    known = [name for label in tables.known_labels if (name := classes.of(label)) is not None]
    labels = find_labels(tables.train, tables.columns.label, tables.eval, classes, known)
    labels = add_soft_labels(labels, tables.soft, classes)
    why, flag = "one label per row", "--label-column"
    numbers = list(map(parse_number, labels))
    if len(labels) > 2 and None not in numbers and numbers != list(range(len(labels))):  # not the usual indices
        why = f"labels are numbers, {labels[0]} to {labels[-1]}; a score is possible, too"
        flag = "--task regression"
    task = decided("task", f"one of {len(labels)} classes", why, flag, True)
    return make(labels, classes, [task, *classes.findings()])


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    return make(labels, ClassNames.from_settings(labels, settings))


def _weights_of(class_weights: Weights, numbers: Array) -> Weights:
    """The weight (rows,) of each row's class."""
    return None if class_weights is None else class_weights[numbers]

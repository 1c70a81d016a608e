"""A task: what the labels of a table mean, in four parts that know nothing of each other's insides.

`Targets` (of `data.splits`) say what the labels are, `Head` how the model's outputs are trained, `Scores` how good they
are, and `Answers` what a person gets. Each part deals with the outputs of its own labels and no others: logits, weights
and biases that it takes or returns are a slice of the output layer, so several tasks can stand side by side over one
model.

A task is one file: it composes the four in `make`, reads a run's tables in `from_tables` and a trained model's
classify.json in `from_settings`; `tasks.registry` lists it. Tasks are made before the arguments are known to be good,
so what needs torch or scikit-learn stands in modules that are imported when it is used: `tasks.losses`, `tasks.heads`,
`tasks.baseline`, `evaluation.bootstrap` and `evaluation.calibration`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from classify import tasks
from classify.config.schema import TrainingConfig
from classify.data.splits import Targets
from classify.errors import InputError, list_some
from classify.evaluation.metrics import INDEPENDENT, Array, MajorityBaseline, Sampling, Scores as SplitScores
from classify.evaluation.scope import Scope
from classify.evaluation.scored_rows import ScoredRows, Threshold, find_threshold

if TYPE_CHECKING:
    import torch

# Values of --class-weights that name no file.
NONE = "none"
BALANCED = "balanced"
# Formats of probabilities and scores: for programs, and for readers of a spreadsheet.
EXACT = ".8g"
FOR_EXCEL = ".4f"
# Between the labels of a cell.
JOIN = "|"

# What a column that is empty has for a target, among the targets of several columns: a number that no table holds.
MISSING = float(np.finfo(np.float32).min)

Weights = npt.NDArray[np.float32] | None
# The regularization of a head: a number; of several columns, one for each.
Penalty: TypeAlias = Any
# Weights (outputs, width) and biases (outputs,).
Layer = tuple[Array, Array]


class Loss(ABC):
    """The training loss of each row. A step's loss is the sum over its rows, divided by the sum of their weights.

    Both sums are over all ranks and micro-batches of a step, so the mean does not depend on how a batch is sharded.
    """

    padding: ClassVar[float]  # the target of padding rows

    @abstractmethod
    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss (n,) of each row times its weight; 0 for padding rows. Logits (n, outputs)."""

    def weights(self, targets: Array) -> npt.NDArray[np.float32]:
        """The weight (n,) of each row by its label: by default 1."""
        return np.ones(len(targets), dtype=np.float32)

    def aims(self, targets: torch.Tensor) -> torch.Tensor:
        """What the logits of n rows, none of them padding, should come to."""
        return targets

    def loss_sum(
        self, logits: torch.Tensor, targets: torch.Tensor, row_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        losses = self.losses(logits, targets)
        return losses.sum() if row_weights is None else losses @ row_weights

    def weight_sum(self, targets: Array, row_weights: Weights = None) -> float:
        weights = self.weights(targets)
        return float(weights.sum() if row_weights is None else weights @ row_weights)


class FitRows(NamedTuple):
    """The rows that an output layer is fitted on: features (rows, width), and targets (rows, ...).

    Weights of each output's label (outputs,) and of each row (rows,) multiply; None where all weigh 1.
    """

    features: Array
    targets: Array
    class_weights: Weights = None
    weights: Weights = None

    def take(self, places: Array) -> FitRows:
        weights = None if self.weights is None else self.weights[places]
        return FitRows(self.features[places], self.targets[places], self.class_weights, weights)

    def standardize(self) -> tuple[FitRows, Array, Array]:
        """The rows with features of mean 0 and deviation 1, and the mean and deviation (width,) that these had."""
        standard, mean, scale = tasks.heads.standardize(self.features)
        return self._replace(features=standard), mean, scale


@dataclass(frozen=True, eq=False)
class Head(ABC):
    """How the outputs are trained: the loss of the steps, and the output layer that they start from.

    `problem_type` is that of transformers in config.json; `probe` is what messages call the model that `fit` fits. A
    finished model's outputs are the trained ones times `scale` plus `center`.
    """

    problem_type: ClassVar[str | None]
    probe: ClassVar[str]
    # Where there are few rows a class, `fit` after the epochs improves the head that they have trained.
    refits: ClassVar[bool] = False

    labels: list[str]
    center: float = 0.0
    scale: float = 1.0
    _read_weights: dict[str, Weights] = field(default_factory=dict, repr=False)

    def check(self, config: TrainingConfig) -> None:
        """Raise InputError for settings that the task cannot be trained with; called once the labels are known."""
        self.file_weights(config)

    def file_weights(self, config: TrainingConfig) -> Weights:
        """The weights in the file of --class-weights, or None; read once, since it may change during a run."""
        name = config.class_weights
        if name not in self._read_weights:
            self._read_weights[name] = read_class_weights(name, self.labels)
        return self._read_weights[name]

    def class_weights(self, config: TrainingConfig, targets: Array) -> Weights:
        """The weight of each output's label under --class-weights for these targets; None where all weigh 1."""
        return self.balance(targets) if config.class_weights == BALANCED else self.file_weights(config)

    def balance(self, targets: Array) -> Weights:
        """The weights of --class-weights balanced; not for scores, which `check` refuses."""
        raise NotImplementedError

    @abstractmethod
    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        """The loss for training on these targets; the trainer asks for it once, an export's check for each row's."""

    @abstractmethod
    def trained_penalty(self, *, is_final: bool) -> Penalty:
        """The regularization of `fit` on features of an encoder that steps on pairs trained on the same targets.

        Cross-validation on such features would choose too little. `is_final`: no epochs follow.
        """

    def choose_penalty(self, rows: FitRows) -> Penalty:
        """The regularization that cross-validation chooses for an output layer."""
        return self.choose_standard(rows.standardize()[0])

    def fit(self, rows: FitRows, penalty: Penalty = None) -> Layer:
        """Fit an output layer; the default penalty is that of `choose_penalty`.

        It is called before the epochs, and for each fold of a run without epochs.
        """
        standard, mean, scale = rows.standardize()
        weight, bias = self.fit_standard(standard, penalty)
        weight = weight / scale
        return weight.astype(np.float32), (bias - weight @ mean).astype(np.float32)

    def choose_standard(self, rows: FitRows) -> float:
        """`choose_penalty` on features of mean 0 and deviation 1."""
        raise NotImplementedError

    def fit_standard(self, rows: FitRows, penalty: float | None) -> Layer:
        """`fit` on features of mean 0 and deviation 1."""
        raise NotImplementedError

    def standardize(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Convert the layer of an earlier run, in place, to the units of training; for --head keep."""
        weight /= self.scale
        bias -= self.center
        bias /= self.scale

    @abstractmethod
    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        """Scale and shift (outputs,) that the output layer takes over when training ends; None to leave it.

        With `calibrate` they make the probabilities of these validation rows most likely.
        """


@dataclass(frozen=True, eq=False)
class Answers(ABC):
    """What a person gets for a text: a prediction, the numbers beside it, and the sections of the report.

    `thresholds` (outputs,) are the probabilities from which a label is predicted, where predictions are sets of labels;
    else None. `purpose` says what the model does with a text, {} standing for the number of labels; the report opens
    with it. `outputs` is what messages call the outputs. `has_labels`: they are labels, not numbers. `has_confidence`:
    a prediction is one label, whose probability is the confidence; so a text may be out of scope, too. Predictions add
    `first_columns` to the table, then a probability for each label, and sets `set_columns`. `sections` of report.html
    stand in order, by their names in `report.sections`. Where a table has several label columns, `columns` have the
    task of each, whose answers are a person's.
    """

    purpose: ClassVar[str]
    outputs: ClassVar[str] = "probabilities"
    has_labels: ClassVar[bool] = True
    has_confidence: ClassVar[bool] = False
    first_columns: ClassVar[tuple[str, ...]]
    accepted_columns: ClassVar[tuple[str, ...]] = ("accepted",)
    set_columns: ClassVar[tuple[str, ...]] = ()
    sections: ClassVar[tuple[str, ...]]

    labels: list[str]
    thresholds: npt.NDArray[np.float64] | None = None
    columns: tuple[Column, ...] = ()

    @abstractmethod
    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        """The probability of each output, or its number, from logits (rows, outputs)."""

    @abstractmethod
    def decide(self, probabilities: Array) -> Array:
        """The predictions in the form of the targets."""

    def fitted(self, probabilities: Array, targets: Array) -> Self:
        """The answers of a finished model, with what must be chosen on held-out rows chosen on these."""
        return self

    @abstractmethod
    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        """Yield the cells of `first_columns`, row by row; `predicted` are by default what `decide` makes of them."""

    def find_threshold(self, probabilities: Array, targets: Array, precision: float) -> Threshold | None:
        """The confidence from which predictions of held-out rows are right so often; None if none is.

        Only where a prediction has a confidence, as is `accept`.
        """
        right = self.decide(probabilities) == targets
        return find_threshold(probabilities.max(axis=1), right.astype(np.float64), precision)

    def accept(self, probabilities: Array, least: float) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """The label (rows,) that is `least` probable, "" for none, and its probability, for `accepted_columns`."""
        names, best = np.array(self.labels, dtype=object), probabilities.max(axis=1)
        return np.where(best >= least, names[probabilities.argmax(axis=1)], ""), best

    def misfit(self, probabilities: Array, targets: Array) -> npt.NDArray[np.float64]:
        """How badly each row's target fits its prediction (rows,), for the limit of `set_fields`."""
        raise NotImplementedError

    def set_fields(self, probabilities: Array, limit: float, digits: str = EXACT) -> Iterator[list[str]]:
        """Yield the cells of `set_columns`, row by row: all answers whose `misfit` is at most `limit`."""
        raise NotImplementedError

    def top_nodes(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The first nodes of a hierarchy of labels, and the number (labels,) of the one above each label."""
        raise NotImplementedError

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        """How certain each prediction is (rows,), for `suggest` and `compare`. Only where `has_labels`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Scores(ABC):
    """How good the `answers` are. Predictions and targets have the form of `Targets.encode`.

    Metrics are larger for better models, except those in `evaluation.metrics.ERRORS`, none of which may be
    `primary`: that one compares models, the baseline among them. `selection` are the metrics that may select the
    best weights, first the default. `share` is the metric that is a proportion of rows, or None. `row_metric` is
    the mean of `row_scores`.
    """

    primary: ClassVar[str]
    share: ClassVar[str | None] = None
    row_metric: ClassVar[str]
    # What scores of rows are divided by, so that those of several columns count alike.
    row_unit: float = field(default=1.0, kw_only=True)

    labels: list[str]
    answers: Answers

    @property
    @abstractmethod
    def selection(self) -> tuple[str, ...]: ...

    @abstractmethod
    def metrics(self, predicted: Array, targets: Array) -> dict[str, Any]:
        """Metrics of predictions alone; the model, the baseline and the most frequent label all have them."""

    @abstractmethod
    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        """These metrics, the loss, intervals and scores of each label, of logits (rows, outputs).

        `predicted` are by default what the answers decide; `seed` is for the intervals.
        """

    @abstractmethod
    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """The score (rows,) of each prediction, larger is better: for comparisons, worst rows and weak groups."""

    def with_labels(self, labels: Sequence[str]) -> Self:
        """The same for other labels, by whose numbers `renumber` gives targets and predictions."""
        return replace(self, labels=list(labels))

    def renumber(self, values: Array, labels: Sequence[str]) -> Array:
        """Targets or predictions by the numbers of other `labels`, which include this model's; for `compare`."""
        assert list(labels) == self.labels
        return values

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any] | None:
        """Log loss, Brier score and calibration error of logits; None without probabilities."""
        return None

    @abstractmethod
    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        """Score predicting the most frequent label of training for all rows."""

    @abstractmethod
    def linear_model(self, targets: Array, seed: int) -> tuple[str, Any, int]:
        """The baseline for these training targets: its name, an unfitted estimator, and the number of its outputs."""


@dataclass(frozen=True, eq=False)
class Task:
    """The four parts of a task, by the name that classify.json, metrics.json and run.json have for it.

    With a `scope`, from --out-of-scope-label, a model's outputs end with the probability of belonging to a class.
    """

    name: str
    targets: Targets
    head: Head
    scores: Scores
    answers: Answers
    scope: Scope | None = None

    @property
    def labels(self) -> list[str]:
        return self.targets.labels

    @property
    def columns(self) -> tuple[Column, ...]:
        """Each of several label columns; () where there is one."""
        return self.answers.columns

    def split(self, outputs: Array) -> tuple[Array, Array | None]:
        """The logits (rows, labels) of a model's outputs, and with a scope the probabilities (rows,) of a class."""
        return (outputs, None) if self.scope is None else (outputs[:, :-1], outputs[:, -1])

    def rejects(self, outputs: Array) -> npt.NDArray[np.bool_]:
        """(rows,) whether each text belongs to none of the classes; without a scope none does."""
        return np.zeros(len(outputs), dtype=bool) if self.scope is None else ~self.scope.holds(outputs[:, -1])

    def settings(self) -> dict[str, Any]:
        if self.columns:
            return {"columns": [column.settings() for column in self.columns]}
        settings = self.targets.settings() | ({} if self.scope is None else self.scope.as_settings())
        if self.answers.thresholds is None:
            return settings
        return {"thresholds": dict(zip(self.labels, self.answers.thresholds.tolist(), strict=True)), **settings}

    def check_settings(self, config: TrainingConfig, further: Collection[str] = ()) -> None:
        """Raise InputError for settings that this task does not support; `further` metrics are the caller's."""
        name, known = config.metric_for_best_model, (*self.scores.selection, *further)
        if name is not None and name not in known:
            raise InputError(
                f"--metric-for-best-model must be one of {', '.join(known)} for this task (see the line "
                f"task:). Got {name!r} instead."
            )
        self.head.check(config)

    def with_min_in_scope(self, threshold: float | None) -> Task:
        """The task with the threshold of --min-in-scope. Raises InputError where it has no scope."""
        if threshold is None:
            return self
        if self.scope is None:
            raise InputError("--min-in-scope: the model was trained without --out-of-scope-label; drop the flag.")
        return replace(self, scope=replace(self.scope, threshold=threshold))

    def with_answers(self, answers: Answers) -> Task:
        return replace(self, answers=answers, scores=replace(self.scores, answers=answers))

    def with_thresholds(self, given: Mapping[str, float]) -> Task:
        """The task with the thresholds of --threshold. Raises InputError where it has none, or lacks the label."""
        if not given:
            return self
        if self.columns:
            return self._with_thresholds_of_columns(given)
        if self.answers.thresholds is None:
            raise InputError("--threshold: the model predicts no sets of labels; see --min-confidence.")
        if unknown := [label for label in given if label not in self.labels]:
            listed = list_some(self.labels, show=repr)
            raise InputError(f"--threshold {unknown[0]}: the model has no such label; it has: {listed}.")
        own = zip(self.labels, self.answers.thresholds.tolist(), strict=True)
        thresholds = np.array([given.get(label, threshold) for label, threshold in own])
        return self.with_answers(replace(self.answers, thresholds=thresholds))

    def _with_thresholds_of_columns(self, given: Mapping[str, float]) -> Task:
        """`with_thresholds` for labels of several columns, as in "topic: billing"."""
        left, columns = dict(given), []
        for column in self.columns:
            of_label = {f"{column.name}: {label}": label for label in column.task.labels}
            own = {label: left.pop(name) for name, label in of_label.items() if name in left}
            columns.append(replace(column, task=column.task.with_thresholds(own)))
        if left:
            having = [one for one in self.columns if one.task.answers.thresholds is not None]
            listed = list_some([f"{one.name}: {label}" for one in having for label in one.task.labels], show=repr)
            raise InputError(f"--threshold {next(iter(left))}: expected a label of a set: {listed or 'there is none'}.")
        return self.with_answers(replace(self.answers, columns=tuple(columns)))

    def of_column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, eq=False)
class Column:
    """One of several label columns: its name and its task, which does not know of the others.

    `outputs` are its part of a model's outputs, `cells` that of the targets (rows, cells) of all columns, which are
    `MISSING` in rows where the column is empty.
    """

    name: str
    task: Task
    outputs: slice
    cells: slice

    def rows(self, targets: Array) -> npt.NDArray[np.int64]:
        """The rows in which the column has a label."""
        return np.flatnonzero(targets[:, self.cells.start] != MISSING)

    def unpack(self, cells: Array) -> Array:
        """Targets or predictions of all columns in the form of this column's task."""
        own = cells[:, self.cells].astype(self.task.targets.dtype)
        return own if self.task.targets.per_label else own[:, 0]

    def take(self, rows: ScoredRows) -> ScoredRows:
        """The scored rows that have the column, with its own targets, logits and predictions."""
        rows = rows.take(self.rows(rows.targets))
        predicted, baseline = (None if part is None else self.unpack(part) for part in (rows.predicted, rows.baseline))
        targets, logits = self.unpack(rows.targets), rows.logits[:, self.outputs]
        return replace(rows, targets=targets, logits=logits, predicted=predicted, baseline=baseline)

    def settings(self) -> dict[str, Any]:
        own = {"name": self.name, "task": self.task.name, "labels": self.task.labels}
        return {**own, "slice": [self.outputs.start, self.outputs.stop], **self.task.settings()}


def format_value(value: str | list[str] | float | Mapping[str, Any]) -> str:
    """A decoded target or prediction as text, for reports."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {format_value(one)}" for name, one in value.items())
    if isinstance(value, list):
        return JOIN.join(value) or "no label"
    return value if isinstance(value, str) else f"{value:g}"


def read_class_weights(setting: str, labels: Sequence[str]) -> Weights:
    """The weight of each label by its name in JSON, or in a file of it; None where the setting is neither.

    Raises InputError where it is not an object with a positive number for each label and no others.
    """
    if setting in (NONE, BALANCED):
        return None
    flag = f"--class-weights {setting}"
    expected = "expected balanced, or a JSON file such as " + json.dumps(dict.fromkeys(labels[:2], 1.0))
    try:
        weights = json.loads(setting if setting.startswith("{") else Path(setting).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{flag}: {expected}. It cannot be read: {error}.") from None
    if not isinstance(weights, dict) or set(weights) != set(labels):
        got = ", ".join(map(repr, weights)) if isinstance(weights, dict) else f"a {type(weights).__name__}"
        raise InputError(f"{flag}: {expected}, with a number for each of {list_some(labels, show=repr)}. Got {got}.")
    for label, weight in weights.items():
        if not (isinstance(weight, int | float) and 0 < weight < math.inf):
            raise InputError(f"{flag}: the weight of {label!r} must be a number above 0. Got {weight!r} instead.")
    return np.array([weights[label] for label in labels], dtype=np.float32)

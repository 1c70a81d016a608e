"""The interface of a task: everything that depends on the kind of label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.splits import LabelEncoder
from classify.errors import InputError
from classify.evaluation.baseline import Baseline, LinearModel, MajorityBaseline, fit_baseline
from classify.evaluation.label_noise import Suspects
from classify.evaluation.metrics import INDEPENDENT, Array, Sampling, Scores
from classify.evaluation.predictions_file import EXACT
from classify.tables.table import Table
from classify.tasks.heads import Weights, read_class_weights

if TYPE_CHECKING:
    import torch

# Rows by which the loss of guessing is computed.
_CHANCE_ROWS = 10_000


class Loss(ABC):
    """The training loss, as sums: the rows of a step are spread over ranks and micro-batches."""

    padding: ClassVar[float]  # the target of padding rows, which the loss ignores

    @abstractmethod
    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the losses of n rows; logits (n, outputs)."""

    def aims(self, targets: torch.Tensor) -> torch.Tensor:
        """What the logits of n rows, none of them padding, should come to."""
        return targets

    def weight_sum(self, targets: Array) -> float:
        """The sum of the row weights, by which a step's loss is divided: by default each row weighs 1."""
        return float(len(targets))

    def by_chance(self, targets: Array, outputs: int) -> float:
        """The mean loss of outputs that are 0 for all texts, on at most 10,000 of the targets."""
        import torch

        some = targets[:: -(-len(targets) // _CHANCE_ROWS)]
        total = self.loss_sum(torch.zeros(len(some), outputs), torch.from_numpy(some))
        return float(total) / self.weight_sum(some)


class Task(LabelEncoder):
    """The meaning of a table's labels. `labels` are the names of the model's outputs, in order.

    Implementations import torch inside `loss` only: tasks are created before the arguments are validated. Metrics are
    larger for better models, except those in `evaluation.metrics.ERRORS`.
    """

    name: ClassVar[str]
    problem_type: ClassVar[str]  # of transformers, in config.json
    probe: ClassVar[str]  # what `fit_head` fits
    primary: ClassVar[str]  # the metric for comparing models, the baseline among them
    selection: tuple[str, ...]  # the metrics that may select the best weights, first the default
    has_labels: ClassVar[bool] = True  # its outputs are labels, not numbers
    has_confidence: ClassVar[bool] = False  # a prediction is one label, whose probability is the confidence
    has_scope: ClassVar[bool] = False  # texts may belong to none of its labels (see `evaluation.scope`)
    has_thresholds: ClassVar[bool] = False  # `finalize` chooses thresholds by the scores of the rows it gets
    share: ClassVar[str | None] = None  # the metric, if any, that is a proportion of rows
    set_columns: ClassVar[tuple[str, ...]] = ()  # that `set_fields` fills; () where predictions have no sets
    row_metric: ClassVar[str]  # the mean of `row_scores`, by which models are compared row by row
    sections: ClassVar[tuple[str, ...]]  # of report.html in their order, by their names in `report.sections`

    def __init__(self, labels: Sequence[str]):
        self.labels = list(labels)
        self._file_weights: dict[str, Weights] = {}

    @classmethod
    @abstractmethod
    def of(cls, tables: InputTables) -> Self:
        """Create the task for these tables. Raises InputError if their labels do not fit it."""

    @classmethod
    def from_settings(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """The task of a trained model, from its classify.json."""
        return cls(labels)

    def for_table(self, table: Table, column: str) -> Self:
        """The trained task as it reads the labels of a further table, which may be written differently."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """What a model of the task does with a text, e.g. "assigns one of 8 classes to a text"."""

    def with_thresholds(self, given: Mapping[str, float]) -> Self:
        """The task with other thresholds of some labels. Raises InputError where it has none."""
        if given:
            raise InputError("--threshold: the model predicts no sets of labels; see --min-confidence.")
        return self

    def settings(self) -> dict[str, Any]:
        """What prediction needs to know, for classify.json."""
        return {}

    def finalize(self, logits: Array, targets: Array) -> Self:
        """A task that is ready to predict, from validation logits (rows, outputs) after `rescale`."""
        return self

    def check_settings(self, config: TrainingConfig, further: Collection[str] = ()) -> None:
        """Raise InputError for settings that this task does not support; `further` metrics are the caller's."""
        name, known = config.metric_for_best_model, (*self.selection, *further)
        if name is not None and name not in known:
            raise InputError(
                f"--metric-for-best-model must be one of {', '.join(known)} for this task (see the line "
                f"task:). Got {name!r} instead."
            )
        self.file_weights(config)

    def file_weights(self, config: TrainingConfig) -> Weights:
        """The weights in the file of --class-weights, if any; read once, since it may change during a run."""
        name = config.class_weights
        if name not in self._file_weights:
            self._file_weights[name] = read_class_weights(name, self.labels)
        return self._file_weights[name]

    def label_texts(self, *, is_english: bool) -> tuple[str, ...]:
        """A training text with the name of each class; () where names are not words."""
        return ()

    @abstractmethod
    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        """The loss for training on these targets."""

    def class_weights(self, config: TrainingConfig, targets: Array) -> Weights:
        """The weight of each output's label under --class-weights for these targets; None: all weigh 1."""
        return None

    @abstractmethod
    def trained_penalty(self, *, is_final: bool) -> float:
        """The regularization for features of an encoder that was trained on the same targets.

        `is_final`: no epochs follow. Cross-validation on such features would choose too little.
        """

    @abstractmethod
    def choose_penalty(self, features: Array, targets: Array, class_weights: Weights = None) -> float:
        """The regularization that cross-validation chooses for an output layer on features (rows, width)."""

    @abstractmethod
    def fit_head(
        self, features: Array, targets: Array, penalty: float | None = None, class_weights: Weights = None
    ) -> tuple[Array, Array]:
        """Fit an output layer on features (rows, width); return weights (outputs, width) and biases (outputs,).

        The default penalty is that of `choose_penalty`. `class_weights` are as `class_weights` returns them.
        """

    def standardize_head(self, head: torch.nn.Linear) -> None:
        """Convert the output layer of an earlier run, in place, to the units of training; here they are the same."""

    @abstractmethod
    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        """The probability of each output from logits (rows, outputs)."""

    @abstractmethod
    def decide(self, probabilities: npt.NDArray[np.float64]) -> Array:
        """The predictions in the form of `encode`."""

    def decide_out_of_fold(
        self, probabilities: npt.NDArray[np.float64], targets: Array, folds: npt.NDArray[np.int64]
    ) -> Array:
        """The predictions of rows from the models of `folds` (rows,), each without a choice on its own fold."""
        return self.decide(probabilities)

    @abstractmethod
    def values(self, predicted: Array) -> list[Any]:
        """Return predictions in the form of `encode` as labels, lists of labels, or numbers."""

    @abstractmethod
    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        """Compute metrics of predictions in the form of `encode`, first the one for probe and baselines."""

    @abstractmethod
    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> Scores:
        """Compute these metrics, loss and intervals of logits (rows, outputs); `seed` is for the intervals.

        `predicted` are the predictions, by default those that `decide` makes. `sampling` says which rows depend on
        each other.
        """

    def renumber(self, values: Array, labels: Sequence[str]) -> Array:
        """Return targets or predictions by the numbers of other `labels`, which include those of this task."""
        assert list(labels) == self.labels
        return values

    @abstractmethod
    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """The score (rows,) of each prediction in the form of `encode`; larger is better."""

    def suspects(self, probabilities: npt.NDArray[np.float64], targets: Array) -> Suspects | None:
        """Find labels that are probably wrong, from out-of-fold probabilities; None where that is not defined."""
        return None

    @abstractmethod
    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """The similarity (n, n) of the labels of each two rows, 0 to 1: the target of the contrastive loss."""

    @abstractmethod
    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        """Return scale and shift (outputs,) for the output layer of a finished model; None to leave it.

        With `calibrate` they make the probabilities of these validation rows most likely.
        """

    def probability_scores(self, logits: Array, targets: Array, seed: int) -> dict[str, Any] | None:
        """The scores of the probabilities of logits (rows, outputs), if any; `seed` is that of an interval."""
        return None

    @abstractmethod
    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        """Score predicting the most frequent label of training for all rows."""

    @abstractmethod
    def linear_model(self, targets: Array, seed: int) -> LinearModel:
        """The baseline's model for these training targets."""

    def baseline(
        self, train_texts: Sequence[str], train_targets: Array, texts: Sequence[str], targets: Array, seed: int
    ) -> Baseline:
        """Fit and score a linear model on TF-IDF. Raises ValueError if the training texts have no words."""
        model, stratify_by = self.linear_model(train_targets, seed), self.stratify_by(train_targets)
        return fit_baseline(model, train_texts, train_targets, stratify_by, texts, targets, seed, self.metrics)

    def misfit(self, probabilities: npt.NDArray[np.float64], targets: Array) -> npt.NDArray[np.float64]:
        """How badly each row's target fits its prediction (rows,), lower is better. With `set_columns` only."""
        raise NotImplementedError

    def set_fields(
        self, probabilities: npt.NDArray[np.float64], limit: float, digits: str = EXACT
    ) -> Iterator[list[str]]:
        """Yield the cells of `set_columns`, row by row: all answers whose `misfit` is at most `limit`."""
        raise NotImplementedError

    def certainty(self, probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """How certain each prediction is (rows,), for `suggest`. Only where `has_labels`."""
        raise NotImplementedError

    @abstractmethod
    def prediction_columns(self) -> list[str]:
        """The names of the columns that predictions append to the table."""

    @abstractmethod
    def prediction_fields(
        self, probabilities: npt.NDArray[np.float64], digits: str = EXACT, predicted: Array | None = None
    ) -> Iterator[list[str]]:
        """Yield the cells of those columns, row by row, numbers in the format `digits`.

        `predicted` are the predictions, by default those that `decide` makes.
        """

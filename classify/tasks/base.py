"""What a task answers: everything that depends on what a label is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.table import Table
from classify.decision import Decision
from classify.evaluation.baseline import Baseline, MajorityBaseline
from classify.evaluation.metrics import Scores

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class Loss(Protocol):
    """What is minimised. Sums, not means: rows of a step are divided among ranks and micro-batches."""

    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum over rows of weight times loss; logits (n, outputs), truth of the same n rows."""
        ...

    def weight_sum(self, targets: Array) -> float:
        """Sum of the rows' weights, by which a step's loss is divided."""
        ...

    def pad_targets(self, targets: Array, rows: int) -> Array:
        """The truth of a batch that is filled up to `rows` with rows that count for nothing."""
        ...


class Task(ABC):
    """What the labels of a table mean. `labels` are the names of the model's outputs, in their order.

    Implementations import torch inside `loss` alone: a task is made before the arguments are known to be good.
    """

    name: ClassVar[str]
    problem_type: ClassVar[str]  # transformers' word, in config.json
    primary: ClassVar[str]  # the metric that runs are compared by
    share: ClassVar[str | None] = None  # the metric, if any, that is a share of the rows: it has a standard error

    def __init__(self, labels: Sequence[str]):
        self.labels = list(labels)

    @classmethod
    @abstractmethod
    def of(cls, tables: InputTables) -> Self:
        """The task of these tables. Raises InputError where their labels do not fit it."""

    @abstractmethod
    def decision(self) -> Decision:
        """What the labels were taken for, for the person."""

    @abstractmethod
    def encode(self, table: Table, column: str, known_from: str) -> Array:
        """The truth (rows, ...) of a table. Raises InputError naming labels that `known_from` does not have."""

    @abstractmethod
    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        """What training on rows of this truth minimises."""

    @abstractmethod
    def fit_head(self, features: npt.NDArray[np.float32], targets: Array) -> tuple[Array, Array]:
        """Weights (outputs, width) and biases (outputs,) of an output layer that reads (rows, width) features."""

    @abstractmethod
    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        """What the logits (rows, outputs) say of each output."""

    @abstractmethod
    def decide(self, probabilities: npt.NDArray[np.float64]) -> Array:
        """What is predicted, in the form of `encode`."""

    @abstractmethod
    def metrics(self, predicted: Array, targets: Array) -> dict[str, float]:
        """Metrics of predictions in the form of `encode`, the first one for the head's start and the baselines."""

    @abstractmethod
    def score(self, logits: Array, targets: Array, seed: int) -> Scores:
        """The same metrics of logits (rows, outputs), their loss and intervals; `seed` is that of intervals."""

    @abstractmethod
    def majority(self, train_truth: Array, targets: Array) -> MajorityBaseline:
        """Metrics of the same answer for all rows, the most frequent one of training."""

    @abstractmethod
    def baseline(
        self, train_texts: Sequence[str], train_truth: Array, texts: Sequence[str], targets: Array, seed: int
    ) -> Baseline:
        """Metrics of a linear model on words, fitted on training texts. Raises ValueError where they have no words."""

    @abstractmethod
    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """A number a row, (rows,): parts of the rows hold each number in proportion."""

    @abstractmethod
    def prediction_columns(self) -> list[str]:
        """The columns that predictions add behind those of the table."""

    @abstractmethod
    def prediction_fields(self, probabilities: npt.NDArray[np.float64]) -> Iterator[list[str]]:
        """What stands in those columns, row by row."""

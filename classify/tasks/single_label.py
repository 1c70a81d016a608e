"""One label a row: the classes exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.data.columns import Guess
from classify.data.corpus import Tables
from classify.data.labels import ClassNames, find_labels, label_ids
from classify.data.table import Table
from classify.evaluation import baseline, metrics
from classify.evaluation.baseline import BaselineResult, Majority
from classify.evaluation.metrics import Score, softmax
from classify.tasks.base import Array, Loss, Task
from classify.tasks.logistic_head import fit


class SingleLabel(Task):
    """Truth is (rows,) class numbers; the model has one output a class."""

    name = "single_label"
    problem_type = "single_label_classification"

    def __init__(self, labels: Sequence[str], classes: ClassNames | None = None):
        super().__init__(labels)
        self._classes = classes or ClassNames()

    @classmethod
    def of(cls, tables: Tables) -> Self:
        """The classes that occur in the tables to learn from."""
        names = find_labels(tables.train, tables.columns.label, tables.eval, tables.classes)
        return cls(names, tables.classes)

    def guess(self) -> Guess:
        """One line on the classes."""
        return Guess("task", f"one of {len(self.labels)} classes", "one label stands in each row", "--label-column")

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.int64]:
        """The class number of each row."""
        return label_ids(table, column, self.labels, known_from, self._classes)

    def loss(self, config: TrainingConfig, truth: Array) -> Loss:
        """Cross-entropy as --label-smoothing-factor and --class-weights say."""
        from classify.tasks.cross_entropy import CrossEntropy, balanced_weights

        weights = balanced_weights(truth, len(self.labels)) if config.class_weights == "balanced" else None
        return CrossEntropy(config.label_smoothing_factor, weights)

    def fit_head(self, features: npt.NDArray[np.float32], truth: Array) -> tuple[Array, Array]:
        """A multinomial logistic regression."""
        return fit(features, truth, len(self.labels))

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        """Softmax: they add up to 1."""
        return softmax(logits)

    def decide(self, probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The most probable class; of equals the first."""
        return probabilities.argmax(axis=1)

    def score(self, logits: Array, truth: Array, seed: int) -> Score:
        """Accuracy, macro F1, loss, and scores of each class."""
        return metrics.score(logits, truth, self.labels, seed)

    def majority(self, train_truth: Array, truth: Array) -> Majority:
        """Always the largest class."""
        return baseline.always_largest(train_truth, truth, self.labels)

    def baseline(
        self, train_texts: Sequence[str], train_truth: Array, texts: Sequence[str], truth: Array, seed: int
    ) -> BaselineResult:
        """TF-IDF into a logistic regression."""
        return baseline.fit_and_score(train_texts, train_truth, texts, truth, seed)

    def strata(self, truth: Array) -> npt.NDArray[np.int64]:
        """The class numbers."""
        return truth

    def prediction_columns(self) -> list[str]:
        """The class, its probability, and the probability of each class."""
        return ["predicted_label", "confidence", *(f"prob_{label}" for label in self.labels)]

    def prediction_fields(self, probabilities: npt.NDArray[np.float64]) -> Iterator[list[str]]:
        """The same for each row, eight digits of a number."""
        for row, best in zip(probabilities, self.decide(probabilities).tolist(), strict=True):
            numbers = [f"{p:.8g}" for p in row]
            yield [self.labels[best], numbers[best], *numbers]

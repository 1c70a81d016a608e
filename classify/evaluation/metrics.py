"""Scores of a set of predictions: accuracy, macro F1, loss, per class, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_RESAMPLES = 1000

# The scores that choose between weights, and what a line calls them.
NAMES = {"macro_f1": "macro F1", "accuracy": "accuracy", "loss": "loss"}


@dataclass(frozen=True)
class Score:
    """Scores of one part; `as_json` is its form in metrics.json. `predicted` counts the rows given each class."""

    accuracy: float
    macro_f1: float
    loss: float
    rows: int
    per_class: dict[str, dict[str, float]]
    accuracy_interval: tuple[float, float]
    macro_f1_interval: tuple[float, float] | None
    predicted: dict[str, int]

    @property
    def summary(self) -> dict[str, float]:
        """The numbers of the whole part."""
        return {name: getattr(self, name) for name in NAMES}

    def as_json(self) -> dict[str, Any]:
        """Nested plain values, numbers unrounded."""
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "loss": self.loss,
            "rows": self.rows,
            "accuracy_interval": list(self.accuracy_interval),
            "macro_f1_interval": None if self.macro_f1_interval is None else list(self.macro_f1_interval),
            "per_class": self.per_class,
        }


def softmax(logits: Array) -> Array:
    """Probabilities (n, classes) of logits (n, classes), in double precision."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponent = np.exp(shifted)
    return exponent / exponent.sum(axis=1, keepdims=True)


def cross_entropy(logits: Array, truth: Array) -> float:
    """Mean negative log-likelihood of the true classes; 0 rows give 0."""
    if not len(truth):
        return 0.0
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_total - shifted[np.arange(len(truth)), truth]))


def score(logits: Array, truth: Array, labels: Sequence[str], seed: int) -> Score:
    """Score logits (n, classes) against class numbers (n,)."""
    from sklearn.metrics import precision_recall_fscore_support

    predicted = logits.argmax(axis=1)
    precision, recall, f1, support = precision_recall_fscore_support(
        truth, predicted, labels=np.arange(len(labels)), zero_division=0.0
    )
    per_class = {
        name: {
            "precision": float(precision[i]),
            "recall": float(recall[i]),
            "f1": float(f1[i]),
            "support": int(support[i]),
        }
        for i, name in enumerate(labels)
    }
    right = predicted == truth
    return Score(
        accuracy=float(np.mean(right)),
        macro_f1=macro_f1(truth, predicted),
        loss=cross_entropy(logits, truth),
        rows=len(truth),
        per_class=per_class,
        accuracy_interval=accuracy_interval(int(right.sum()), len(truth)),
        macro_f1_interval=macro_f1_interval(truth, predicted, seed),
        predicted=dict(zip(labels, np.bincount(predicted, minlength=len(labels)).tolist(), strict=True)),
    )


def macro_f1(truth: Array, predicted: Array) -> float:
    """Mean F1 over the classes that occur among the true or the predicted ones, as scikit-learn's default."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average="macro", zero_division=0.0))


def accuracy_interval(right: int, rows: int) -> tuple[float, float]:
    """Wilson's 95 % score interval (1927) of `right` out of `rows` rows, at least one.

    It has a width also where all rows are right, or none: of 20 out of 20 it is 0.839 to 1.
    """
    from scipy.stats import binomtest

    interval = binomtest(right, rows).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


def macro_f1_interval(truth: Array, predicted: Array, seed: int) -> tuple[float, float] | None:
    """95 % percentile interval of macro F1 over resampled rows (Efron, 1979); None where the resamples have no spread.

    Where all rows are right, or all wrong, each resample scores the same, which says nothing about other rows: at the
    edge of its range a bootstrapped quantity has no valid interval (Andrews, 2000, Econometrica 68(2)).

    Resampling n rows with replacement is one multinomial draw over the cells (true, predicted) that occur, so a
    thousand resamples cost the same for a thousand rows as for a million.
    """
    cells, counts = np.unique(np.stack([truth, predicted]), axis=1, return_counts=True)
    n = len(truth)
    draws = np.random.default_rng(seed).multinomial(n, counts / n, size=_RESAMPLES)
    hit = cells[0] == cells[1]
    classes = np.unique(cells)
    scores = np.zeros(_RESAMPLES)
    present = np.zeros(_RESAMPLES)
    for name in classes:
        of_truth, of_predicted = draws[:, cells[0] == name].sum(axis=1), draws[:, cells[1] == name].sum(axis=1)
        both = draws[:, hit & (cells[0] == name)].sum(axis=1)
        total = of_truth + of_predicted
        scores += np.divide(2.0 * both, total, out=np.zeros(_RESAMPLES), where=total > 0)
        present += total > 0
    low, high = np.percentile(scores / present, [2.5, 97.5])
    return (float(low), float(high)) if low < high else None


def table(result: Score, width: int = 28) -> str:
    """The per-class table as text, most frequent class first, then accuracy and macro F1 with their intervals."""
    name_width = min(width, max(8, *(len(name) for name in result.per_class)))
    lines = [f"{'':{name_width}}  precision  recall      f1   rows"]
    by_support = sorted(result.per_class.items(), key=lambda item: -item[1]["support"])
    for name, values in by_support:
        shown = name if len(name) <= name_width else name[: name_width - 1] + "…"
        lines.append(
            f"{shown:{name_width}}  {values['precision']:9.3f} {values['recall']:7.3f} "
            f"{values['f1']:7.3f} {values['support']:6d}"
        )
    for title, value, interval in (
        ("accuracy", result.accuracy, result.accuracy_interval),
        ("macro F1", result.macro_f1, result.macro_f1_interval),
    ):
        between = f"  (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval is not None else ""
        lines.append(f"{title:{name_width}}  {value:9.3f}{between}")
    return "\n".join(lines)

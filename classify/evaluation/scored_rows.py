"""evaluation.parquet: the rows that scored a model, in the order of predictions.csv, and what can be said from them.

They show which confidence a required precision, or coverage, needs, which rows are the worst, and which of two models
is better. Labels are as the model was trained on them: merged, renamed and encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from classify.evaluation.metrics import wilson_interval
from classify.files import read_parquet, write_parquet

FILE = "evaluation.parquet"
# p-value below which two models are called different.
SURE = 0.05
# Quantile of the normal distribution for a bound that holds in 95 of 100 cases.
_ONE_SIDED = 1.6448536269514722
# Sets of rows that are tested for a threshold, each larger than the one before.
_STEPS = 20


@dataclass(frozen=True)
class ScoredRows:
    """Hashes (rows,) of the texts, targets (rows, ...), calibrated logits (rows, outputs) and predictions.

    `predicted` are the model's predictions, None for those that its logits say, `baseline` the baseline's, if any; both
    have the form of the targets.
    `trained` (rows,): whether the model has trained on the text.
    """

    hashes: npt.NDArray[np.uint64]
    targets: npt.NDArray[Any]
    logits: npt.NDArray[np.float32]
    predicted: npt.NDArray[Any] | None
    baseline: npt.NDArray[Any] | None
    trained: npt.NDArray[np.bool_] | None = None

    @property
    def independent(self) -> npt.NDArray[np.int64]:
        """The first row of each text that the model has not trained on, in order.

        Thresholds, sets and tests go by these rows: duplicate texts are right or wrong together, and texts of the
        training are right more often than new ones.
        """
        first = np.sort(np.unique(self.hashes, return_index=True)[1])
        return first if self.trained is None else first[~self.trained[first]]

    @property
    def unseen(self) -> npt.NDArray[np.int64]:
        if self.trained is None or self.trained.all():
            return np.arange(len(self.targets))
        return np.flatnonzero(~self.trained)

    def take(self, places: npt.NDArray[Any]) -> ScoredRows:
        taken: dict[str, Any] = {name: None if rows is None else rows[places] for name, rows in vars(self).items()}
        return ScoredRows(**taken)

    def write(self, folder: Path) -> None:
        columns = {"text_hash": self.hashes, "target": self.targets, "logits": self.logits}
        for name, rows in {"predicted": self.predicted, "baseline": self.baseline, "trained": self.trained}.items():
            if rows is not None:
                columns[name] = rows.astype(np.uint8 if name == "trained" else self.targets.dtype)
        arrays = {
            name: array if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(array.ravel(), array.shape[1])
            for name, array in columns.items()
        }
        write_parquet(folder / FILE, pa.table(arrays))

    @classmethod
    def read(cls, folder: Path) -> ScoredRows:
        """Read the file of a result folder. Raises OSError or ValueError where there is none, or it is damaged."""
        table = read_parquet(folder / FILE)
        columns: dict[str, Any] = dict.fromkeys(("text_hash", "target", "logits", "predicted", "baseline", "trained"))
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            is_list = hasattr(column.type, "list_size")
            columns[name] = np.asarray(column.flatten()).reshape(len(column), -1) if is_list else np.asarray(column)
        if columns["trained"] is not None:
            columns["trained"] = columns["trained"].astype(bool)
        return cls(*columns.values())


@dataclass(frozen=True)
class Threshold:
    """The required `precision`, the `confidence` that reaches it, and the `accepted` of the `rows` that have it.

    `right` of the accepted ones are predicted correctly.
    """

    precision: float
    confidence: float
    accepted: int
    right: int
    rows: int


def find_threshold(
    confidence: npt.NDArray[Any],
    right: npt.NDArray[Any],
    precision: float,
    right_at: Callable[[float], npt.NDArray[Any]] | None = None,
) -> Threshold | None:
    """A low confidence (of (rows,)) whose predictions are `right` (rows,) with at least this precision.

    Where the predictions depend on the confidence that is required, `right_at` gives those that are right at one.

    The rows are the most certain ones, ever more of them in 20 steps, until the lower bound of their precision (95 %,
    one-sided: 33 right predictions of 33 show 0.924) is below the required one; the step before is taken. Whatever the
    number of steps the bound then holds in 95 of 100 cases, since the first failure ends the search (fixed sequence
    testing: Angelopoulos et al., 2021, "Learn then Test", section 2.3); the last of many passing ones would not. The
    first step has just enough rows for one wrong prediction. None if it fails, or there are too few rows.
    """
    order = np.argsort(-confidence, kind="stable")
    counts, hits = np.arange(1, len(order) + 1), np.cumsum(right[order])
    # A row of equal confidence is accepted, too.
    ends = np.searchsorted(-confidence[order], -confidence[order], side="right") - 1
    enough = np.flatnonzero(wilson_interval(counts - 1, counts, _ONE_SIDED)[0] >= precision)
    if not len(enough):
        return None
    found = None
    for last in np.unique(ends[np.linspace(enough[0], len(order) - 1, _STEPS).astype(int)]).tolist():
        required = float(confidence[order[last]])
        hit = hits[last] if right_at is None else right_at(required)[order[: last + 1]].sum()
        if wilson_interval(hit, counts[last], _ONE_SIDED)[0] < precision:
            break
        found = Threshold(precision, required, last + 1, round(float(hit)), len(order))
    return found


def find_limit(scores: npt.NDArray[np.float64], coverage: float) -> float | None:
    """The score up to which an answer belongs to a set, from `scores` (rows,) of right answers, best lowest.

    A set then holds the right answer of a new row like these with a probability of at least `coverage`, below 1: split
    conformal prediction (Angelopoulos and Bates, 2023, "A Gentle Introduction", section 1). None where there are too
    few rows for that: 9 show 0.9 at most.
    """
    rank = max(1, math.ceil((len(scores) + 1) * coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else None


def worst_rows(scores: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.int64]:
    """The rows with the lowest of `scores` (rows,), lowest first, at most `most`; none that is fully right.

    Scores are shares, of which the best is 1, or negative errors, of which the best is 0 (as -0.0).
    """
    first = np.argsort(scores, kind="stable")[:most]
    best = 0.0 if np.signbit(scores).any() else 1.0
    return first[scores[first] < best]


def confident_errors(
    probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64], most: int
) -> npt.NDArray[np.int64]:
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != targets)
    return wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:most]


@dataclass(frozen=True)
class SignTest:
    """Texts on which the first of two models is better, texts on which the second is, and the two-sided p-value."""

    better: int
    worse: int
    p: float


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def sign_test(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> SignTest:
    """Compare scores (texts,) of two models text by text, larger is better, by the exact sign test.

    For scores that are right or wrong it is McNemar's test (1947, Psychometrika 12) in its exact form.
    """
    from scipy.stats import binomtest

    better, worse = int((first > second).sum()), int((first < second).sum())
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return SignTest(better, worse, p)

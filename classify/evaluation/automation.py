"""Find what a required precision, or coverage, needs, on rows that the model was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.evaluation.metrics import wilson_interval

# Quantile of the normal distribution for a bound that holds in 95 of 100 cases.
_ONE_SIDED = 1.6448536269514722
# Sets of rows that are tested, each larger than the one before.
_STEPS = 20


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


def find_threshold(confidence: npt.NDArray[Any], right: npt.NDArray[Any], precision: float) -> Threshold | None:
    """A low confidence (of (rows,)) whose predictions are `right` (rows,) with at least this precision.

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
        if wilson_interval(hits[last], counts[last], _ONE_SIDED)[0] < precision:
            break
        found = Threshold(precision, float(confidence[order[last]]), last + 1, round(hits[last]), len(order))
    return found


def find_limit(scores: npt.NDArray[np.float64], coverage: float) -> float | None:
    """The score up to which an answer belongs to a set, from `scores` (rows,) of right answers, best lowest.

    A set then holds the right answer of a new row like these with a probability of at least `coverage`, below 1: split
    conformal prediction (Angelopoulos and Bates, 2023, "A Gentle Introduction", section 1). None where there are too
    few rows for that: 9 show 0.9 at most.
    """
    rank = max(1, math.ceil((len(scores) + 1) * coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else None

"""Find the confidence threshold for a required precision, on rows that the model was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.evaluation.metrics import wilson_interval


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
    """Return the lowest confidence (of (rows,)) whose predictions are `right` (rows,) with at least this precision.

    The lower bound of the 95 % interval has to reach it: 10 right predictions of 10 show a precision of 0.72. None if
    no confidence does.
    """
    order = np.argsort(-confidence, kind="stable")
    counts, hits = np.arange(1, len(order) + 1), np.cumsum(right[order])
    # A row of equal confidence is accepted, too.
    last_of_equals = np.append(np.diff(confidence[order]) < 0, True)
    reached = np.flatnonzero((wilson_interval(hits, counts)[0] >= precision) & last_of_equals)
    if not len(reached):
        return None
    last = int(reached[-1])
    return Threshold(precision, float(confidence[order[last]]), last + 1, round(hits[last]), len(order))

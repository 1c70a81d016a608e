"""Find the confidence threshold for a required precision, on rows that the model was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Fewest rows for a precision estimate.
FEWEST = 10


@dataclass(frozen=True)
class Threshold:
    """The `precision` that was required, the `confidence` that reaches it, and how many of the `rows` have it."""

    precision: float
    confidence: float
    accepted: int
    rows: int


def find_threshold(
    confidence: npt.NDArray[Any], right: npt.NDArray[Any], precision: float, fewest: int = FEWEST
) -> Threshold | None:
    """Return the lowest confidence (of (rows,)) at which the share of `right` predictions is at least `precision`.

    None if there is none that at least `fewest` rows reach.
    """
    order = np.argsort(-confidence, kind="stable")
    reached = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    # A row of equal confidence is accepted, too.
    last_of_equals = np.append(np.diff(confidence[order]) < 0, True)
    enough = np.flatnonzero((reached >= precision) & last_of_equals & (np.arange(len(order)) >= fewest - 1))
    if not len(enough):
        return None
    last = int(enough[-1])
    return Threshold(precision, float(confidence[order[last]]), last + 1, len(order))

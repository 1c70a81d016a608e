"""Prediction sets that hold the right answer in a required share of rows: split conformal prediction.

Angelopoulos and Bates, 2023, "Conformal Prediction: A Gentle Introduction", section 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def find_limit(scores: npt.NDArray[np.float64], coverage: float) -> float | None:
    """The score up to which an answer belongs to a set, from `scores` (rows,) of right answers, best lowest.

    A set then holds the right answer of a new row like these with a probability of at least `coverage`, below 1. None
    where there are too few rows for that: 9 show 0.9 at most.
    """
    rank = max(1, math.ceil((len(scores) + 1) * coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else None

"""Find labels that may be wrong, from out-of-fold probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# With fewer rows the mean probability of a class says little, and it would be suggested everywhere.
_FEWEST_ROWS = 5


@dataclass(frozen=True)
class Suspects:
    """Rows (n,) whose label may be wrong, the surest first, and the class (n,) that is suggested for each."""

    rows: npt.NDArray[np.int64]
    suggested: npt.NDArray[np.int64]


def find_suspects(probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> Suspects:
    """Find the rows that are counted off the diagonal of the confident joint, ranked by normalized margin.

    `probabilities` (rows, classes) are of models that were not trained on the row, `targets` (rows,) the given classes.
    Each class of five rows or more has a threshold: its mean probability over the rows with that label. A row counts
    for the most probable class that reaches its threshold (Northcutt et al., 2021, "Confident Learning", sections 3.1
    and 3.2), if that is more probable than its label.
    """
    self_confidence = probabilities[np.arange(len(targets)), targets]
    counts = np.bincount(targets, minlength=probabilities.shape[1])
    thresholds = np.bincount(targets, self_confidence, minlength=probabilities.shape[1]) / np.maximum(counts, 1)
    thresholds[counts < _FEWEST_ROWS] = np.inf
    is_candidate = (probabilities >= thresholds) & (probabilities > self_confidence[:, None])
    suggested = np.where(is_candidate, probabilities, -1.0).argmax(axis=1)
    rows = np.flatnonzero(is_candidate.any(axis=1))
    margin = self_confidence[rows] - probabilities[rows, suggested[rows]]
    rows = rows[np.argsort(margin, kind="stable")]
    return Suspects(rows, suggested[rows])

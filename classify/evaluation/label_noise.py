"""Find labels that are probably wrong, from out-of-fold probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Suspects:
    """Rows (n,) whose label is probably wrong, the surest first, and the class (n,) that each probably has."""

    rows: npt.NDArray[np.int64]
    suggested: npt.NDArray[np.int64]


def find_suspects(probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> Suspects:
    """Find the rows that are counted off the diagonal of the confident joint, ranked by normalized margin.

    `probabilities` (rows, classes) are of models that were not trained on the row, `targets` (rows,) the given classes.
    Each class has a threshold: its mean probability over the rows with that label. A row counts for the most probable
    class that reaches its threshold (Northcutt et al., 2021, "Confident Learning", sections 3.1 and 3.2). Rows whose
    label is the most probable class are no suspects.
    """
    self_confidence = probabilities[np.arange(len(targets)), targets]
    counts = np.bincount(targets, minlength=probabilities.shape[1])
    thresholds = np.bincount(targets, self_confidence, minlength=probabilities.shape[1]) / np.maximum(counts, 1)
    thresholds[counts == 0] = np.inf
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    suggested = confident.argmax(axis=1)
    agrees = self_confidence == probabilities.max(axis=1)  # of rare classes the mean can be low
    rows = np.flatnonzero((confident.max(axis=1) >= 0) & (suggested != targets) & ~agrees)
    margin = self_confidence[rows] - probabilities[rows, suggested[rows]]
    rows = rows[np.argsort(margin, kind="stable")]
    return Suspects(rows, suggested[rows])

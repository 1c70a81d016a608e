"""Find labels that may be wrong, from out-of-fold probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# With fewer rows the mean probability of a class says little, and it would be suggested everywhere.
_FEWEST_ROWS = 5
# By how much more probable the suggested class must be, the share of the rows that are listed, and the most that a
# person reviews. On seven public sets of 300 and 1,500 rows, 57 to 100 % of such lines were wrong where 2 to 15 % of
# the labels were; where none was, they are the 1 % at most.
_MARGIN = 0.95
_SHARE = 0.01
_MOST = 30
# Accuracy by which the model must beat always giving the most frequent class.
_CLEARLY = 0.1


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


def choose_to_review(probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> Suspects:
    """The suspects that are worth a person's look: the surest ones, and none of a model that knows little."""
    found, rows = find_suspects(probabilities, targets), len(targets)
    accuracy = float((probabilities.argmax(axis=1) == targets).mean())
    if accuracy < np.bincount(targets).max() / rows + _CLEARLY:
        return Suspects(found.rows[:0], found.suggested[:0])
    margin = probabilities[found.rows, found.suggested] - probabilities[found.rows, targets[found.rows]]
    count = min(int((margin >= _MARGIN).sum()), max(1, int(_SHARE * rows)), _MOST)
    return Suspects(found.rows[:count], found.suggested[:count])

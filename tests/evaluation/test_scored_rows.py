"""The rows that a report shows as the largest errors."""

from __future__ import annotations

import numpy as np
import pytest

from classify.evaluation.scored_rows import worst_rows
from classify.tasks import multi_label, regression


@pytest.mark.parametrize(
    ("predicted", "worst"),
    [
        ([[1, 0], [1, 0], [1, 0]], [0, 1, 2]),  # all equally wrong
        ([[0, 1], [0, 1], [0, 1]], []),  # all right
        ([[0, 1], [1, 0], [1, 1]], [1, 2]),
    ],
)
def test_labels_that_are_not_fully_right(predicted: list[list[int]], worst: list[int]) -> None:
    targets = np.array([[0, 1]] * 3)
    scores = multi_label.make(["a", "b"]).scores.row_scores(np.array(predicted), targets)
    assert worst_rows(scores, 20).tolist() == worst


@pytest.mark.parametrize(
    ("predicted", "worst"), [([2.0, 3.0, 4.0], [0, 1, 2]), ([1.0, 2.0, 3.0], []), ([1.0, 4.0, 3.5], [1, 2])]
)
def test_scores_that_are_not_exact(predicted: list[float], worst: list[int]) -> None:
    targets = np.array([1.0, 2.0, 3.0])
    scores = regression.make(["score"]).scores.row_scores(np.array(predicted), targets)
    assert worst_rows(scores, 20).tolist() == worst


def test_at_most_so_many() -> None:
    assert worst_rows(np.zeros(10), 4).tolist() == [0, 1, 2, 3]

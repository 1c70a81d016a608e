"""Prediction sets hold the right answer as often as they promise."""

from __future__ import annotations

import numpy as np
import pytest

from classify.evaluation.metrics import softmax
from classify.evaluation.scored_rows import find_limit
from classify.tasks import regression, single_label


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_new_rows_are_covered(coverage: float) -> None:
    """On average over draws of 50 rows: of a model that is too sure of itself, and of one that knows nothing."""
    generator, task = np.random.default_rng(0), single_label.make(["a", "b", "c", "d"])
    for sharpness in (4.0, 0.0):
        logits = generator.normal(size=(40_000, 4)) + 3 * np.eye(4)[np.arange(40_000) % 4]
        targets = np.arange(40_000) % 4
        misfit = task.answers.misfit(softmax(sharpness * logits), targets).reshape(400, 100)
        limits = np.array([find_limit(draw[:50], coverage) for draw in misfit])
        covered = (misfit[:, 50:] <= limits[:, None]).mean(axis=1)
        assert covered.mean() > coverage - 2 * covered.std() / 20
        assert covered.mean() < coverage + 0.03 or sharpness == 0, "sets are no larger than they must be"


def test_few_rows_show_little() -> None:
    scores = np.linspace(0, 1, 9)
    assert find_limit(scores, 0.9) == 1.0
    assert find_limit(scores, 0.91) is None
    assert find_limit(scores[:0], 0.5) is None


def test_cells() -> None:
    single = single_label.make(["a", "b", "c"]).answers
    probabilities = np.array([[0.2, 0.5, 0.3], [0.98, 0.01, 0.01], [0.4, 0.3, 0.3]])
    assert list(single.set_fields(probabilities, 0.75)) == [["b|c"], ["a"], ["a|b|c"]]
    assert list(single.set_fields(probabilities, 0.01)) == [["b"], ["a"], ["a"]], "never empty"
    scores = regression.make("stars").answers
    assert scores.misfit(np.array([[1.5], [2.0]]), np.array([1.0, 4.0])).tolist() == [0.5, 2.0]
    assert list(scores.set_fields(np.array([[1.5]]), 0.25, ".2f")) == [["1.25", "1.75"]]

"""The curve of scores by rows predicts what twice as many rows bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classify.evaluation.learning_curve import Curve, fit_power_law
from classify.evaluation.metrics import share_interval


@pytest.mark.parametrize(("a", "b", "c"), [(0.1, 0.1, 0.5), (0.0, 0.2, 0.3), (0.3, 0.0, 1.0)])
def test_a_law_is_found(a: float, b: float, c: float) -> None:
    shares = np.array([0.1, 0.25, 0.5, 1.0])
    fitted = fit_power_law(shares, a + b * shares**-c)
    assert fitted[0] + fitted[1] * 2 ** -fitted[2] == pytest.approx(a + b * 2**-c, abs=1e-6)


def test_more_rows_never_make_it_worse() -> None:
    assert fit_power_law(np.array([0.1, 0.5, 1.0]), np.array([0.1, 0.2, 0.3]))[1] == 0


def test_twice_as_many_rows_score_within_the_interval() -> None:
    """In nine of ten cases at least: errors as a power law, of which 300 rows and three draws of each size are seen."""
    draw, held = np.random.default_rng(0), 0
    for _ in range(200):
        a, b, c = draw.uniform(0, 0.2), draw.uniform(0.02, 0.2), draw.uniform(0.2, 0.8)
        sizes = np.repeat([100, 250, 500, 1000], [3, 3, 3, 1])
        right = draw.binomial(300, 1 - (a + b * (sizes / 1000) ** -c).clip(max=0.9))
        points = tuple(zip(sizes.tolist(), (right / 300).tolist(), strict=True))
        curve = Curve("accuracy", points, share_interval(np.arange(300) < right[-1]), {})
        _, (low, high) = curve.predict()
        held += low <= 1 - (a + b * 2**-c) <= high
    assert held >= 180


def test_the_file(tmp_path: Path) -> None:
    curve = Curve("accuracy", ((10, 0.5), (20, 0.75)), (0.6, 0.9), {"a": (0.5, 0.75), "b": (0.5, 0.4)}, "fast")
    curve.write(tmp_path)
    assert Curve.read(tmp_path) == curve
    assert Curve.read(tmp_path / "none") is None
    assert curve.most_gained() == [("a", 0.5, 0.75)]
    assert "twice as many rows: accuracy 0." in curve.line()

"""Temperature and calibration error, against values known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from classify.evaluation.calibration import calibration_error, error_by_chance, fit_temperature, probability_scores
from classify.evaluation.metrics import softmax


def drawn(rows: int, sharpness: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are `sharpness` times those that the targets are drawn from."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, 4)) * 2
    targets = np.array([generator.choice(4, p=row) for row in softmax(logits)])
    return logits * sharpness, targets


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_temperature_of_enough_rows_is_found(temperature: float) -> None:
    assert fit_temperature(*drawn(20_000, temperature)) == pytest.approx(temperature, rel=0.05)


def test_a_few_rows_that_are_all_right_do_not_make_it_sure() -> None:
    logits = np.eye(4)[np.arange(12) % 4]
    assert 0.1 < fit_temperature(logits, np.arange(12) % 4) < 1.0
    assert fit_temperature(np.zeros((0, 4)), np.zeros(0, dtype=np.int64)) == 1.0


def test_the_calibration_error_of_two_bins_by_hand() -> None:
    """Two rows, a bin each: 0.9 and right, 0.6 and wrong."""
    assert calibration_error(np.array([0.9, 0.6]), np.array([1.0, 0.0])) == pytest.approx((0.1 + 0.6) / 2)
    # 30 rows at 0.8, of which 24 are right in every bin of two: gaps of 0.8 - 0.8 on the whole, not bin by bin.
    right = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 30)
    assert calibration_error(np.full(150, 0.8), right) == pytest.approx(0.0, abs=1e-12)


def test_equal_confidences_share_a_bin() -> None:
    """So the order of the rows changes nothing."""
    confidence, right = np.repeat([0.7, 0.4], 300), np.tile([1.0] * 7 + [0.0] * 3, 60)
    by_label = np.concatenate([np.sort(right[:300]), right[300:]])
    errors = [calibration_error(confidence, order) for order in (right, by_label)]
    assert errors == pytest.approx([0.15, 0.15])


def test_calibrated_probabilities_have_a_small_error_and_sharp_ones_a_large_one() -> None:
    good, sharp = (probability_scores(*drawn(4_000, factor), seed=1) for factor in (1.0, 4.0))
    assert good["ece"] < 0.03 < 0.15 < sharp["ece"]
    assert good["log_loss"] < sharp["log_loss"]
    assert good["brier"] < sharp["brier"]
    assert good["ece"] == pytest.approx(good["ece_by_chance"], abs=0.01)
    assert sharp["ece"] > 10 * sharp["ece_by_chance"]


def test_the_error_by_chance_shrinks_with_the_rows() -> None:
    """With the inverse root of the rows per bin: half of it with four times the rows."""
    generator = np.random.default_rng(0)
    few, many = (error_by_chance(generator.beta(4, 1, count), seed=0) for count in (400, 1_600))
    assert many == pytest.approx(few / 2, rel=0.15)
    assert error_by_chance(np.ones(10), seed=0) == 0


def test_the_brier_score_by_hand() -> None:
    logits = np.log(np.array([[0.7, 0.3], [0.5, 0.5]]))
    scores = probability_scores(logits, np.array([0, 1]), seed=0)
    assert scores["brier"] == pytest.approx((0.09 + 0.09 + 0.25 + 0.25) / 2)

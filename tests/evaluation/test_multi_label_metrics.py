"""Scores of label sets beside scikit-learn's, thresholds, and the calibration of each label."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score, jaccard_score, roc_auc_score

from classify.evaluation.calibration import binary_scores, choose_thresholds, fit_scale_and_shift
from classify.evaluation.metrics import binary_cross_entropy, sigmoid
from classify.tasks import multi_label, regression
from classify.tasks.regression import correlation_interval

SCORES = multi_label.make(["a", "b", "c", "d"]).scores


def drawn(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Targets of frequent and rare labels, and logits that say something about them."""
    draw = np.random.default_rng(seed)
    targets = (draw.random((rows, 4)) < [0.5, 0.2, 0.1, 0.02]).astype(np.uint8)
    return targets, draw.normal(size=(rows, 4)) + 2.0 * targets - [0, 1, 2, 4]


def test_they_are_scikit_learns() -> None:
    targets, logits = drawn()
    predicted, probabilities = (logits > 0).astype(np.uint8), sigmoid(logits)
    result = SCORES.score(logits, targets, seed=0)
    assert result["weighted_f1"] == pytest.approx(f1_score(targets, predicted, average="weighted"))
    assert result["roc_auc"] == pytest.approx(roc_auc_score(targets, probabilities))
    assert result["micro_f1"] == pytest.approx(f1_score(targets, predicted, average="micro"))
    assert result["macro_f1"] == pytest.approx(f1_score(targets, predicted, average="macro", zero_division=0.0))
    assert result["average_precision"] == pytest.approx(
        average_precision_score(targets, probabilities, average="macro")
    )
    assert result["subset_accuracy"] == pytest.approx((targets == predicted).all(axis=1).mean())
    some = targets.any(axis=1) | predicted.any(axis=1)
    rows = jaccard_score(targets[some], predicted[some], average="samples")
    assert result["jaccard"] == pytest.approx(rows * some.mean() + 1 - some.mean()), "two rows without labels agree"


def test_a_label_without_rows_does_not_count() -> None:
    targets, logits = drawn()
    targets[:, 3] = 0
    result = SCORES.score(logits, targets, seed=0)
    kept = average_precision_score(targets[:, :3], sigmoid(logits)[:, :3], average="macro")
    assert result["average_precision"] == pytest.approx(kept)
    assert SCORES.metrics(targets, targets)["macro_f1"] == 1.0


def test_intervals_hold_the_score() -> None:
    targets, logits = drawn()
    result = SCORES.score(logits, targets, seed=0)
    for name in ("micro_f1", "macro_f1"):
        interval = result.intervals[name]
        assert interval is not None
        assert interval[0] < result[name] < interval[1]
    predicted, generator = (logits > 0).astype(np.uint8), np.random.default_rng(0)
    draws = [generator.integers(len(targets), size=len(targets)) for _ in range(500)]
    for name in ("micro", "macro"):
        scores = [f1_score(targets[rows], predicted[rows], average=name, zero_division=0.0) for rows in draws]
        assert result.intervals[f"{name}_f1"] == pytest.approx(np.percentile(scores, [2.5, 97.5]), abs=0.02)


def test_thresholds_have_the_highest_f1() -> None:
    targets, logits = drawn()
    probabilities = sigmoid(logits)
    chosen = choose_thresholds(probabilities, targets)
    for number in range(3):
        column, target = probabilities[:, number], targets[:, number]
        best = max(f1_score(target, column >= cut) for cut in column)
        assert f1_score(target, column >= chosen[number]) == pytest.approx(best)
    assert targets[:, 3].sum() < 10
    assert (probabilities[:, 3] >= chosen[3]).sum() == targets[:, 3].sum(), "as many as there are"


def test_a_label_that_is_never_seen_and_one_probability_for_all() -> None:
    targets, probabilities = np.zeros((20, 2), dtype=np.uint8), np.full((20, 2), 0.3)
    targets[:3, 1] = 1
    chosen = choose_thresholds(probabilities, targets)
    assert chosen[0] == 0.5
    assert not (probabilities[:, 1] >= chosen[1]).any(), "no cut takes three of equal rows"


def test_a_label_is_calibrated_by_scale_and_shift() -> None:
    draw = np.random.default_rng(1)
    true = draw.normal(size=5_000)
    target = (draw.random(5_000) < sigmoid(true)).astype(np.uint8)
    scale, shift = fit_scale_and_shift(4 * true + 3, target)  # too sure, and too often yes
    assert scale == pytest.approx(0.25, rel=0.2)
    assert shift == pytest.approx(-0.75, abs=0.1)
    before, after = (binary_scores(logits, target, 0) for logits in (4 * true + 3, scale * (4 * true + 3) + shift))
    assert after["log_loss"] < before["log_loss"]
    assert after["ece"] < 0.03 < before["ece"]
    assert after["log_loss"] == pytest.approx(binary_cross_entropy(scale * (4 * true + 3) + shift, target))


def test_labels_are_stratified_by_the_rarest() -> None:
    targets = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=np.uint8)
    assert multi_label.make(["a", "b", "c"]).targets.stratify_by(targets).tolist() == [0, 1, 2, 3, 1]


def test_label_sets_are_alike_by_their_common_share() -> None:
    targets = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]], dtype=np.uint8)
    expected = [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(multi_label.make(["a", "b", "c"]).targets.similarity(targets), expected)


def test_scores_are_scipys() -> None:
    """Pearson's and Spearman's correlation are GLUE's scores of STS-B."""
    draw = np.random.default_rng(0)
    targets = draw.normal(size=100)
    predicted = targets + draw.normal(size=100)
    result = regression.make(["score"]).scores.metrics(predicted, targets)
    expected = pearsonr(predicted, targets)
    assert result["pearson"] == pytest.approx(expected.statistic)
    assert result["spearman"] == pytest.approx(spearmanr(predicted, targets).statistic)
    assert result["mse"] == pytest.approx(((predicted - targets) ** 2).mean())
    interval = expected.confidence_interval()
    assert correlation_interval(result["pearson"], 100) == pytest.approx((interval.low, interval.high))
    for constant in (1.0, 3.0142):  # the mean of the second is rounded
        metrics = regression.make(["score"]).scores.metrics(np.full(7, constant), np.arange(7.0))
        assert metrics["pearson"] == 0.0, "a constant has no correlation"

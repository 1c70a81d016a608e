"""Metrics of classes beside the functions that GLUE's official scores are computed with."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, matthews_corrcoef, top_k_accuracy_score

from classify.config.schema import TrainingConfig
from classify.errors import InputError
from classify.evaluation.metrics import Scores
from classify.tasks import regression, single_label
from classify.tasks.base import Task


def score(labels: list[str], rows: int = 200, seed: int = 0) -> tuple[Task, Scores, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    targets = draw.integers(len(labels), size=rows)
    logits = draw.normal(size=(rows, len(labels))).astype(np.float32)
    logits[np.arange(rows), targets] += 1.0
    task = single_label.make(labels)
    return task, task.scores.score(logits, targets, seed=0), logits, targets


def test_glue_scores_of_two_classes() -> None:
    """MRPC and QQP: accuracy and F1 of class 1; CoLA: Matthews' correlation."""
    _, scores, logits, targets = score(["0", "1"])
    predicted = logits.argmax(axis=1)
    assert scores["accuracy"] == pytest.approx(accuracy_score(targets, predicted))
    assert scores["f1"] == pytest.approx(f1_score(targets, predicted))
    assert scores["mcc"] == pytest.approx(matthews_corrcoef(targets, predicted))


def test_many_classes() -> None:
    _, scores, logits, targets = score([f"class {number:02}" for number in range(30)], rows=600)
    predicted = logits.argmax(axis=1)
    assert scores["weighted_f1"] == pytest.approx(f1_score(targets, predicted, average="weighted"))
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(targets, predicted))
    assert scores["top_5_accuracy"] == pytest.approx(top_k_accuracy_score(targets, logits, k=5))
    assert "f1" not in scores.values


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c"], [str(n) for n in range(30)], ["1", "2", "3"]])
def test_each_may_select_the_weights(labels: list[str]) -> None:
    task, scores, _, _ = score(labels)
    assert set(task.scores.selection) == set(scores.values), "--metric-for-best-model takes what is computed"
    for name in task.scores.selection:
        task.check_settings(TrainingConfig(metric_for_best_model=name))
    with pytest.raises(InputError, match="macro_f1, accuracy"):
        task.check_settings(TrainingConfig(metric_for_best_model="bleu"))
    assert "mae" in regression.make("a").scores.selection

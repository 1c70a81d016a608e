"""What the summary of a run says of a score that cannot be trusted or could be better."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from classify.evaluation import advice, metrics
from classify.evaluation.baseline import Baseline
from classify.evaluation.scored_rows import SignTest, sign_test
from classify.tasks import single_label
from tests.support.processes import ROOT

LABELS = ["a", "b", "c", "d"]


def scored(targets: list[int], predicted: list[int], labels: list[str] = LABELS) -> metrics.Scores:
    return metrics.score_classes(np.eye(len(labels))[predicted], np.array(targets), labels, seed=0)


def test_few_rows_say_little() -> None:
    few = scored([0, 1] * 6, [0, 1] * 5 + [1, 0])
    (line,) = advice.warn_few_rows(few, "test")
    assert line == ("12 test rows are too few: accuracy has a 95 % CI of 0.552 to 0.953; add rows or give --test-data")
    assert "12 evaluation rows" in advice.warn_few_rows(few, "evaluation")[0]
    assert advice.warn_few_rows(scored([0, 1] * 60, [0, 1] * 50 + [1, 0] * 10), "test") == []


def test_classes_that_are_never_right_are_named() -> None:
    targets = [0] * 20 + [1] * 5 + [2] * 4 + [3] * 20
    result = scored(targets, [0] * 24 + [1] + [0] * 4 + [0] * 18 + [3] * 2)
    assert advice.warn_missed_classes(result) == [], "a recall of 0.1 or more, or fewer than five rows"
    result = scored(targets, [0] * 29 + [0] * 19 + [3])
    (line,) = advice.warn_missed_classes(result)
    assert line.startswith("'d' (1 of 20 rows), 'b' (0 of 5 rows): almost never predicted correctly; ")
    assert "add rows" in line
    assert "--class-weights balanced" in line
    assert "--class-weights" not in advice.warn_missed_classes(result, balanced=True)[0]


def test_at_most_five_missed_classes_are_named() -> None:
    labels = [f"class {number}" for number in range(7)]
    targets = [number for number in range(7) for _ in range(5 + number)]
    (line,) = advice.warn_missed_classes(scored(targets, [0 if t else 1 for t in targets], labels))
    assert line.startswith("'class 6' (0 of 11 rows), 'class 5' (0 of 10 rows)")
    assert "'class 2' (0 of 7 rows) and 2 more: " in line


def test_the_largest_class_of_the_training_part_is_the_score_to_beat() -> None:
    train = np.array([1] * 60 + [0] * 40)
    other = single_label.make(LABELS).scores.majority(train, np.array([1] * 31 + [0] * 69))
    assert (other.label, other.metrics["accuracy"]) == ("b", 0.31), (
        "though another class is the largest of the scored rows"
    )
    targets = np.array([1] * 69 + [0] * 31)
    majority = single_label.make(LABELS).scores.majority(train, targets)
    assert majority.label == "b"
    assert majority.metrics["macro_f1"] == pytest.approx((2 * 69 / 169 + 0) / 2)
    assert majority.as_json() == {"label": "b", "accuracy": 0.69, "macro_f1": majority.metrics["macro_f1"]}
    close = scored(targets.tolist(), [1] * 69 + [0] * 5 + [1] * 26)
    (line,) = advice.compare_with_majority(close, majority)
    assert line.startswith("always predicting 'b' scores accuracy 0.6900, macro F1 0.4083; ")
    assert advice.compare_with_majority(scored(targets.tolist(), targets.tolist()), majority) == []


def test_one_answer_for_all_rows() -> None:
    targets = [0] * 30 + [1] * 30
    (line,) = advice.warn_single_class(scored(targets, [1] * 60), "test", trained=True)
    assert line.startswith("all 60 test rows are predicted as 'b'")
    assert "--learning-rate" in line
    assert advice.warn_single_class(scored(targets, [1] * 59 + [0]), "test", trained=True) == []
    one_class = scored([1] * 8, [1] * 8)
    assert advice.warn_single_class(one_class, "test", trained=True) == [], "there is one class only to be predicted"
    (line,) = advice.warn_single_class(scored(targets, [1] * 60), "test", trained=False, balanced=True)
    assert line.endswith("try --epochs 3, another --model")


@pytest.mark.parametrize(
    ("first", "last", "epochs", "part"),
    [
        (1.5, 1.48, 3.0, "no lower than guessing (1.386)"),
        (1.386295, 1.386295, 1.0, "no lower than guessing"),
        (2.0, 1.5, 3.0, None),  # it falls; dropout makes it larger than that of the evaluation
        (0.4, 0.9, 3.0, "rose from 0.400 in the first epoch to 0.900 in the last"),
        (0.4, 0.42, 3.0, None),
        (1.9, 1.5, 0.9, None),
        (1.2, 0.2, 3.0, None),
    ],
)
def test_a_loss_that_does_not_fall(first: float, last: float, epochs: float, part: str | None) -> None:
    lines = advice.warn_loss(advice.TrainingLoss(first, last, epochs, math.log(4)))
    if part is None:
        assert lines == []
        return
    assert part in lines[0]
    assert "--learning-rate" in lines[0]
    assert "--warmup-steps" in lines[0]


def summary(result: metrics.Scores, targets: list[int], rival: float | None = None, last: float = 0.1) -> list[str]:
    majority = single_label.make(LABELS).scores.majority(np.array(targets), np.array(targets))
    loss = advice.TrainingLoss(first=0.9, last=last, epochs=3.0, chance=math.log(len(LABELS)))
    baseline = None if rival is None else Baseline({"macro_f1": rival}, 1, 1.0)
    return advice.notes(
        result,
        "test",
        majority=majority,
        baseline=baseline,
        paired=SignTest(100, 0, 0.0),
        metric="macro_f1",
        loss=loss,
        balanced=False,
    )


def test_a_good_run_has_no_notes() -> None:
    targets = [0, 1, 2, 3] * 30
    assert summary(scored(targets, targets), targets, rival=0.9) == []


def test_rows_that_cannot_tell_model_and_baseline_apart_are_named() -> None:
    """By the paired test of the report: what is clear row by row needs no interval."""
    targets = [0, 1, 2] * 10
    result, baseline = scored(targets, targets), Baseline({"macro_f1": 0.8, "accuracy": 0.8}, 1, 1.0)
    for better, worse, expected in ((6, 0, 0), (12, 2, 0), (5, 0, 1), (0, 0, 1), (0, 12, 1)):
        right = np.array([1] * better + [0] * worse)
        lines = advice.compare_with_baseline(result, "test", baseline, sign_test(right, 1 - right), "macro_f1")
        assert len(lines) == expected, (better, worse)
    (line,) = advice.compare_with_baseline(result, "test", baseline, SignTest(5, 0, 0.0625), "macro_f1")
    assert line.startswith("on 30 test rows the model is not clearly better than the TF-IDF baseline (right or nearer ")
    assert "on 5, worse on 0, p = 0.062)" in line


def test_one_cause_has_one_line() -> None:
    """A model with one answer for all also misses classes and is no better than the majority: said once."""
    targets = [0] * 60 + [1] * 60
    lines = summary(scored(targets, [0] * 120), targets, rival=0.9, last=math.log(4) + 0.1)
    assert [line.split()[0] for line in lines] == ["the", "all", "training", "120"]
    assert lines[0].startswith("the TF-IDF baseline has a higher macro F1 (0.900, the model ")
    assert all("\n" not in line for line in lines)


def test_advice_needs_no_torch() -> None:
    code = "import classify.evaluation.advice, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

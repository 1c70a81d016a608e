"""What the summary of a run says of a score that cannot be trusted or could be better."""

from __future__ import annotations

import math

import numpy as np
import pytest

from classify.evaluation import advice
from classify.evaluation.metrics import Baseline
from classify.evaluation.scored_rows import SignTest
from classify.tasks import single_label

LABELS = ["a", "b", "c", "d"]
EVEN = [0, 1, 2, 3] * 30
BETTER = SignTest(100, 0, 0.0)


def notes(
    targets: list[int],
    predicted: list[int],
    *,
    labels: list[str] = LABELS,
    rival: float = 0.0,
    paired: SignTest = BETTER,
    loss: tuple[float, float, float] = (0.9, 0.1, 3.0),
    balanced: bool = False,
) -> list[str]:
    """The notes on predictions; `loss` is that of the first and the last epoch, and the epochs."""
    first, last, epochs = loss
    task = single_label.make(labels)
    return advice.notes(
        task.scores.score(np.eye(len(labels))[predicted], np.array(targets), seed=0),
        "test",
        majority=task.scores.majority(np.array(targets), np.array(targets)),
        baseline=Baseline({"macro_f1": rival}, 1, 1.0, ""),
        paired=paired,
        metric="macro_f1",
        loss=advice.TrainingLoss(first, last, epochs, math.log(4)),
        balanced=balanced,
    )


def test_few_rows_say_little() -> None:
    line = notes([0, 1] * 6, [0, 1] * 5 + [1, 1], labels=["a", "b"])[-1]
    assert line.startswith("12 test rows are too few: accuracy has a 95 % CI of 0.646 to 0.985; ")
    assert notes([0, 1] * 60, [0, 1] * 50 + [1, 0] * 10, labels=["a", "b"]) == []


def test_classes_that_are_never_right_are_named_largest_first() -> None:
    targets = [0] * 40 + [1] * 5 + [2] * 4 + [3] * 20
    predicted = [0] * 40 + [0] * 9 + [0] * 19 + [3]
    (line,) = (line for line in notes(targets, predicted) if "almost never" in line)
    assert line.startswith("'d' (1 of 20 rows), 'b' (0 of 5 rows): almost never predicted correctly; ")
    assert "--class-weights balanced" in line
    assert not any("--class-weights" in line for line in notes(targets, predicted, balanced=True))
    enough = [0] * 44 + [1] + [0] * 4 + [0] * 18 + [3] * 2  # a recall of 0.1 or more
    assert not any("almost" in line for line in notes(targets, enough))


def test_the_largest_class_of_the_training_part_is_the_score_to_beat() -> None:
    train = np.array([1] * 60 + [0] * 40)
    majority = single_label.make(LABELS).scores.majority(train, np.array([1] * 31 + [0] * 69))
    assert (majority.label, majority.metrics["accuracy"]) == ("b", 0.31), "though another is that of the scored rows"
    targets = [1] * 69 + [0] * 31
    line = notes(targets, [1] * 69 + [0] * 5 + [1] * 26)[0]
    assert line.startswith("always predicting 'b' scores accuracy 0.6900, macro F1 0.4083; ")
    assert notes(targets, targets) == []


def test_one_answer_for_all_rows() -> None:
    targets = [0] * 60 + [1] * 60
    line = notes(targets, [1] * 120)[0]
    assert line.startswith("all 120 test rows are predicted as 'b'")
    assert "--learning-rate" in line
    assert not any("predicted as" in line for line in notes([1] * 80, [1] * 80)), "there is one class only"
    line = notes(targets, [1] * 120, loss=(0.9, 0.1, 0.0), balanced=True)[0]
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
        (math.nan, math.nan, 3.0, None),  # of a loss from Python
    ],
)
def test_a_loss_that_does_not_fall(first: float, last: float, epochs: float, part: str | None) -> None:
    lines = notes(EVEN, EVEN, loss=(first, last, epochs))
    assert len(lines) == (part is not None)
    assert all(part in line and "--learning-rate" in line for line in lines if part)


@pytest.mark.parametrize(
    ("rival", "paired", "part"),
    [
        (0.8, SignTest(6, 0, 0.031), None),
        (0.8, SignTest(5, 0, 0.0625), "on 120 test rows the model is not clearly better than the TF-IDF baseline"),
        (0.8, SignTest(0, 12, 0.0), "not clearly better"),
        (1.1, BETTER, "the TF-IDF baseline has a higher macro F1 (1.100, the model 1.000)"),
    ],
)
def test_the_baseline_is_compared_row_by_row(rival: float, paired: SignTest, part: str | None) -> None:
    lines = notes(EVEN, EVEN, rival=rival, paired=paired)
    assert len(lines) == (part is not None)
    assert all(part in line for line in lines if part)


def test_one_cause_has_one_line() -> None:
    """A model with one answer for all also misses classes and is no better than the majority: said once."""
    lines = notes([0] * 60 + [1] * 60, [0] * 120, rival=0.9, loss=(0.9, math.log(4) + 0.1, 3.0))
    assert [line.split()[0] for line in lines] == ["the", "all", "training", "120"]
    assert all("\n" not in line for line in lines)

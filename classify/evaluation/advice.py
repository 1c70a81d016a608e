"""What a person should know of a finished run before they trust its score, and what to do about it: a line each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from classify.evaluation.baseline import Baseline, MajorityBaseline
from classify.evaluation.metrics import Scores, display_name, format_metrics

# A 95 % interval of accuracy that is wider says little.
_WIDE = 0.2
# A class with at least so many rows, of which a smaller share is predicted right, is missed.
_FEWEST_ROWS, _MISSED = 5, 0.1
_SHOWN = 3
# Nats by which the loss of an epoch may exceed that of the first: dropout and the order of rows move it a little.
_RISE = 0.05

_CALMER = "a lower --learning-rate, a longer warm-up (warmup_steps in --config)"


@dataclass(frozen=True)
class TrainingLoss:
    """Mean training loss of the first and the last epoch (nats a row), and how many epochs there were."""

    first: float
    last: float
    epochs: float


def notes(
    score: Scores,
    part: str,
    *,
    majority: MajorityBaseline,
    baseline: Baseline | None,
    metric: str,
    loss: TrainingLoss,
    balanced: bool,
) -> list[str]:
    """All that is to be said of the `score` of a part ("test" or "evaluation"); most runs have nothing.

    `metric` is the one to compare with the baseline by, `balanced` whether classes were weighted already. A
    model with one answer for all rows misses the other classes and is no better than the majority: said once.
    """
    lines: list[str] = []
    if baseline is not None and baseline.metrics[metric] > score[metric]:
        lines.append("the baseline is the better one here; try more --epochs, another --model or more rows")
    lines += one_answer(score, part) or [*beside_majority(score, majority), *missed_classes(score, balanced=balanced)]
    lines += loss_not_falling(loss.first, loss.last, classes=len(score.per_class), epochs=loss.epochs)
    return lines + too_few_rows(score, part)


def too_few_rows(score: Scores, part: str) -> list[str]:
    """A line where the interval of the first metric is too wide to choose by."""
    name, interval = next(iter(score.intervals.items()), ("", None))
    low, high = interval or (0.0, 0.0)
    if high - low <= _WIDE:
        return []
    return [
        f"{score.rows} {part} rows say little: {display_name(name)} may lie anywhere from {low:.3f} to {high:.3f}; "
        "give more rows or --test-data"
    ]


def missed_classes(score: Scores, *, balanced: bool = False) -> list[str]:
    """A line that names the classes of which almost no row is predicted right, those with most rows first."""
    missed = sorted(
        (
            (int(values["support"]), round(values["recall"] * values["support"]), name)
            for name, values in score.per_class.items()
            if values["support"] >= _FEWEST_ROWS and values["recall"] < _MISSED
        ),
        key=lambda one: -one[0],
    )
    if not missed:
        return []
    named = ", ".join(f"{name!r} ({right} of {rows} rows)" for rows, right, name in missed[:_SHOWN])
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    ways = "give more rows of such a class, or merge it with another"
    return [
        f"{named}{more}: almost never predicted right; {ways if balanced else f'{ways}, or --class-weights balanced'}"
    ]


def beside_majority(score: Scores, majority: MajorityBaseline) -> list[str]:
    """A line where always giving the largest class is as good, as far as the rows can tell."""
    name, interval = next(iter(score.intervals.items()), ("", None))
    if interval is None or interval[0] > majority.metrics[name]:
        return []
    return [
        f"always saying {majority.label!r} would score {format_metrics(majority.metrics)}, and "
        "the model is not clearly better; try more --epochs, another --model or more rows"
    ]


def one_answer(score: Scores, part: str) -> list[str]:
    """A line where all rows, of several classes, are predicted as the same one."""
    answers = [name for name, count in score.predicted.items() if count]
    if len(answers) != 1 or sum(values["support"] > 0 for values in score.per_class.values()) < 2:
        return []
    return [
        f"all {score.rows} {part} rows are predicted as {answers[0]!r}, which is right for {score['accuracy']:.3f} of "
        f"them; try {_CALMER}, more --epochs or --class-weights balanced"
    ]


def loss_not_falling(first: float, last: float, *, classes: int, epochs: float) -> list[str]:
    """A line where the training loss says that training diverged, or never got anywhere.

    Equal probabilities for all classes have a loss of log(classes), whatever the weights and the smoothing of labels.
    """
    guessing = math.log(classes)
    if epochs >= 1 and last >= guessing and last > first - _RISE:
        return [
            f"the training loss of the last epoch is {last:.3f}, no lower than {guessing:.3f}, as of guessing among "
            f"{classes} classes: training diverged or hardly began; try {_CALMER} or more --epochs"
        ]
    if last > first + _RISE:
        return [
            f"the training loss rose from {first:.3f} in the first epoch to {last:.3f} in the last: training diverged; "
            f"try {_CALMER}"
        ]
    return []

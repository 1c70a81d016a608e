"""Warnings about the score of a finished run, one line each, with what to try."""

from __future__ import annotations

from dataclasses import dataclass

from classify.errors import SHOWN, list_some
from classify.evaluation.baseline import Baseline, MajorityBaseline
from classify.evaluation.metrics import Scores, display_name, format_metrics
from classify.evaluation.scored_rows import SURE, SignTest, show_p

# A 95 % interval of accuracy wider than this is reported.
_WIDE = 0.15
# A class is missed if it has at least _FEWEST_ROWS rows and a recall below _MISSED.
_FEWEST_ROWS, _MISSED = 5, 0.1
# Rise of the loss (nats) over the first epoch's that dropout and shuffling can cause.
_RISE = 0.05

_CALMER = "a lower --learning-rate, more --warmup-steps"


@dataclass(frozen=True)
class TrainingLoss:
    """Mean training loss of the first and the last epoch, the number of epochs, and the loss of ignoring the text."""

    first: float
    last: float
    epochs: float
    chance: float


def notes(
    score: Scores,
    part: str,
    *,
    majority: MajorityBaseline,
    baseline: Baseline | None,
    paired: SignTest | None,
    metric: str,
    loss: TrainingLoss,
    balanced: bool,
    folds: str = "",
) -> list[str]:
    """All warnings about the `score` of a split ("test", "validation" or "cross-validated"); none for most runs.

    `metric` compares model and baseline, `paired` is the test of their rows; `balanced` is true if the classes were
    weighted; `folds` is the time of a run with folds, where all rows could be scored by them. A model that predicts one
    class for all rows also misses classes and ties with the majority baseline: only the cause is reported.
    """
    lines = []
    if baseline is not None and paired is not None:
        lines = compare_with_baseline(score, part, baseline, paired, metric)
    lines += warn_single_class(score, part, trained=loss.epochs > 0, balanced=balanced) or [
        *compare_with_majority(score, majority),
        *warn_missed_classes(score, balanced=balanced),
    ]
    lines += warn_loss(loss)
    return lines + warn_few_rows(score, part, folds)


def compare_with_baseline(score: Scores, part: str, baseline: Baseline, paired: SignTest, metric: str) -> list[str]:
    """Warn if the baseline scores higher, or is not clearly worse row by row."""
    if baseline.metrics[metric] > score[metric]:
        return [
            f"the TF-IDF baseline has a higher {display_name(metric)} ({baseline.metrics[metric]:.3f}, the model "
            f"{score[metric]:.3f}); try more --epochs, another --model or more rows"
        ]
    if paired.p < SURE and paired.better > paired.worse:
        return []
    return [
        f"on {score.rows} {part} rows the model is not clearly better than the TF-IDF baseline (right or nearer on "
        f"{paired.better}, worse on {paired.worse}, {show_p(paired.p)}); the simpler model may suffice"
    ]


def warn_few_rows(score: Scores, part: str, folds: str = "") -> list[str]:
    """Warn if the interval of the first metric is too wide to compare models; see `notes` for `folds`."""
    name, interval = score.first_interval
    low, high = interval or (0.0, 0.0)
    if high - low <= _WIDE:
        return []
    ways = f"add --folds 5, which scores all rows (about {folds})" if folds else "add rows or give --test-data"
    return [
        f"{score.rows} {part} rows are too few: {display_name(name)} has a 95 % CI of {low:.3f} to {high:.3f}; {ways}"
    ]


def warn_missed_classes(score: Scores, *, balanced: bool = False) -> list[str]:
    """Name the classes with almost no correct prediction, largest first."""
    missed = sorted(
        (
            (int(values["support"]), round(values["recall"] * values["support"]), name)
            for name, values in score.per_class.items()
            if values["support"] >= _FEWEST_ROWS and values["recall"] < _MISSED
        ),
        key=lambda counts: -counts[0],
    )
    if not missed:
        return []
    shown = [f"{name!r} ({correct} of {rows} rows)" for rows, correct, name in missed[:SHOWN]]
    ways = "add rows of these classes, merge them with others"
    weights = "" if balanced else ", or try --class-weights balanced"
    return [f"{list_some(shown, len(missed))}: almost never predicted correctly; {ways}{weights}"]


def compare_with_majority(score: Scores, majority: MajorityBaseline) -> list[str]:
    """Warn if the majority baseline lies within the interval of the first metric, or above it."""
    name, interval = score.first_interval
    if interval is None or interval[0] > majority.metrics[name]:
        return []
    return [
        f"always predicting {majority.label!r} scores {format_metrics(majority.metrics)}; "
        "the model is not clearly better: try more --epochs, another --model or more rows"
    ]


def warn_single_class(score: Scores, part: str, *, trained: bool, balanced: bool = False) -> list[str]:
    """Warn if rows of several classes are all predicted as one class; `trained`: for some epochs."""
    answers = [name for name, count in score.predicted.items() if count]
    if len(answers) != 1 or sum(values["support"] > 0 for values in score.per_class.values()) < 2:
        return []
    name, value = next(iter(score.metrics.items()))
    weights = "" if balanced else " or --class-weights balanced"
    return [
        f"all {score.rows} {part} rows are predicted as {answers[0]!r} ({display_name(name)} {value:.3f}); "
        f"try {f'{_CALMER}, more --epochs' if trained else '--epochs 3, another --model'}{weights}"
    ]


def warn_loss(loss: TrainingLoss) -> list[str]:
    """Warn if the training loss rose, or stayed at that of a model that does not look at the texts."""
    if loss.epochs >= 1 and loss.last >= loss.chance and loss.last > loss.first - _RISE:
        return [
            f"training diverged or hardly began: the last epoch's loss is {loss.last:.3f}, no lower than guessing "
            f"({loss.chance:.3f}); try {_CALMER} or more --epochs"
        ]
    if loss.last > loss.first + _RISE:
        return [
            f"training diverged: the loss rose from {loss.first:.3f} in the first epoch to {loss.last:.3f} in the "
            f"last; try {_CALMER}"
        ]
    return []

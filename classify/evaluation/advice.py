"""Warnings about the score of a finished run, one line each, with what to try: a table of (condition, sentence)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from classify.errors import SHOWN, list_some
from classify.evaluation.metrics import Baseline, MajorityBaseline, Scores, display_name, format_metrics
from classify.evaluation.scored_rows import SURE, SignTest, show_p

# A 95 % interval of accuracy wider than this is reported.
_WIDE = 0.15
# Rows from which a class can be called missed.
_FEWEST_ROWS = 5
# Recall below which it is.
_MISSED = 0.1
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
    rows, (name, value) = f"{score.rows} {part} rows", next(iter(score.metrics.items()))
    bounded, interval = next(iter(score.intervals.items()), ("", None))
    low, high = interval or (math.nan, math.nan)  # no comparison with these holds
    rival = math.nan if baseline is None else baseline.metrics[metric]
    signs = paired or SignTest(0, 0, 1.0)
    is_clear = signs.p < SURE and signs.better > signs.worse
    answers = [label for label, count in score.predicted.items() if count]
    is_single = len(answers) == 1 and sum(values["support"] > 0 for values in score.per_class.values()) > 1
    missed = [
        f"{label!r} ({round(values['recall'] * values['support'])} of {int(values['support'])} rows)"
        for label, values in sorted(score.per_class.items(), key=lambda item: -item[1]["support"])
        if values["support"] >= _FEWEST_ROWS and values["recall"] < _MISSED
    ]
    try_single = f"{_CALMER}, more --epochs" if loss.epochs > 0 else "--epochs 3, another --model"
    is_chance = loss.epochs >= 1 and loss.last >= loss.chance and loss.last > loss.first - _RISE
    ways = f"add --folds 5, which scores all rows (about {folds})" if folds else "add rows or give --test-data"
    table = [
        (
            rival > score[metric],
            f"the TF-IDF baseline has a higher {display_name(metric)} ({rival:.3f}, the model {score[metric]:.3f}); "
            "try more --epochs, another --model or more rows",
        ),
        (
            rival <= score[metric] and not is_clear,
            f"on {rows} the model is not clearly better than the TF-IDF baseline (right or nearer on {signs.better}, "
            f"worse on {signs.worse}, {show_p(signs.p)}); the simpler model may suffice",
        ),
        (
            is_single,
            f"all {rows} are predicted as {answers[0] if answers else ''!r} ({display_name(name)} {value:.3f}); "
            f"try {try_single}{'' if balanced else ' or --class-weights balanced'}",
        ),
        (
            not is_single and majority.metrics.get(bounded, math.nan) >= low,
            f"always predicting {majority.label!r} scores {format_metrics(majority.metrics)}; "
            "the model is not clearly better: try more --epochs, another --model or more rows",
        ),
        (
            not is_single and missed,
            f"{list_some(missed[:SHOWN], len(missed))}: almost never predicted correctly; add rows of these classes, "
            f"merge them with others{'' if balanced else ', or try --class-weights balanced'}",
        ),
        (
            is_chance,
            f"training diverged or hardly began: the last epoch's loss is {loss.last:.3f}, no lower than guessing "
            f"({loss.chance:.3f}); try {_CALMER} or more --epochs",
        ),
        (
            not is_chance and loss.last > loss.first + _RISE,
            f"training diverged: the loss rose from {loss.first:.3f} in the first epoch to {loss.last:.3f} in the "
            f"last; try {_CALMER}",
        ),
        (
            high - low > _WIDE,
            f"{rows} are too few: {display_name(bounded)} has a 95 % CI of {low:.3f} to {high:.3f}; {ways}",
        ),
    ]
    return [sentence for holds, sentence in table if holds]

"""Summarize a run for who decides: what it does, how often it is right, against what, for what; and what to do next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from classify.config.recipe import FOLD_TRAININGS
from classify.console import format_seconds
from classify.data.split_table import BY_SEED
from classify.evaluation import suspects_file
from classify.evaluation.automation import Threshold
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import ERRORS, display_name, is_share
from classify.evaluation.scope import COLUMN
from classify.evaluation.scored_rows import SURE, show_p
from classify.evaluation.suspects_file import read_suspects
from classify.report.environment import count, percent, show, show_range
from classify.report.result import PRECISIONS, Result

_FEW = 200
# Rows of a class from which it is called weak.
FEWEST = 3
# Steps that are named, and the gain of twice as many rows from which it is.
_STEPS, _GAIN = 3, 0.005
# F1 below which a class is named, and how many are named.
WEAK, _NAMED = 0.6, 3
# Labels that the first sentence lists, and the share from which it has a digit more.
_LISTED, _NEARLY_ALL = 6, 0.95
# Percent below which a precision is not worth a threshold.
_LEAST_PRECISION = 50


@dataclass(frozen=True)
class Step:
    """What to do next, and the command for it."""

    text: str
    command: str


def sentences(result: Result) -> list[str]:
    """The sentences."""
    found = [_purpose(result), _quality(result), *_guessing(result), _comparison(result)]
    if trained := result.trained_rows:
        return [*found, f"It was trained on {count(trained, 'row')} of these, so the scores are too high."]
    return [*found, *usefulness(result)]


def _purpose(result: Result) -> str:
    labels, does = result.task.labels, result.task.answers.purpose.format(len(result.task.labels))
    if not result.task.answers.has_labels:
        return f"The model {does}."
    more = f" and {len(labels) - _LISTED} more" if len(labels) > _LISTED else ""
    return f"The model {does}: {', '.join(labels[:_LISTED])}{more}."


def _quality(result: Result) -> str:
    if (rejects := result.metrics.get(COLUMN)) is not None:
        return (
            f"It accepts {_of_100(rejects['accepted'])} of 100 texts of its classes, and accepts and sorts right "
            f"{_of_100(rejects['accuracy'])} of 100 ({count(rejects['rows'], 'text')})."
        )
    name = result.task.scores.share or result.task.scores.primary
    value, interval = result.scores[name], result.scores.get(f"{name}_interval")
    if result.task.scores.share is None:
        between = f" (95 % interval {show_range(name, interval)})" if interval else ""
        return f"It reaches {display_name(name)} {show(name, value)} on {result.scored}{between}."
    between = ""
    if interval:
        between = f"; between {_of_100(interval[0])} and {_of_100(interval[1])}, the 95 % interval"
    return f"It is right in {_of_100(value)} of 100 cases ({result.scored}{between})."


def _of_100(share: float) -> str:
    """A share of 100 cases, with a digit more where nearly all or none are right; never all if it is less."""
    if share in (0, 1) or 1 - _NEARLY_ALL < share < _NEARLY_ALL:
        return f"{100 * share:.0f}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def _guessing(result: Result) -> list[str]:
    """Compare with always giving the most frequent answer."""
    majority, name = result.majority, result.task.scores.share
    if name:
        return [f"Always {majority['label']!r} would be right in {_of_100(majority[name])} of 100."]
    name = result.task.scores.primary
    is_better = (result.scores[name] > majority[name]) != (name in ERRORS)
    return [] if is_better else [
        f"Always answering {majority['label'] or 'no label'!r} reaches {display_name(name)} "
        f"{show(name, majority[name])}: the model is no better than that."
    ]  # fmt: skip


def usefulness(result: Result) -> list[str]:
    """What part of the texts needs no look, where predictions have a confidence."""
    if not result.task.answers.has_confidence:
        return []
    found = result.thresholds
    if not found:
        none = f"no confidence reaches {100 * PRECISIONS[0]:.0f} % precision"
        if (best := _find_best(result)) is None:
            return [f"Check every prediction: on {result.scored} {none}."]
        share, command = _of_100(best.accepted / best.rows), f"--min-precision {best.precision:g}"
        return [
            f"On {result.scored} {none}; the best that can be had is {100 * best.precision:.0f} % for {share} of 100 "
            f"texts (classify predict {command})."
        ]
    best = max(found, key=lambda one: one.accepted)
    return [
        f"{_of_100(best.accepted / best.rows)} of 100 texts can be sorted without a look if "
        f"{100 * best.precision:.0f} % of these have to be right."
    ]


def _find_best(result: Result) -> Threshold | None:
    """The threshold of the highest precision below `PRECISIONS` that can be reached."""
    lower = (least / 100 for least in range(round(100 * PRECISIONS[0]) - 1, _LEAST_PRECISION, -1))
    return next(iter(result.find_thresholds(lower)), None)


def _comparison(result: Result) -> str:
    baseline = result.baseline
    if not result.is_training:
        name, before = result.task.scores.share or result.task.scores.primary, result.training_scores
        value = show(name, before[name])
        return f"In its training run it had {display_name(name)} {value} on {count(before['rows'], 'row')}."
    if baseline is None:
        return "There is no TF-IDF baseline: the texts have no words to count."
    name, paired = result.task.scores.row_metric, baseline["paired"]
    gain = result.scores[name] - baseline[name]
    size = f"{100 * abs(gain):.1f} points" if is_share(name) else f"{abs(gain):.3f}"
    values = f"{display_name(name)} {show(name, result.scores[name])} against {show(name, baseline[name])}"
    other = f"the simple baseline, a linear model on TF-IDF ({values})"
    counted = f"better on {count(paired['better'], 'row')}, worse on {paired['worse']:,}, {show_p(paired['p'])}"
    gains = (gain < 0) == (name in ERRORS)
    if paired["p"] >= SURE:
        return f"It is not {'clearly ' if gains else ''}better than {other}: {counted}."
    is_better = paired["better"] > paired["worse"]
    if is_better == gains:
        return f"It is {'better' if is_better else 'worse'} than {other} by {size}: {counted}."
    return f"Against {other} it is {counted}, yet not on average."


def _can_be_folded(result: Result) -> bool:
    """Whether the rows of one table were divided by seed, so that all could be scored."""
    by_seed = any(one["what"] == "split" and one["flag"] == BY_SEED for one in result.run["guesses"])
    return result.is_training and by_seed and result.run["config"]["data"]["test_data"] is None


def _is_fast(result: Result) -> bool:
    return bool(result.run["config"]["training"]["preset"] == "fast")


def find_steps(result: Result) -> list[Step]:
    """What is most worth doing next, at most three steps, the first ones first."""
    if result.run.get("parts"):  # no command has these parts
        return []
    steps, folder = [], shlex.quote(str(result.model))
    rows, per_class = result.scores["rows"], result.scores["per_class"]
    suspects, curve = read_suspects(result.folder, 0)[1], Curve.read(result.folder)
    again = f"classify train --like {folder}"  # with the flags of the run
    suggest = f"classify suggest --model {folder} --data unlabelled.csv --count 50"
    if suspects:
        steps.append(
            Step(
                f"review the {count(suspects, 'label')} in {suspects_file.FILE}, which may be wrong: write x into the "
                "column accept where the suggestion is right, then apply these",
                f"classify clean --apply {shlex.quote(str(result.folder / suspects_file.FILE))} --out corrected.csv",
            )
        )
    if result.is_training and _is_fast(result):
        steps.append(Step("train the whole model, without --preset fast", f"{again} --preset default"))
    # One or two rows are a typing error, or too few to be called weak.
    weak = sorted(
        (score["f1"], name) for name, score in per_class.items() if score["support"] >= FEWEST and score["f1"] < WEAK
    )
    if weak:
        named = ", ".join(f"{name} (F1 {percent(f1)})" for f1, name in weak[:_NAMED])
        kind = "class is" if len(weak) == 1 else "classes are"
        steps.append(Step(f"label more rows; the weakest {kind} {named}", suggest))
    if curve is not None and (gain := curve.predict()[0] - curve.points[-1][1]) >= _GAIN:
        more = f"{100 * gain:+.1f} points" if is_share(curve.metric) else f"{gain:+.3f}"
        steps.append(Step(f"label as many rows again: {display_name(curve.metric)} {more} is to be expected", suggest))
    if rows < _FEW:
        wide = f"{rows} {'leaves' if rows == 1 else 'leave'} a wide interval"
        if _can_be_folded(result):
            about = format_seconds(FOLD_TRAININGS * result.metrics["wall_seconds"])
            steps.append(
                Step(f"score it on all rows by cross-validation ({wide}; about {about})", f"{again} --folds 5")
            )
        else:
            flag = "--test-data" if result.is_training else "--data"
            evaluate = f"classify evaluate --model {folder} --data labelled.csv"
            steps.append(Step(f"score it on more rows ({wide}; {flag})", evaluate))
    if curve is None and result.is_training and result.task.answers.has_labels:
        steps.append(Step("measure what more rows would bring", f"classify curve --model {folder}"))
    if not suspects and per_class and (result.predicted != result.rows.targets).any() and result.is_training:
        steps.append(Step("look for wrong labels by cross-validation", f"{again} --folds 5"))
    return steps[:_STEPS]

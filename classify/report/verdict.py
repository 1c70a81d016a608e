"""Summarize a run for who decides: what it does, how often it is right, against what, for what; and what to do next.

Both are tables of (condition, sentence): those whose condition holds are shown, in order.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

from classify.config.recipe import FOLD_TRAININGS
from classify.console import format_seconds
from classify.data.assignment import BY_SEED
from classify.evaluation import suspects_file
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import ERRORS, display_name, is_share
from classify.evaluation.scope import COLUMN
from classify.evaluation.scored_rows import SURE, show_p
from classify.files import read_json
from classify.report.environment import count, percent, show
from classify.report.result import PRECISIONS, Result

# Scored rows below which an interval is wide.
_FEW = 200
# Rows of a class from which it is called weak: fewer are a typing error, or say nothing.
FEWEST = 3
# F1 below which a class is called weak.
WEAK = 0.6
# Weak classes that are named.
_NAMED = 3
# Steps that are named; a reader does no more of them.
_STEPS = 3
# Gain of twice as many rows from which it is a step.
_GAIN = 0.005
# Labels that the first sentence lists.
_LISTED = 6
# Share from which it has a digit more, since the last few cases of 100 count.
_NEARLY_ALL = 0.95


class Step(NamedTuple):
    """What to do next, and the command for it."""

    text: str
    command: str


def sentences(result: Result) -> list[str]:
    """What the model does, how often it is right, beside what else, and how many texts need no look."""
    if result.task.columns:
        first = f"The model answers {len(result.task.columns)} questions about a text."
        return [first, *(f"{name}: {' '.join(sentences(view))}" for name, view in result.by_column.items())]
    task, scores, majority, labels = result.task, result.scores, result.majority, result.task.labels
    share, name = task.scores.share is not None, task.scores.share or task.scores.primary
    value, guess, interval = scores[name], majority[name], scores.get(f"{name}_interval")
    more = f" and {len(labels) - _LISTED} more" if len(labels) > _LISTED else ""
    listed = f": {', '.join(labels[:_LISTED])}{more}" if task.answers.has_labels else ""
    between = f" (95 % interval {show(name, interval)})" if interval else ""
    if share and interval:
        between = f"; between {_of_100(interval[0])} and {_of_100(interval[1])}, the 95 % interval"
    scope, trained = result.metrics.get(COLUMN), result.trained_rows
    accepts = scope or {"accepted": 0.0, "accuracy": 0.0, "rows": 0}
    is_better = (value > guess) != (name in ERRORS)
    table = [
        (True, f"The model {task.answers.purpose.format(len(labels))}{listed}."),
        (
            scope,
            f"It accepts {_of_100(accepts['accepted'])} of 100 texts of its classes, and accepts and sorts right "
            f"{_of_100(accepts['accuracy'])} of 100 ({count(accepts['rows'], 'text')}).",
        ),
        (not scope and share, f"It is right in {_of_100(value)} of 100 cases ({result.scored}{between})."),
        (not scope and not share, f"It reaches {display_name(name)} {show(name, value)} on {result.scored}{between}."),
        (share, f"Always {majority['label']!r} would be right in {_of_100(guess)} of 100."),
        (
            not share and not is_better,
            f"Always answering {majority['label'] or 'no label'!r} reaches {display_name(name)} {show(name, guess)}: "
            "the model is no better than that.",
        ),
        (True, _compare_with_others(result)),
        (trained, f"It was trained on {count(trained, 'row')} of these, so the scores are too high."),
        (task.answers.has_confidence and not trained, describe_automation(result)),
    ]
    return [sentence for holds, sentence in table if holds]


def _of_100(share: float) -> str:
    """A share of 100 cases, with a digit more where nearly all or none are right; never all if it is less."""
    if share in (0, 1) or 1 - _NEARLY_ALL < share < _NEARLY_ALL:
        return f"{100 * share:.0f}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def describe_automation(result: Result) -> str:
    """The share of the texts that needs no look; "" for a task whose predictions have no confidence."""
    if not result.task.answers.has_confidence:
        return ""
    if not result.thresholds:
        return (
            f"Check every prediction: on {result.scored} no confidence reaches {100 * PRECISIONS[0]:.0f} % precision."
        )
    best = max(result.thresholds, key=lambda one: one.accepted)
    share, precision = _of_100(best.accepted / best.rows), f"{100 * best.precision:.0f} %"
    return f"{share} of 100 texts can be sorted without a look if {precision} of these have to be right."


def _compare_with_others(result: Result) -> str:
    """Compare with the baseline on the same rows, or an evaluation with the scores of its training run."""
    if not result.is_training:
        name = result.task.scores.share or result.task.scores.primary
        if not (result.model / "metrics.json").exists():
            return "It was made from the names of the classes; no label was seen."
        metrics = read_json(result.model / "metrics.json")
        before = metrics["test"] or metrics["eval"]
        before = before if result.column is None else before["columns"].get(result.column)
        if before is None:
            return "In its training run no row was scored."
        value = show(name, before[name])
        return f"In its training run it had {display_name(name)} {value} on {count(before['rows'], 'row')}."
    if result.baseline is None:
        return "There is no TF-IDF baseline: the texts have no words to count."
    name, paired = result.task.scores.row_metric, result.baseline["paired"]
    value, other = result.scores[name], result.baseline[name]
    size = f"{100 * abs(value - other):.1f} points" if is_share(name) else f"{abs(value - other):.3f}"
    values = f"{display_name(name)} {show(name, value)} against {show(name, other)}"
    baseline = f"the simple baseline, a linear model on TF-IDF ({values})"
    counted = f"better on {count(paired['better'], 'row')}, worse on {paired['worse']:,}, {show_p(paired['p'])}"
    gains, is_better = (value < other) == (name in ERRORS), paired["better"] > paired["worse"]
    if paired["p"] >= SURE:
        return f"It is not {'clearly ' if gains else ''}better than {baseline}: {counted}."
    if is_better == gains:
        return f"It is {'better' if is_better else 'worse'} than {baseline} by {size}: {counted}."
    return f"Against {baseline} it is {counted}, yet not on average."


def find_steps(result: Result) -> list[Step]:
    """What is most worth doing next, at most three steps, the first ones first."""
    if result.task.columns:
        steps = (step for view in result.by_column.values() for step in find_steps(view))
        return list(dict.fromkeys(steps))[:_STEPS]
    run, is_training, rows = result.run, result.is_training, result.scores["rows"]
    if run.get("parts"):  # parts from Python, which no command has
        return []
    folder = shlex.quote(str(result.model))
    again = f"classify train --like {folder}"  # with the flags of the run
    suggest = f"classify suggest --model {folder} --data unlabelled.csv --count 50"
    suspects = suspects_file.read_suspects(result.folder, 0, result.column)[1]
    reviewed = shlex.quote(str(result.folder / suspects_file.FILE))
    weak = sorted((one["f1"], name) for name, one in find_weak_classes(result).items())
    named = ", ".join(f"{name} (F1 {percent(f1)})" for f1, name in weak[:_NAMED])
    curve, gain, more = Curve.read(result.folder), 0.0, ""
    if curve is not None:
        gain = curve.predict()[0] - curve.points[-1][1]
        size = f"{100 * gain:+.1f} points" if is_share(curve.metric) else f"{gain:+.3f}"
        more = f"{display_name(curve.metric)} {size}"
    wide = f"{rows} {'leaves' if rows == 1 else 'leave'} a wide interval"
    seconds = format_seconds(FOLD_TRAININGS * result.metrics.get("wall_seconds", 0.0))
    # All rows can be scored where one table was divided by seed.
    by_seed = any(one["what"] == "split" and one["flag"] == BY_SEED for one in run["guesses"])
    foldable = is_training and by_seed and run["config"]["data"]["test_data"] is None
    is_wrong = bool(result.scores["per_class"]) and bool((result.predicted != result.rows.targets).any())
    # The note on labels that may be typing errors has the flag that merges them.
    flags = (one.get("flag") or "" for one in run.get("findings", []))
    merge = next((flag for flag in flags if flag.startswith("--label-names ")), "")
    table = [
        (merge, "Merge the labels that are typing errors, if they are", f"{again} {merge}"),
        (
            suspects,
            f"Review the {count(suspects, 'label')} in {suspects_file.FILE}, which may be wrong: write x into the "
            "column accept where the suggestion is right, then apply these",
            f"classify clean --apply {reviewed} --out corrected.csv",
        ),
        (weak, f"Label more rows; the weakest {'class is' if len(weak) == 1 else 'classes are'} {named}", suggest),
        (gain >= _GAIN, f"Label as many rows again: {more} is to be expected", suggest),
        (
            rows < _FEW and foldable,
            f"Score it on all rows by cross-validation ({wide}; about {seconds})",
            f"{again} --folds 5",
        ),
        (
            rows < _FEW and not foldable,
            f"Score it on more rows ({wide}; {'--test-data' if is_training else '--data'})",
            f"classify evaluate --model {folder} --data labelled.csv",
        ),
        (
            is_training and curve is None and result.task.answers.has_labels,
            "Measure what more rows would bring",
            f"classify curve --model {folder}",
        ),
        (is_training and not suspects and is_wrong, "Look for wrong labels by cross-validation", f"{again} --folds 5"),
    ]
    return [Step(text, command) for holds, text, command in table if holds][:_STEPS]


def find_weak_classes(result: Result) -> dict[str, dict[str, float]]:
    scores = result.scores["per_class"].items()
    return {name: one for name, one in scores if one["support"] >= FEWEST and one["f1"] < WEAK}

"""Summarize a run in three sentences: quality, comparison with the baseline, next step."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from classify.evaluation import suspects_file
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import display_name
from classify.evaluation.suspects_file import read_suspects
from classify.report.environment import count
from classify.report.result import Result

_CERTAIN, _SURE = 0.001, 0.05
_FEW = 200
# Rows of a class from which it is called weak.
_FEWEST = 3
# Steps that are named, and the gain of twice as many rows from which it is.
_STEPS, _GAIN = 3, 0.005
# F1 below which a class is named, and how many are named.
WEAK, _NAMED = 0.6, 3


@dataclass(frozen=True)
class Step:
    """What to do next, and the command for it."""

    text: str
    command: str


def sentences(result: Result) -> list[str]:
    """Return the sentences."""
    return [_quality(result), _comparison(result), _advice(result)]


def _quality(result: Result) -> str:
    name = result.task.share or result.task.primary
    value, interval = result.scores[name], result.scores.get(f"{name}_interval")
    between = f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    if result.task.share:
        return f"The model classifies {100 * value:.1f} % of {result.scored} correctly{between}."
    return f"The model reaches {display_name(name)} {value:.3f} on {result.scored}{between}."


def _comparison(result: Result) -> str:
    baseline = result.metrics["baseline"]
    if not result.is_training:
        name = result.task.share or result.task.primary
        before = result.training_scores
        return f"In its training run it had {display_name(name)} {before[name]:.3f} on {count(before['rows'], 'row')}."
    if baseline is None:
        return "There is no TF-IDF baseline: the texts have no words to count."
    name, paired = result.task.row_metric, baseline["paired"]
    gain = abs(result.scores[name] - baseline[name])
    points = f"{100 * gain:.1f} points" if result.task.share else f"{gain:.3f} in {display_name(name)}"
    p = f"p < {_CERTAIN}" if paired["p"] < _CERTAIN else f"p = {paired['p']:.3f}"
    counted = f"better on {count(paired['better'], 'row')}, worse on {paired['worse']:,}, {p}"
    if paired["p"] >= _SURE:
        return f"It is not clearly better than a linear model on TF-IDF: {counted}."
    word = "better" if paired["better"] > paired["worse"] else "worse"
    return f"It is {word} than a linear model on TF-IDF by {points}: {counted}."


def find_steps(result: Result) -> list[Step]:
    """Return what is most worth doing next, at most three steps, the first ones first."""
    steps, folder = [], shlex.quote(str(result.model))
    rows, per_class = result.scores["rows"], result.scores["per_class"]
    suspects, curve = read_suspects(result.folder, 0)[1], Curve.read(result.folder)
    suggest = f"classify suggest --model {folder} --data unlabelled.csv --count 50"
    if suspects:
        steps.append(
            Step(
                f"review the {count(suspects, 'label')} in {suspects_file.FILE}, which may be wrong",
                f"classify clean --apply {shlex.quote(str(result.folder / suspects_file.FILE))} --out corrected.csv",
            )
        )
    if result.is_training and result.run["config"]["training"]["preset"] == "fast":
        data = shlex.quote(result.run["data"]["path"])
        steps.append(Step("train the whole model, without --preset fast", f"classify train --data {data}"))
    # One or two rows are a typing error, or too few to be called weak.
    weak = sorted(
        (score["f1"], name) for name, score in per_class.items() if score["support"] >= _FEWEST and score["f1"] < WEAK
    )
    if weak:
        named = ", ".join(f"{name} (F1 {f1:.2f})" for f1, name in weak[:_NAMED])
        steps.append(Step(f"add rows of the weakest classes: {named}", suggest))
    if curve is not None and (gain := curve.predict()[0] - curve.points[-1][1]) >= _GAIN:
        steps.append(Step(f"label as many rows again: {curve.metric} {gain:+.3f} is to be expected", suggest))
    if rows < _FEW:
        leaves = "leaves" if rows == 1 else "leave"
        evaluate = f"classify evaluate --model {folder} --data labelled.csv"
        flag = "--test-data" if result.is_training else "--data"
        steps.append(Step(f"score it on more rows ({rows} {leaves} a wide interval; {flag})", evaluate))
    if curve is None and result.is_training and result.task.has_labels:
        steps.append(Step("measure what more rows would bring", f"classify curve --model {folder}"))
    if not suspects and per_class and (result.predicted != result.rows.targets).any() and result.is_training:
        data = shlex.quote(result.run["data"]["path"])
        steps.append(Step("look for wrong labels by cross-validation", f"classify train --data {data} --folds 5"))
    return steps[:_STEPS]


def _advice(result: Result) -> str:
    steps = "; ".join(step.text for step in find_steps(result))
    return f"Next: {steps}." if steps else "Next: use it, and score it again when new labelled rows exist."

"""Summarize a run in three sentences: quality, comparison with the baseline, next step."""

from __future__ import annotations

from classify.evaluation.metrics import display_name
from classify.evaluation.suspects_file import read_suspects
from classify.report.environment import count
from classify.report.result import Result

_CERTAIN, _SURE = 0.001, 0.05
_FEW = 200
# Rows of a class from which it is called weak.
_FEWEST = 3
# F1 below which a class is named, and how many are named.
WEAK, _NAMED = 0.6, 3


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


def _advice(result: Result) -> str:
    parts = []
    rows = result.scores["rows"]
    if rows < _FEW:
        flag = "--test-data" if result.is_training else "--data"
        parts.append(f"score it on more rows ({rows} {'leaves' if rows == 1 else 'leave'} a wide interval; {flag})")
    per_class = result.scores["per_class"]
    # One or two rows are a typing error, or too few to be called weak.
    weak = sorted(
        (score["f1"], name) for name, score in per_class.items() if score["support"] >= _FEWEST and score["f1"] < WEAK
    )
    if weak:
        named = ", ".join(f"{name} (F1 {f1:.2f})" for f1, name in weak[:_NAMED])
        parts.append(f"add rows of the weakest classes: {named}")
    suspects = read_suspects(result.folder, 0)[1]
    if suspects:
        parts.append(f"review the {count(suspects, 'label')} in suspects.csv, which may be wrong")
    elif per_class and (result.predicted != result.rows.targets).any():
        parts.append("check the labels of the errors listed below")
    return f"Next: {'; '.join(parts)}." if parts else "Next: use it, and score it again when new labelled rows exist."

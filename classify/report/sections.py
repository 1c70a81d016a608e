"""The sections of a report: each computes what its template shows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from classify.data.languages import UNKNOWN
from classify.evaluation import scored_rows, suspects_file
from classify.evaluation.calibration import BINS, calibration_error, equal_mass_bins, error_by_chance
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import (
    ERRORS,
    Sampling,
    display_name,
    is_share,
    share_interval,
    softmax,
    wilson_interval,
)
from classify.evaluation.scope import COLUMN, summarize
from classify.evaluation.slices import find_weak, list_slices
from classify.evaluation.suspects_file import read_suspects
from classify.report import charts
from classify.report.result import Result
from classify.report.verdict import find_steps
from classify.tables.roles import find_id_column
from classify.tasks.base import format_value
from classify.training.table_report import describe_spread

# Classes up to which there is a confusion matrix.
_TABLE = 12
# Rows of a bin of the reliability diagram.
_ROWS_PER_BIN = 20
# Errors and suspects, texts of a confusion, and bars of the confidence.
_LISTED, _EXAMPLES, _BARS = 100, 5, 10
_TEXT = 400
_UNEXPLAINED: Mapping[str, Any] = {"output": "", "words": []}
# Precision for which a command is shown.
_ADVISED = 0.95
# Share of the texts in a language from which the scores of languages are compared.
_SHARE = 0.05
_Context: TypeAlias = Callable[[Result], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Section:
    """A part of the page: `context` returns the values of templates/<name>.html, None where it does not apply.

    What is `technical` is folded.
    """

    name: str
    title: str
    technical: bool
    context: _Context


# All sections by name; a task's `sections` lists those of its page.
SECTIONS: dict[str, Section] = {}


def _section(title: str, *, technical: bool = False) -> Callable[[_Context], _Context]:
    """Register a function as the section of the template with its name."""

    def register(context: _Context) -> _Context:
        SECTIONS[context.__name__] = Section(context.__name__, title, technical, context)
        return context

    return register


@_section("Scores")
def scores(result: Result) -> Mapping[str, Any]:
    """Show the metrics with intervals, beside those of the baselines."""
    scores, majority = result.scores, result.majority
    names = [name for name in (*majority, *scores) if isinstance(scores.get(name), float)]
    rows = [{"key": name, **result.score_row(name)} for name in dict.fromkeys(names)]
    return {
        "rows": [row for row in rows if row["majority"] is not None],
        "others": [row for row in rows if row["majority"] is None],
        "majority": majority["label"],
        "has_baseline": bool(result.baseline),
        "in_scope": summarize(result.metrics[COLUMN]) if COLUMN in result.metrics else None,
    }


@_section("What to do next")
def next_steps(result: Result) -> Mapping[str, Any] | None:
    """Show the two or three things that are most worth doing, with their commands."""
    steps = [{"text": step.text[0].upper() + step.text[1:], "command": step.command} for step in find_steps(result)]
    return {"steps": steps} if steps else None


@_section("Learning curve")
def curve(result: Result) -> Mapping[str, Any] | None:
    """Show the scores by training rows, and what more rows would bring, where `classify curve` has measured it."""
    found = Curve.read(result.folder)
    if found is None:
        return None
    rows, scores = np.array(found.points).T
    drawn = np.linspace(rows.min(), 2 * rows[-1], 60)
    law = found.law
    expected = scores[-1] + law.errors(np.array([1.0])) - law.errors(drawn / rows[-1])
    expected_score, interval = found.predict()
    unit, name = (100, f"{display_name(found.metric)} in %") if is_share(found.metric) else (1, found.metric)
    return {
        "chart": charts.curve((rows, unit * scores), (drawn, unit * expected), x="training rows", y=name),
        "metric": found.metric,
        "now": scores[-1],
        "expected": expected_score,
        "interval": interval,
        "gained": found.most_gained(),
        "fast": found.preset == "fast",
    }


@_section("Decisions", technical=True)
def decisions(result: Result) -> Mapping[str, Any] | None:
    """Show the command, the decisions on table, model and machine with the flags that override them, and the notes."""
    if not result.is_training:
        return None
    found = {"decisions": result.run["guesses"], "notes": result.run.get("findings", [])}
    return {"command": shlex.join(result.run["command"]), **found}


@_section("Classes")
def per_class(result: Result) -> Mapping[str, Any] | None:
    """Show precision, recall and F1 of each class or label, with intervals of those that are shares of rows."""
    per_class = result.scores["per_class"]
    columns = [key for key in next(iter(per_class.values()), {}) if key != "support"]
    rows = []
    for name, values in sorted(per_class.items(), key=lambda item: -item[1]["support"]):
        number = result.task.labels.index(name)
        target, predicted = (_has_label(labels, number) for labels in (result.rows.targets, result.predicted))
        intervals = {
            key: share_interval((target & predicted)[chosen], Sampling(result.rows.hashes[chosen], result.folds))
            for key, chosen in {"recall": target, "precision": predicted}.items()
            if chosen.any()
        }
        # A class without rows has no recall, and one that is never predicted no precision.
        counted = {"recall": target.any(), "precision": predicted.any()}
        cells = [(values[key] if counted.get(key, values["support"]) else None, intervals.get(key)) for key in columns]
        rows.append({"name": name, "cells": cells, "support": values["support"]})
    return {"rows": rows, "names": [display_name(key) for key in columns]} if rows else None


@_section("Confusions")
def confusion(result: Result) -> Mapping[str, Any] | None:
    """Show the confusion matrix, and texts of the most frequent confusions."""
    labels, targets, predicted = result.task.labels, result.rows.targets, result.predicted
    # Of thousands of classes the whole matrix would take gigabytes, nearly all zeros.
    cells, counts = np.unique(targets * len(labels) + predicted, return_counts=True)
    rows, columns = np.divmod(cells, len(labels))
    order = np.argsort(-counts, kind="stable")
    order = order[rows[order] != columns[order]][: _TABLE * (_TABLE - 1)]
    pairs = {
        (row, column): {
            "of": labels[row],
            "predicted": labels[column],
            "rows": count,
            "id": f"confused-{row}-{column}",
            "texts": _examples(result, row, column),
        }
        for row, column, count in zip(*(part[order].tolist() for part in (rows, columns, counts)), strict=True)
    }
    shown = np.union1d(rows, columns).tolist()
    found: dict[str, Any] = {"pairs": list(pairs.values()), "table": None}
    if len(shown) > _TABLE:
        return found
    by_cell = dict(zip(zip(rows.tolist(), columns.tolist(), strict=True), counts.tolist(), strict=True))
    matrix = np.array([[by_cell.get((row, column), 0) for column in shown] for row in shown])
    levels = (10 * wilson_interval(matrix, np.maximum(matrix.sum(axis=1, keepdims=True), 1))[0]).astype(int)
    found["names"] = [labels[number] for number in shown]
    found["table"] = [
        {
            "name": labels[row],
            "cells": [
                {"count": int(matrix[i, j]), "level": int(levels[i, j]), "id": pairs.get((row, column), {}).get("id")}
                for j, column in enumerate(shown)
            ],
        }
        for i, row in enumerate(shown)
    ]
    return found


@_section("What can be automated")
def automation(result: Result) -> Mapping[str, Any]:
    """Show how many of the texts need no look at a required precision, in all and by class."""
    rows = result.independent
    confidence, predicted = result.probabilities.max(axis=1)[rows], result.predicted[rows]
    right, thresholds = predicted == result.rows.targets[rows], result.thresholds
    advised = next((one for one in thresholds if one.precision == _ADVISED), thresholds[0] if thresholds else None)
    if result.trained_rows:  # too good to choose by
        advised = None
    by_class = []
    certain = confidence >= (advised.confidence if advised else np.inf)
    for number, label in enumerate(result.task.labels):
        chosen = predicted == number
        found = {"predicted": chosen, "accepted": chosen & certain, "right": chosen & certain & right}
        if advised and chosen.any():
            by_class.append({"name": label, **{name: int(rows.sum()) for name, rows in found.items()}})
    order = np.argsort(-confidence, kind="stable")
    shares, ends = np.arange(1, len(order) + 1) / len(order), np.linspace(0, 1, _BARS + 1)
    drawn = np.unique(np.linspace(min(9, len(order) - 1), len(order) - 1, 200).astype(int))  # of few rows it jumps
    precise = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    counts = [np.histogram(confidence[one], ends)[0].tolist() for one in (right, ~right)]
    x, y = "% of the texts, the most certain first", "% of them right"
    # `predict --min-precision` uses the training run's rows, not these.
    flag = advised and (
        f"--min-precision {advised.precision:g}" if result.is_training else f"--min-confidence {advised.confidence}"
    )
    return {
        "chart": charts.lines([("", 100 * shares[drawn], 100 * precise[drawn])], x=x, y=y, highest=100),
        "histogram": charts.counts(
            [f"{100 * end:.0f}" for end in ends[:-1]],
            [("right", counts[0]), ("wrong", counts[1])],
            x="confidence from, in %",
            y="predictions",
        ),
        "thresholds": thresholds,
        "advised": advised,
        "by_class": sorted(by_class, key=lambda one: -int(one["predicted"])),
        "flag": flag,
        "shell": shlex.quote(str(result.model)),
    }


@_section("Calibration", technical=True)
def reliability(result: Result) -> Mapping[str, Any]:
    """Show how well the confidence is calibrated."""
    rows = result.independent
    confidence = result.probabilities.max(axis=1)[rows]
    right = (result.predicted == result.rows.targets)[rows].astype(np.float64)
    calibration = result.metrics["calibration"]
    before = None
    if calibration is not None:
        uncalibrated = softmax(result.rows.logits[rows] * calibration["temperature"])
        before = _bins(uncalibrated.max(axis=1), right)
    return {
        "chart": charts.reliability(before, _bins(confidence, right)),
        "error": calibration_error(confidence, right),
        "by_chance": error_by_chance(confidence, seed=0),
        "mean_confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
        "temperature": None if calibration is None else calibration["temperature"],
    }


@_section("Most confident errors")
def errors(result: Result) -> Mapping[str, Any] | None:
    """Show the wrong predictions with the highest confidence, which are often label errors."""
    confidence, explained = result.probabilities.max(axis=1), result.explanations
    rows = [
        {**_describe_row(result, row), "confidence": float(confidence[row]), **explained.get(row, _UNEXPLAINED)}
        for row in scored_rows.confident_errors(result.probabilities, result.rows.targets, _LISTED).tolist()
    ]
    wrong = int((result.predicted != result.rows.targets).sum())
    found = {"wrong": wrong, "all": len(result.texts), "explained": bool(explained), "id": find_id_column(result.table)}
    return {"rows": rows, **found} if rows else None


@_section("Labels to check")
def suspects(result: Result) -> Mapping[str, Any] | None:
    """Show the labels that may be wrong, where all rows were scored by cross-validation."""
    rows, count = read_suspects(result.folder, _LISTED)
    if not count:
        return None
    for row in rows:
        row["text"] = _shorten(row["text"])
    shell = shlex.quote(str(result.folder / suspects_file.FILE))
    return {
        "rows": rows,
        "count": count,
        "all": len(result.texts),
        "shell": shell,
        "measured": suspects_file.MEASURED,
        "unit": result.run["data"].get("unit") or "place",
        "has_id": any(row["id"] for row in rows),
    }


@_section("Largest errors")
def worst_rows(result: Result) -> Mapping[str, Any] | None:
    """Show the rows whose prediction is furthest from the target."""
    scores = result.task.scores.row_scores(result.predicted, result.rows.targets)
    explained = result.explanations
    rows = [
        {**_describe_row(result, row), **explained.get(row, _UNEXPLAINED)}
        for row in scored_rows.worst_rows(scores, _LISTED).tolist()
    ]
    found = {
        "explained": bool(explained),
        "has_labels": result.task.answers.has_labels,
        "id": find_id_column(result.table),
    }
    return {"rows": rows, **found} if rows else None


@_section("Predictions")
def scatter(result: Result) -> Mapping[str, Any]:
    """Show predicted over true scores."""
    targets = result.rows.targets.astype(np.float64)
    return {"chart": charts.scatter(targets, result.predicted, x="score", y="predicted score")}


@_section("Data", technical=True)
def data(result: Result) -> Mapping[str, Any] | None:
    """Show the table: rows, duplicates, leaks, lengths, unknown tokens."""
    data = result.run.get("inspection")
    if not data:
        return None
    tokens, characters = data["tokens"], data["characters"]
    facts = {
        "rows": f"{data['rows']:,}",
        "rows that could not be read": data["skipped"],
        "rows without a label": data["unlabelled"],
        "rows without text": data["empty_texts"],
        "labels": data["labels"],
        "rows that repeat the text of another": data["copies"],
        "texts with several labels": data["conflicting_texts"],
        **{f"{split} texts that are also in the training split": count for split, count in data["leaks"].items()},
        "characters per text": describe_spread(characters),
    }
    if tokens:
        facts["tokens per text"] = describe_spread(tokens)
        facts[f"longer than --max-length {tokens['max_length']:.0f}"] = (
            f"{100 * tokens['rows_cut']:.1f} % of the texts, {100 * tokens['tokens_cut']:.1f} % of the tokens"
        )
        facts["tokens unknown to the model"] = f"{100 * tokens['unknown']:.1f} %"
    conflicts = [{**conflict, "text": _shorten(conflict["text"])} for conflict in data["conflicts"]]
    return {"facts": {name: value for name, value in facts.items() if value}, "conflicts": conflicts}


@_section("Weak groups")
def slices(result: Result) -> Mapping[str, Any] | None:
    """Show the groups of rows on which the model is worse than on the others, by more than chance."""
    scores = result.task.scores.row_scores(result.predicted, result.rows.targets)
    languages = [share for code, share in result.settings.get("languages", {}).items() if code != UNKNOWN]
    several = sum(share >= _SHARE for share in languages) > 1
    found = list_slices(result.texts, result.other_columns, several_languages=several)
    weak, tested = find_weak(found, scores, result.independent)
    metric = result.task.scores.row_metric
    if metric in ERRORS:  # scores are larger for better rows
        weak = [replace(one, score=-one.score, rest=-one.rest, interval=_negate(one.interval)) for one in weak]
    return {"weak": weak, "tested": tested, "metric": metric, "name": display_name(metric)} if tested else None


@_section("Training", technical=True)
def course(result: Result) -> Mapping[str, Any] | None:
    """Show loss, learning rate and throughput over the steps, and the set-up of the run."""
    if not result.is_training:
        return None
    train = [line for line in result.log if "step" in line and "loss" in line]
    scored = [{"step": line["step"], **line["eval"]} for line in result.log if "eval" in line]
    contrastive = [line for line in result.log if "contrastive_step" in line]

    def series(name: str, lines: Sequence[Mapping[str, Any]], key: str, step: str = "step") -> tuple[str, Any, Any]:
        return name, np.array([line[step] for line in lines]), np.array([line[key] for line in lines])

    drawn = []
    if len(train) > 1:
        losses = [series("training loss", train, "loss")]
        losses += [series("validation loss", scored, "loss")] if scored else []
        drawn.append(charts.lines(losses, x="step", y="loss"))
        drawn.append(charts.lines([series("learning rate", train, "learning_rate")], x="step", y="learning rate"))
        if "rows_per_second" in train[0]:
            drawn.append(charts.lines([series("rows/s", train, "rows_per_second")], x="step", y="rows per second"))
    if len(contrastive) > 1:
        losses = [series("contrastive loss", contrastive, "loss", "contrastive_step")]
        drawn.append(charts.lines(losses, x="contrastive step", y="contrastive loss"))
    run = result.run
    facts = {
        "devices": ", ".join(f"rank {place['rank']}: {place['device']}" for place in run["topology"]),
        "strategy": run["strategy"],
        "precision": run["precision"],
        "kernels": ", ".join(run["kernels"]) or "none",
        "packing": "on" if run["packed"] else "off",
        **({"rows per second": f"{rate:.0f}"} if (rate := result.metrics["train"]["rows_per_second"]) else {}),
        "time": f"{result.metrics['wall_seconds']:.0f} s in all",
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
    return {"charts": drawn, "facts": facts}


@_section("Usage")
def usage(result: Result) -> Mapping[str, Any]:
    """Show commands and code that use the model."""
    folder = str(result.model)
    return {"folder": folder, "shell": shlex.quote(folder), "python": repr(folder), "pair": result.reads_pairs}


def _has_label(labels: Any, number: int) -> Any:
    """(rows,) whether each row's targets or predictions have a label."""
    return labels[:, number].astype(bool) if labels.ndim == 2 else labels == number


def _negate(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = interval
    return -high, -low


def _bins(confidence: Any, right: Any) -> tuple[Any, Any]:
    """(bins,) mean confidence and share of right predictions, in bins of equal mass."""
    parts = equal_mass_bins(confidence, min(BINS, max(3, len(confidence) // _ROWS_PER_BIN)))
    return np.array([confidence[part].mean() for part in parts]), np.array([right[part].mean() for part in parts])


def _describe_row(result: Result, row: int) -> dict[str, Any]:
    """A row's text, target and prediction in words."""
    label, predicted = (
        result.task.targets.decode(values[[row]])[0] for values in (result.rows.targets, result.predicted)
    )
    column = find_id_column(result.table)
    return {
        "id": result.table.column(column)[row] if column else "",
        "text": _shorten(result.texts[row]),
        "label": format_value(label),
        "predicted": format_value(predicted),
    }


def _examples(result: Result, label: int, predicted: int) -> list[str]:
    rows = np.flatnonzero((result.rows.targets == label) & (result.predicted == predicted))[:_EXAMPLES]
    return [_shorten(result.texts[row]) for row in rows.tolist()]


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"

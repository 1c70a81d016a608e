"""The sections of a report: each computes what its template shows."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from classify.data.languages import UNKNOWN
from classify.evaluation import scored_rows, suspects_file
from classify.evaluation.calibration import BINS, calibration_error, equal_mass_bins, error_by_chance
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import ERRORS, Sampling, display_name, is_share, share_interval, wilson_interval
from classify.evaluation.scope import COLUMN, summarize
from classify.evaluation.slices import find_weak, list_slices
from classify.report import charts
from classify.report.charts import Series
from classify.report.result import Result
from classify.report.verdict import find_steps
from classify.tables.roles import find_id_column
from classify.tasks.base import format_value
from classify.training.table_report import describe_spread

# Classes up to which there is a confusion matrix; a larger one fits no page.
_TABLE = 12
# Classes up to which each is listed; of more the worst.
_CLASSES = 200
_WORST = 100
# Rows of a bin of the reliability diagram, at least: fewer jump.
_ROWS_PER_BIN = 20
# Errors and suspects that are listed.
_LISTED = 100
# Texts of a confusion that are shown.
_EXAMPLES = 5
# Points of the curve of precision.
_POINTS = 200
# Most certain rows before which precision is not drawn: of fewer it jumps.
_FIRST = 10
# Points of the scatter chart; more are a blot.
_DOTS = 1_500
# Characters of a text that are shown.
_TEXT = 400
# Precision for which a command is shown.
_ADVISED = 0.95
# Share of the texts in a language from which the scores of languages are compared.
_SHARE = 0.05
_Context: TypeAlias = Callable[[Result], Any]


class Section(NamedTuple):
    """A part of the page, folded where it is `technical`.

    `context` returns the values of templates/<name>.html, beside the result; None where the section does not apply.
    """

    name: str
    title: str
    technical: bool
    context: _Context


# All sections by name; a task's `sections` lists the ones on its page.
SECTIONS: dict[str, Section] = {}


def _section(title: str, *, technical: bool = False) -> Callable[[_Context], _Context]:
    """Register a function as the section of the template with its name."""

    def register(context: _Context) -> _Context:
        SECTIONS[context.__name__] = Section(context.__name__, title, technical, context)
        return context

    return register


@_section("Scores")
def scores(result: Result) -> Mapping[str, Any]:
    """Show the metrics with intervals, beside the baselines'."""
    majority = result.majority
    names = dict.fromkeys(name for name in (*majority, *result.scores) if isinstance(result.scores.get(name), float))
    rows = [{"key": name, **result.score_row(name)} for name in names]
    return {
        "rows": [row for row in rows if row["majority"] is not None],
        "others": [row for row in rows if row["majority"] is None],
        "majority": majority["label"],
        "has_baseline": bool(result.baseline),
        "in_scope": summarize(result.metrics[COLUMN]) if COLUMN in result.metrics else None,
    }


@_section("What to do next")
def next_steps(result: Result) -> Mapping[str, Any] | None:
    steps = find_steps(result)
    return {"steps": steps} if steps else None


@_section("Sources of labels")
def sources(result: Result) -> Mapping[str, Any] | None:
    """Show for each source of labels that are not trusted what it adds."""
    found = result.run.get("label_sources") if result.is_training else None
    return {"sources": found} if found else None


@_section("Learning curve")
def curve(result: Result) -> Mapping[str, Any] | None:
    """Show the scores by training rows, and what more rows would bring, where `classify curve` has measured it."""
    found = Curve.read(result.folder)
    if found is None:
        return None
    rows, scores = np.array(found.points).T
    unit, name = (100, f"{display_name(found.metric)} in %") if is_share(found.metric) else (1, found.metric)
    score, interval = found.predict()
    return {
        "chart": charts.plot([Series("", rows, unit * scores, "dots")], x="training rows", y=name),
        "metric": found.metric,
        "now": scores[-1],
        "expected": score,
        "interval": interval,
        "gained": found.most_gained(),
        "fast": found.preset == "fast",
    }


@_section("Decisions", technical=True)
def decisions(result: Result) -> Mapping[str, Any] | None:
    return {"command": shlex.join(result.run["command"])} if result.is_training else None


@_section("Classes")
def per_class(result: Result) -> Mapping[str, Any] | None:
    """Show precision, recall and F1 of each class or label, with intervals of those that are shares of rows.

    Of very many there are the worst.
    """
    per_class, folds = result.scores["per_class"], int(result.scores.get("folds", 0))
    columns = [key for key in next(iter(per_class.values()), {}) if key != "support"]
    listed = sorted(per_class.items(), key=lambda item: -item[1]["support"])
    if len(listed) > _CLASSES:
        scored = [item for item in listed if item[1]["support"]]
        listed = sorted(scored, key=lambda item: item[1]["f1"])[:_WORST]
    number_of, rows = {name: number for number, name in enumerate(result.task.labels)}, []
    for name, values in listed:
        number = number_of[name]
        target, predicted = (
            values == number if values.ndim == 1 else values[:, number] > 0
            for values in (result.rows.targets, result.predicted)
        )
        shares = {"recall": target, "precision": predicted}
        # A class without rows has no recall, and one that is never predicted no precision.
        intervals = {
            key: share_interval((target & predicted)[counted], Sampling(result.rows.hashes[counted], folds))
            for key, counted in shares.items()
            if counted.any()
        }
        exists = {key: key in intervals if key in shares else values["support"] > 0 for key in columns}
        cells = [(values[key] if exists[key] else None, intervals.get(key)) for key in columns]
        rows.append({"name": name, "cells": cells, "support": values["support"]})
    names, left_out = [display_name(key) for key in columns], len(per_class) - len(rows)
    return {"rows": rows, "names": names, "left_out": left_out} if rows else None


@_section("Confusions")
def confusion(result: Result) -> Mapping[str, Any] | None:
    """Show the confusion matrix, and texts of the most frequent confusions."""
    labels, targets, predicted = result.task.labels, result.rows.targets, result.predicted
    # Of thousands of classes the whole matrix would take gigabytes, nearly all zeros.
    cells, counts = np.unique(targets * len(labels) + predicted, return_counts=True)
    rows, columns = np.divmod(cells, len(labels))
    order = np.argsort(-counts, kind="stable")
    order = order[rows[order] != columns[order]][: _TABLE * (_TABLE - 1)]
    pairs = {}
    for row, column, count in zip(*(part[order].tolist() for part in (rows, columns, counts)), strict=True):
        examples = np.flatnonzero((targets == row) & (predicted == column))[:_EXAMPLES]
        pairs[row, column] = {
            "of": labels[row],
            "predicted": labels[column],
            "rows": count,
            "id": "-".join(map(str, ("confused", *filter(None, [result.column]), row, column))),
            "texts": [_shorten(result.texts[place]) for place in examples.tolist()],
        }
    if len(labels) > _TABLE:
        return {"pairs": list(pairs.values()), "table": None}
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    matrix[rows, columns] = counts
    levels = (10 * wilson_interval(matrix, np.maximum(matrix.sum(axis=1, keepdims=True), 1))[0]).astype(int)
    places = range(len(labels))
    table = [[(matrix[i, j], levels[i, j], pairs.get((i, j), {}).get("id")) for j in places] for i in places]
    return {"pairs": list(pairs.values()), "names": labels, "table": table}


@_section("Levels")
def levels(result: Result) -> Mapping[str, Any]:
    """Show the scores of each level of a hierarchy of labels, and which errors stay within a branch."""
    targets, predicted = result.rows.targets, result.predicted
    names, branch = result.task.answers.top_nodes()
    wrong = predicted != targets
    across = branch[predicted] != branch[targets]
    pairs = Counter(zip(branch[targets[across]].tolist(), branch[predicted[across]].tolist(), strict=True))
    confused = [(names[of], names[predicted], rows) for (of, predicted), rows in pairs.most_common(_EXAMPLES)]
    return {
        "levels": result.scores["levels"],
        "wrong": int(wrong.sum()),
        "within": int((wrong & ~across).sum()),
        "confused": confused,
    }


@_section("What can be automated")
def automation(result: Result) -> Mapping[str, Any]:
    """Show how many of the texts need no look at a required precision."""
    rows, thresholds, flag = result.independent, result.thresholds, None
    confidence, right = result.confidence[rows], (result.predicted == result.rows.targets)[rows]
    if thresholds and not result.trained_rows:  # on rows that were trained on it is too good to choose by
        advised = next((one for one in thresholds if one.precision == _ADVISED), thresholds[0])
        # `predict --min-precision` uses the training run's rows, not these.
        confident = f"--min-confidence {advised.confidence}"
        flag = f"--min-precision {advised.precision:g}" if result.is_training else confident
    order, ranks = np.argsort(-confidence, kind="stable"), np.arange(1, len(rows) + 1)
    drawn = np.unique(np.linspace(min(_FIRST, len(rows)) - 1, len(rows) - 1, _POINTS).astype(int))
    shares, precise = 100 * ranks[drawn] / len(rows), 100 * (np.cumsum(right[order]) / ranks)[drawn]
    return {
        "chart": charts.plot(
            [Series("", shares, precise)],
            x="% of the texts, the most certain first",
            y="% of them right",
            ends=((min(shares.min(), 99), 100), (min(precise.min(), 99), 100)),
        ),
        "thresholds": thresholds,
        "flag": flag,
    }


@_section("Calibration", technical=True)
def reliability(result: Result) -> Mapping[str, Any]:
    """Show how well the confidence is calibrated: the share that is right over the mean, in bins of equal mass."""
    rows, calibration = result.independent, result.metrics["calibration"]
    confidence, right = result.confidence[rows], (result.predicted == result.rows.targets)[rows].astype(np.float64)
    parts = equal_mass_bins(confidence, min(BINS, max(3, len(confidence) // _ROWS_PER_BIN)))
    xs, ys = (np.array([100 * values[part].mean() for part in parts]) for values in (confidence, right))
    ends = ((0.0, 100.0), (0.0, 100.0))
    return {
        "chart": charts.plot([Series("", xs, ys)], x="confidence in %", y="accuracy in %", ends=ends, square=True),
        "error": calibration_error(confidence, right),
        "by_chance": error_by_chance(confidence, seed=0),
        "mean_confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
        "temperature": calibration and calibration["temperature"],
    }


@_section("Errors")
def errors(result: Result) -> Mapping[str, Any] | None:
    """Show the wrong predictions with the highest confidence, or the rows whose prediction is furthest off."""
    if result.task.answers.has_confidence:
        rows = scored_rows.confident_errors(result.probabilities, result.rows.targets, _LISTED)
    else:
        scores = result.task.scores.row_scores(result.predicted, result.rows.targets)
        rows = scored_rows.worst_rows(scores, _LISTED)
    if not len(rows):
        return None
    column, explained, decode = find_id_column(result.table), result.explanations, result.task.targets.decode
    ids = result.table.column(column) if column else None
    listed = [
        {
            "id": ids[row] if ids else "",
            "text": _shorten(result.texts[row]),
            "label": format_value(decode(result.rows.targets[[row]])[0]),
            "predicted": format_value(decode(result.predicted[[row]])[0]),
            "confidence": float(result.confidence[row]),
            **explained.get(row, {"output": "", "words": []}),
        }
        for row in rows.tolist()
    ]
    wrong = int((result.predicted != result.rows.targets).sum())
    return {"wrong": wrong, "rows": listed, "explained": bool(explained), "id": column}


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


@_section("Labels to check")
def suspects(result: Result) -> Mapping[str, Any] | None:
    """Show the labels that may be wrong, where all rows were scored by cross-validation."""
    rows, count = suspects_file.read_suspects(result.folder, _LISTED, result.column)
    for row in rows:
        row["text"] = _shorten(row["text"])
    file, has_id = str(result.folder / suspects_file.FILE), any(row["id"] for row in rows)
    found = {"rows": rows, "count": count, "file": file, "measured": suspects_file.MEASURED, "has_id": has_id}
    return found if count else None


@_section("Predictions")
def scatter(result: Result) -> Mapping[str, Any]:
    shown = np.linspace(0, len(result.texts) - 1, min(len(result.texts), _DOTS)).astype(int)
    targets = result.rows.targets.astype(np.float64)
    dots = Series("", targets[shown], result.predicted[shown], "dots")
    return {"chart": charts.plot([dots], x="score", y="predicted score", square=True)}


@_section("Data", technical=True)
def data(result: Result) -> Mapping[str, Any] | None:
    """Show the table: rows, duplicates, leaks, lengths, unknown tokens."""
    data = result.run.get("inspection")
    if not data:
        return None
    facts = {
        "rows": f"{data['rows']:,}",
        "rows that could not be read": data["skipped"],
        "rows without a label": data["unlabelled"],
        "rows without text": data["empty_texts"],
        "labels": data["labels"],
        "rows that repeat the text of another": data["copies"],
        "texts with several labels": data["conflicting_texts"],
        **{f"{split} texts that are also in the training split": count for split, count in data["leaks"].items()},
        "characters per text": describe_spread(data["characters"]),
    }
    if tokens := data["tokens"]:
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
    scores, metric = result.task.scores.row_scores(result.predicted, result.rows.targets), result.task.scores.row_metric
    shares = result.settings.get("languages", {}).items()
    several = sum(share >= _SHARE for code, share in shares if code != UNKNOWN) > 1
    labels = (*result.settings.get("label_columns", ()), result.metrics.get("label_column"))
    used = {*result.columns.named, *labels, *result.added}
    others = {name: result.table.column(name) for name in result.table.columns if name not in used}
    found = list_slices(result.texts, others, several_languages=several)
    weak, tested = find_weak(found, scores, result.independent)
    if metric in ERRORS:  # scores are larger for better rows
        weak = [
            replace(one, score=-one.score, rest=-one.rest, interval=(-one.interval[1], -one.interval[0]))
            for one in weak
        ]
    return {"weak": weak, "tested": tested, "metric": metric, "name": display_name(metric)} if tested else None


@_section("Training", technical=True)
def course(result: Result) -> Mapping[str, Any] | None:
    """Show loss, learning rate and throughput over the steps, and the set-up of the run."""
    if not result.is_training:
        return None
    run, log = result.run, result.log
    train = [line for line in log if "step" in line and "loss" in line]
    scored: list[Mapping[str, Any]] = [{"step": line["step"], **line["eval"]} for line in log if "eval" in line]
    lines_of: dict[str, dict[str, list[Mapping[str, Any]]]] = {
        "loss": {"training loss": train, "validation loss": scored},
        "learning_rate": {"": train},
    }
    drawn = []
    for key, parts in lines_of.items():
        series = [
            Series(name, np.array([line["step"] for line in lines]), np.array([line[key] for line in lines]))
            for name, lines in parts.items()
            if lines
        ]
        if series and len(series[0].xs) > 1:
            drawn.append(charts.plot(series, x="step", y=key.replace("_", " ")))
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
    return {}

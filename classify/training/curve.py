"""Train a run again on parts of its training rows, scored on the same rows (in cross-validation, on the part)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from classify.config.recipe import PRESETS
from classify.config.run_config import RunConfig
from classify.config.schema import NO_TEACHER
from classify.config.stored_run import stored_values
from classify.data.split_record import SplitRecord
from classify.errors import InputError, list_some
from classify.evaluation.learning_curve import Curve
from classify.files import read_json
from classify.tables.rules import NO_COLUMN
from classify.tasks.registry import trained_task
from classify.training.inputs import check
from classify.training.run import train

# Shares of the training rows that are trained on.
_SHARES = (0.1, 0.25, 0.5)
# Training rows of the run below which the scores of three draws are averaged.
_FEW = 1_000
# Fewest rows to train on.
_FEWEST = 16


def plan_sizes(folder: Path, preset: str, draws: int | None) -> list[tuple[int, int]]:
    """(rows, draw) of each training. Raises InputError where the run has too few rows."""
    rows, trained_with = read_run(folder)
    fewest = max(_FEWEST, 2 * len(trained_task(str(folder)).labels))
    sizes = [size for share in _SHARES if (size := round(share * rows)) >= fewest]
    if not sizes:
        raise InputError(f"--model {folder}: {rows} training rows are too few for a curve; it needs {2 * fewest}.")
    count = draws or (3 if rows < _FEW else 1)
    every = [(size, draw) for size in sizes for draw in range(count)]
    return [*every, (rows, 0)] if preset != trained_with else every


def measure_curve(
    folder: Path, sizes: list[tuple[int, int]], preset: str, report: Callable[[int, str, float], None]
) -> Curve:
    """Train each of `sizes` and return the curve; `report` gets the rows, the metric and the score of each."""
    task, metrics = trained_task(str(folder)), read_json(folder / "metrics.json")
    name, (rows, trained_with) = task.scores.share or task.scores.primary, read_run(folder)
    final = metrics["test"] or metrics["eval"]
    settings = {**stored_values(folder), "preset": preset}
    if preset != trained_with:  # the settings that a preset decides are chosen again
        settings = {key: value for key, value in settings.items() if key not in (*PRESETS["fast"], "max_steps")}
    points, half = [], dict[str, list[float]]()
    for size, draw in sizes:
        scores = _train_part(folder, settings, size, draw)
        if size == rows:
            final = scores
        else:
            points.append((size, scores[name]))
            if size == sizes[-1][0] or 2 * size >= rows:
                for label, values in _by_class(scores).items():
                    half.setdefault(label, []).append(values["f1"])
        report(size, name, scores[name])
    interval = final.get(f"{name}_interval") or (final[name], final[name])
    per_class = {
        label: (float(np.mean(half[label])), float(values["f1"]))
        for label, values in _by_class(final).items()
        if label in half and "f1" in values
    }
    return Curve(name, (*points, (rows, final[name])), (interval[0], interval[1]), per_class, preset)


def _by_class(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of each label; of several label columns, behind the name of its column."""
    if "columns" not in scores:
        return dict(scores["per_class"])
    return {
        f"{column}: {label}": values
        for column, one in scores["columns"].items()
        for label, values in one["per_class"].items()
    }


def _train_part(folder: Path, values: dict[str, Any], rows: int, draw: int) -> dict[str, Any]:
    """Train with the settings `values` on `rows` rows, which `draw` chooses; return the scores of the run's rows."""
    seed = int(values.get("seed", RunConfig().training.seed)) + draw
    values = {**values, "max_train_samples": rows, "report_to": "none", "quiet": True, "seed": seed}
    if values.get("eval_data") is None:  # the splits of the run, however they were made
        values |= {"split_like": str(folder), "folds": None, "split_column": NO_COLUMN, "split_by_time": None}
    with tempfile.TemporaryDirectory(prefix="classify-curve-") as made:
        out = Path(made) / "run"
        config = RunConfig.from_values({**values, "output_dir": str(out)})
        inputs = check(config)
        if inputs.splits.train.table.sha256 != read_json(folder / "run.json")["data"]["sha256"]:
            raise InputError(f"{config.data.data}: the table has changed since the run; train again.")
        train(config, inputs)
        metrics = read_json(out / "metrics.json")
    scores: dict[str, Any] = metrics["test"] or metrics["eval"]
    return scores


def read_run(folder: Path) -> tuple[int, str]:
    """The number of training rows of a run, and its preset.

    Raises InputError for a run with parts from Python, which only Python can give again, and for one that started from
    a run with some of its texts, whose weights would know them before the first step.
    """
    run = read_json(folder / "run.json")
    first = run["config"]["model"]["model"]
    texts = SplitRecord.read(str(folder)).hashes
    if first is not None and SplitRecord.find(str(Path(run["cwd"]) / first)).find_trained(texts).any():
        raise InputError(
            f"--model {folder}: it started from {first}, which was trained on some of its rows, so parts of them would "
            "show nothing; train from another --model first."
        )
    if run["config"]["data"].get("unlabelled_data") and run["config"]["data"]["teacher"] != NO_TEACHER:
        teacher = run["config"]["data"]["teacher"]
        raise InputError(
            f"--model {folder}: a teacher that has learned from all rows labelled some of its texts, so parts "
            f"of the rows would show nothing; give --model {teacher}."
        )
    if run.get("parts"):
        raise InputError(f"--model {folder}: its {list_some(sorted(run['parts']))} was given from Python; call train.")
    return int(run["inspection"]["splits"]["train"]), str(run["config"]["training"]["preset"])

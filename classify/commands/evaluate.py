"""Score a trained model on a table with labels."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classify import evaluation, modeling, prediction, report, tables, tasks, training
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls, list_some
from classify.files import read_json
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.evaluate import LabelledTable


@dataclass(frozen=True)
class Options(flags.ThresholdOptions, flags.TableOptions):
    label_column: str | None = option(None, "label column (default: as in training)", metavar="COLUMN", several=True)
    output_dir: str | None = option(
        None, "output folder (default: evaluations/RUN-TABLE, or RUN-TABLE-2, ... if it exists)", metavar="DIR"
    )
    overwrite_output_dir: bool = option(False, "replace an evaluation in that folder")


make_parser = functools.partial(
    CommandParser, Options, description="Score a trained classifier on a table with labels."
)


def run(arguments: Sequence[str], program: str) -> int:
    options, launch = make_parser(program).read(arguments, ["model", "data"]), Launch.read()
    allow_progress(launch.is_main)
    with options.check_inputs(launch):
        table, texts = options.read_texts()
        labelled = prediction.evaluate.read_labelled(options.model, table, texts, options.label_column)
        labelled = replace(labelled, task=labelled.task.with_thresholds(options.thresholds))
        folder = _choose_folder(options)
        if launch.checks_output_dir:
            _check_folder(folder, overwrite=options.overwrite_output_dir)
    with options.load(launch) as predictor:
        scores, unseen = prediction.evaluate.evaluate(predictor, labelled, folder)
    if not predictor.world.is_main:
        return 0
    metrics, scope = evaluation.metrics, evaluation.scope
    shown, what = scores, "evaluation"
    if unseen is not None:
        shown, what = unseen, f"evaluation ({unseen.rows} of {scores.rows} rows, whose text was not trained on)"
    lines = [
        prediction.inputs.describe_table(labelled.table, labelled.texts),
        metrics.table(shown),
        f"{what}: {metrics.format_metrics(shown.metrics)}",
    ]
    if unseen is not None:
        lines.append(f"on all rows: {metrics.format_metrics(scores.metrics)}")
    if (entry := read_json(folder / "metrics.json").get(scope.COLUMN)) is not None:
        lines.append(scope.summarize(entry))
    labels_seen = modeling.result_folder.read_settings(options.model).get(modeling.result_folder.LABELS_SEEN) != 0
    lines += [f"note: {note}" for note in _notes(labelled, folder, labels_seen=labels_seen)]
    print(escape_controls("\n".join([*lines, f"result: {folder}"])))
    report.page.write_pages(folder)
    return 0


def _judge_names(folder: Path) -> str:
    """Whether a model that was made from the names of the classes alone is worth using."""
    metrics = read_json(folder / "metrics.json")
    majority, low = metrics["majority"], metrics["test"]["accuracy_interval"][0]
    always = f"always predicting {majority['label']!r} ({majority['accuracy']:.3f})"
    return f"the names alone are {'' if low > majority['accuracy'] else 'not clearly '}better than {always}"


def _notes(labelled: LabelledTable, folder: Path, *, labels_seen: bool) -> list[str]:
    """List what may be wrong with the table or make the scores misleading, and the columns that are renamed."""
    table, task = labelled.table, labelled.task
    counts = task.targets.label_counts(labelled.targets)
    scored = np.ones(len(counts), dtype=bool)
    for column in task.columns:  # none of a column that is not scored is missed
        scored[column.outputs] = bool(counts[column.outputs].any())
    missing = [repr(task.labels[number]) for number in np.flatnonzero(scored & (counts == 0)).tolist()]
    notes = [] if labels_seen else [_judge_names(folder)]
    notes += [finding.sentence for finding in (*table.findings, *tables.roles.note_empty_texts(table, labelled.texts))]
    if (renamed := tasks.columns.note_renamed(table, tasks.columns.PredictionColumns(task).names)) is not None:
        notes.append(renamed)
    if missing:
        notes.append(f"no row has the label {list_some(missing)}")
    if labelled.trained.all():
        seen = len(labelled.trained)
        notes.append(f"the model was trained on all {seen} of these texts, so the scores are too high")
    if labelled.not_random:
        notes.append(f"{labelled.not_random} rows that were not chosen at random are not scored (column 'chosen')")
    if left_out := len(table) - len(labelled.rows) - len(labelled.outside) - labelled.not_random:
        notes.append(f"rows without a label, which are left out: {left_out} of {len(table)}")
    return notes


def _choose_folder(options: Options) -> Path:
    """The folder that is given, or one named after run and table; a free one, unless it may be overwritten."""
    name = f"{Path(os.path.abspath(options.model)).name}-{tables.source.stem_of(options.data)}"
    if options.output_dir is not None or options.overwrite_output_dir:
        return Path(options.output_dir or Path("evaluations") / name)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for candidate in names if not (folder := Path("evaluations") / candidate).exists())


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError unless an evaluation can be written to the folder; only another evaluation is overwritten."""
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise InputError(
                f"--output-dir {folder}: the folder exists and is not empty; give another, or --overwrite-output-dir."
            )
        if not (folder / "metrics.json").exists() or (folder / "classify.json").exists():
            raise InputError(
                f"--overwrite-output-dir: {folder} is not the folder of an earlier evaluation; give another "
                "--output-dir."
            )
    training.output_dir.check_writable(folder)

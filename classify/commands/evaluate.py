"""Score a trained model on a table with labels."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from classify import evaluation, prediction, report, tables, tasks, training
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls, list_some
from classify.files import read_json, why_not_writable
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.evaluate import LabelledTable


@dataclass(frozen=True)
class Options(flags.ThresholdOptions, flags.TableOptions, flags.ModelOptions):
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
    with options.announce_errors(launch):
        options.check_standard_input(launch)
        labelled = prediction.evaluate.read_labelled(
            options.model, options.data, options.label_column, options.text_column, options.text_pair_column,
            options.reading,
        )  # fmt: skip
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
    notes = _notes(labelled)
    print(escape_controls("\n".join([*lines, *(f"note: {note}" for note in notes), f"result: {folder}"])))
    report.after_run.write_pages(folder)
    return 0


def _notes(labelled: LabelledTable) -> list[str]:
    """List what may be wrong with the table or make the scores misleading, and the columns that are renamed."""
    table, task = labelled.table, labelled.task
    trained = len(labelled.trained) if labelled.trained.all() else 0
    counts = task.targets.label_counts(labelled.targets)
    missing = [repr(label) for label, count in zip(task.labels, counts, strict=True) if not count]
    left_out = len(table) - len(labelled.rows) - len(labelled.outside)
    # Of several labels: rows that may not have been labelled.
    none = int((~labelled.targets.any(axis=1)).sum()) if labelled.targets.ndim > 1 else 0
    notes = (
        tasks.columns.note_renamed(table, tasks.columns.PredictionColumns(task).names),
        f"no row has the label {list_some(missing)}" if missing else None,
        f"the model was trained on all {trained} of these texts, so the scores are too high" if trained else None,
        f"rows without a label, which are left out: {left_out} of {len(table)}" if left_out else None,
        f"{none} of {len(labelled.rows)} rows have none of the labels" if 2 * none > len(labelled.rows) else None,
    )
    found = [*table.findings, *tables.roles.note_empty_texts(table, labelled.texts)]
    return [*(finding.sentence for finding in found), *(note for note in notes if note is not None)]


def _choose_folder(options: Options) -> Path:
    """The folder that is given, or one named after run and table; a free one, unless it may be overwritten."""
    name = f"{Path(os.path.abspath(options.model)).name}-{tables.source.stem_of(options.data)}"
    if options.output_dir is not None or options.overwrite_output_dir:
        return Path(options.output_dir or Path("evaluations") / name)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for candidate in names if not (folder := Path("evaluations") / candidate).exists())


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError unless an evaluation can be written to the folder; only another evaluation is overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output-dir {folder}: expected a folder. Got a file instead.")
    above = training.output_dir.nearest_existing(folder)
    if (reason := why_not_writable(above)) is not None:
        raise InputError(f"--output-dir {folder}: {above} is not writable ({reason}); give another folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not overwrite:
        raise InputError(
            f"--output-dir {folder}: the folder exists and is not empty; give another, or --overwrite-output-dir."
        )
    try:
        is_evaluation = "model" in read_json(folder / "metrics.json")
    except (OSError, ValueError):
        is_evaluation = False
    if not is_evaluation or (folder / "classify.json").exists():
        raise InputError(
            f"--overwrite-output-dir: {folder} is not the folder of an earlier evaluation; give another --output-dir."
        )

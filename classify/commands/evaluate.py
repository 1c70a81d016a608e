"""Score a trained model on a table with labels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from classify.commands import flags
from classify.commands.failure import announce_errors
from classify.config.devices import DeviceConfig
from classify.config.parser import Parser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls, list_some
from classify.files import read_json, why_not_writable
from classify.launch.launch import Launch
from classify.training.output_dir import nearest_existing

if TYPE_CHECKING:
    from classify.prediction.evaluate import LabelledTable


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Score a trained classifier on a table with labels.")
    flags.add_model(parser)
    flags.add_table(parser)
    parser.add_argument(
        "--label-column", metavar="COLUMN", action="join", help="label column (default: as in training)"
    )
    flags.add_thresholds(parser)
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="output folder (default: evaluations/RUN-TABLE, or RUN-TABLE-2, ... if it exists)",
    )
    parser.add_argument("--overwrite-output-dir", action="store_true", help="replace an evaluation in that folder")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options, launch = make_parser(program).parse(arguments, ["model", "data"]), Launch.read()
    allow_progress(launch.is_main)
    from classify.prediction.evaluate import evaluate, read_labelled
    from classify.tables.source import stem_of

    with announce_errors(launch, DeviceConfig(use_cpu=options.cpu)):
        flags.check_standard_input(options.data, launch)
        labelled = read_labelled(
            options.model,
            options.data,
            options.label_column,
            options.text_column,
            options.text_pair_column,
            flags.read_options(options),
        )
        labelled = replace(labelled, task=labelled.task.with_thresholds(flags.thresholds(options)))
        name = f"{Path(os.path.abspath(options.model)).name}-{stem_of(options.data)}"
        folder = Path(options.output_dir or Path("evaluations") / name)
        if options.output_dir is None and not options.overwrite_output_dir:
            folder = _free_folder(name)
        if launch.checks_output_dir:
            _check_folder(folder, overwrite=options.overwrite_output_dir)
    from classify.evaluation import metrics
    from classify.evaluation.scope import COLUMN, summarize
    from classify.prediction.inputs import describe_table
    from classify.prediction.predictor import load_classifier
    from classify.report.after_run import write_pages

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True, launch=launch
    ) as predictor:
        scores, unseen = evaluate(predictor, labelled, folder)
    if predictor.world.is_main:
        print(escape_controls(describe_table(labelled.table, labelled.texts)))
        shown, what = scores, "evaluation"
        if unseen is not None:
            shown, what = unseen, f"evaluation ({unseen.rows} of {scores.rows} rows, whose text was not trained on)"
        print(escape_controls(metrics.table(shown)))
        print(f"{what}: {metrics.format_metrics(shown.metrics)}")
        if unseen is not None:
            print(f"on all rows: {metrics.format_metrics(scores.metrics)}")
        if (entry := read_json(folder / "metrics.json").get(COLUMN)) is not None:
            print(escape_controls(summarize(entry)))
        for note in _notes(labelled, rejects=predictor.scope is not None):
            print(escape_controls(f"note: {note}"))
        print(escape_controls(f"result: {folder}"))
        write_pages(folder)
    return 0


def _notes(labelled: LabelledTable, *, rejects: bool) -> list[str]:
    """List what may be wrong with the table or make the scores misleading, and the columns that are renamed.

    `rejects`: the model tells texts of no class, which an exported one does not.
    """
    from classify.evaluation.predictions_file import note_renamed
    from classify.tables.roles import note_empty_texts

    table, task = labelled.table, labelled.task
    trained = len(labelled.trained) if labelled.trained.all() else 0
    counts = task.targets.label_counts(labelled.targets)
    missing = [repr(label) for label, count in zip(task.labels, counts, strict=True) if not count]
    outside = 0 if rejects else len(labelled.outside)
    left_out = len(table) - len(labelled.rows) - len(labelled.outside)
    # Of several labels: rows that may not have been labelled.
    none = int((~labelled.targets.any(axis=1)).sum()) if labelled.targets.ndim > 1 else 0
    notes = (
        note_renamed(table, task.answers.columns()),
        f"no row has the label {list_some(missing)}" if missing else None,
        f"the model was trained on all {trained} of these texts, so the scores are too high" if trained else None,
        f"rows without a label, which are left out: {left_out} of {len(table)}" if left_out else None,
        f"{outside} rows of no class are left out: this exported model answers each with one" if outside else None,
        f"{none} of {len(labelled.rows)} rows have none of the labels" if 2 * none > len(labelled.rows) else None,
    )
    found = [*table.findings, *note_empty_texts(table, labelled.texts)]
    return [*(finding.sentence for finding in found), *(note for note in notes if note is not None)]


def _free_folder(name: str) -> Path:
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for candidate in names if not (folder := Path("evaluations") / candidate).exists())


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError unless an evaluation can be written to the folder; only another evaluation is overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output-dir {folder}: expected a folder. Got a file instead.")
    above = nearest_existing(folder)
    reason = why_not_writable(above)
    if reason is not None:
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

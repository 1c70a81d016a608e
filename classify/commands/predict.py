"""Predict every row of a table, or one text."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from classify import modeling, prediction, tasks
from classify.commands import flags
from classify.config.fields import above, option
from classify.config.parser import CommandParser
from classify.console import allow_progress, is_terminal
from classify.errors import InputError, escape_controls
from classify.files import split_paths
from classify.launch.launch import Launch
from classify.launch.nproc import check_count, run_processes
from classify.launch.plan import count_devices
from classify.tables.source import STANDARD_INPUT, is_stream, list_files

if TYPE_CHECKING:
    from classify.tasks.columns import PredictionColumns

_OUT = "predictions.csv"
# Labels, of the most probable ones, that a single text's prediction lists.
_TOP = 10


@dataclass(frozen=True)
class Options(flags.ThresholdOptions, flags.TableOptions):
    text: str | None = option(None, "predict one text, and print its probabilities", metavar="TEXT")
    out: str = option(
        _OUT, f"output file: .csv, .jsonl, .parquet or .xlsx; - is standard output (default: {_OUT})", metavar="FILE"
    )
    overwrite: bool = flags.overwrite()
    top_k: int | None = option(None, "the K most probable labels instead of a column per label", check=above(0))
    min_confidence: float | None = option(
        None, "add the column accepted: true if the confidence is at least this", check=flags.SHARE
    )
    min_precision: float | None = option(
        None, "add the column accepted, by a confidence at which held-out rows show this precision (95 % lower bound)",
        check=flags.SHARE,
    )  # fmt: skip
    coverage: float | None = option(
        None, "add labels, or an interval of scores, that hold the right one for this share of rows (conformal)",
        check=flags.SHARE,
    )  # fmt: skip
    min_in_scope: float | None = option(
        None, "below it the label of --out-of-scope-label is predicted (default: 95 % of held-out rows are above it)",
        check=flags.SHARE,
    )  # fmt: skip
    quiet: bool = option(False, "print errors only")
    nproc: int | Literal["gpu"] | None = option(
        None, "processes that share the rows (gpu: one per GPU)", check=above(0)
    )
    excel_safe: bool = option(
        False, "for Excel: a byte-order mark, four digits, and ' before cells that look like formulas (CSV injection)"
    )
    exact: bool = option(False, "with --excel-safe: all digits of the probabilities")


make_parser = functools.partial(
    CommandParser, Options, description="Predict every row of a table with a trained classifier, or one text."
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model"])
    launch = Launch.read()
    allow_progress(not options.quiet and launch.is_main)
    if not options.data and options.text is None:
        if sys.stdin is None or is_terminal(sys.stdin):
            raise InputError(f"--data or --text must be given. See {program} --help.")
        options = replace(options, data=STANDARD_INPUT)
    if options.text is not None and options.data:
        raise InputError("--data and --text both name what to predict; give one of them.")
    if options.nproc is not None and not launch.is_worker:
        if options.text is not None or any(map(is_stream, split_paths(options.data))):
            raise InputError("--nproc works only with a file; give it with --data.")
        check_count(options.nproc, launch)
        count = options.nproc if isinstance(options.nproc, int) else count_devices()
        return run_processes(["predict", *arguments], count)
    return _predict_table(options, launch) if options.text is None else _predict_text(options, options.text, launch)


def _predict_text(options: Options, text: str, launch: Launch) -> int:
    settings = modeling.result_folder.read_settings(options.model)
    if modeling.result_folder.trained_texts(settings).pair is not None:
        raise InputError("--text: the model was trained on text pairs; give a table with --data.")
    with options.load(launch) as predictor:
        probabilities, in_scope = predictor.predict([text])
        if not predictor.world.is_main:
            return 0
    task = predictor.task
    parts = [(f"{one.name}: ", one.task, probabilities[:, one.outputs]) for one in task.columns]
    for name, part, shares in parts or [("", task, probabilities)]:
        answer = next(part.answers.fields(shares, ".3f"))[0]
        if in_scope is not None:
            (answer,) = predictor.answers(probabilities, in_scope)
            answer += f" (in scope {in_scope[0]:.3f})"
        print(escape_controls(f"{name}{answer}"))
        if part.answers.has_labels:
            for number in (-shares[0]).argsort(kind="stable")[: options.top_k or _TOP]:
                print(escape_controls(f"  {shares[0, number]:.3f}  {part.labels[number]}"))
    return 0


def _predict_table(options: Options, launch: Launch) -> int:
    with options.check_inputs(launch):
        columns, found = _choose_columns(options)
        table, texts = options.read_texts()
        if options.out != prediction.predictor.STANDARD_OUTPUT and launch.checks_output_dir:
            files, size = list_files(options.data), (len(table), len(table.columns))
            prediction.inputs.check_out(options.out, files, *size, overwrite=options.overwrite)
    with options.load(launch) as predictor:
        begin = time.perf_counter()
        notes = prediction.predictor.predict_table(predictor, table, texts, options.out, columns)
    seconds = time.perf_counter() - begin
    if predictor.world.is_main and not options.quiet:
        lines = [
            prediction.inputs.describe_table(table, texts),
            f"{options.out}: {columns.summary(len(table))} ({len(table) / seconds:.0f} rows/s)",
            *(f"note: {text}" for text in [*found, *notes]),
        ]
        # The rows themselves may go to standard output.
        file = sys.stderr if options.out == prediction.predictor.STANDARD_OUTPUT else sys.stdout
        print(escape_controls("\n".join(lines)), file=file)
    return 0


def _choose_columns(options: Options) -> tuple[PredictionColumns, list[str]]:
    """The columns to add to each row, and notes on what was required of them."""
    task = tasks.registry.trained_task(options.model).with_thresholds(options.thresholds)
    task = task.with_min_in_scope(options.min_in_scope)
    if options.min_confidence is not None and options.min_precision is not None:
        raise InputError("--min-confidence and --min-precision both set the confidence; give one of them.")
    found = list[str]()
    confidence: Any = options.min_confidence
    limit: Any = None
    if options.min_precision is not None:
        thresholds = prediction.inputs.find_confidence(options.model, task, options.min_precision)
        confidence = {name: threshold.confidence for name, threshold in thresholds.items()}
        found += [
            f"accepted{f'_{name}' if name else ''}: confidence at least {threshold.confidence:.3f}; "
            f"{threshold.accepted} of the run's {threshold.rows} held-out rows reach it, and {threshold.right} of "
            "these are predicted correctly"
            for name, threshold in thresholds.items()
        ]
    if options.coverage is not None:
        limits = prediction.inputs.find_set_limits(options.model, task, options.coverage)
        limit = {name: value for name, (value, _) in limits.items()}
        for name, (_, rows) in limits.items():
            what = f"sets of {name!r}" if name else ", ".join(task.answers.set_columns)
            found.append(f"{what}: right for {options.coverage:g} of rows like the {rows} held-out ones of the run")
    if not task.columns:
        confidence, limit = (value[""] if isinstance(value, dict) else value for value in (confidence, limit))
    digits = tasks.base.FOR_EXCEL if options.excel_safe and not options.exact else tasks.base.EXACT
    return tasks.columns.PredictionColumns(task, options.top_k, confidence, limit, digits, options.excel_safe), found

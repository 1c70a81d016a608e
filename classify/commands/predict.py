"""Predict every row of a table, or one text."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classify.commands import flags
from classify.commands.failure import announce_errors
from classify.config.devices import DeviceConfig
from classify.config.parser import Parser
from classify.console import allow_progress, is_terminal
from classify.errors import InputError, escape_controls
from classify.files import split_paths
from classify.launch.launch import Launch
from classify.launch.nproc import check_count, run_processes
from classify.launch.plan import count_devices
from classify.tables.source import STANDARD_INPUT, is_stream

if TYPE_CHECKING:
    from classify.evaluation.scope import Scope
    from classify.tasks.columns import PredictionColumns
_OUT = "predictions.csv"

# Labels, of the most probable ones, that a single text's prediction lists.
_TOP = 10


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Predict every row of a table with a trained classifier, or one text.")
    flags.add_model(parser)
    flags.add_table(parser)
    parser.add_argument("--text", metavar="TEXT", action="append", help="predict one text, and print its probabilities")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=f"output file: .csv, .jsonl, .parquet or .xlsx; - is standard output (default: {_OUT})",
    )
    flags.add_overwrite(parser)
    parser.add_argument("--top-k", metavar="INT", help="the K most probable labels instead of a column per label")
    parser.add_argument(
        "--min-confidence", metavar="FLOAT", help="add the column accepted: true if the confidence is at least this"
    )
    parser.add_argument(
        "--min-precision",
        metavar="FLOAT",
        help="add the column accepted, with a confidence at which held-out rows of the run show this precision (a "
        "lower bound that holds in 95 of 100 cases)",
    )
    parser.add_argument(
        "--coverage",
        metavar="FLOAT",
        help="add the labels among which the right one is for this share of rows, or the ends of such an interval of "
        "scores; from held-out rows of the run (conformal prediction)",
    )
    parser.add_argument(
        "--min-in-scope",
        metavar="FLOAT",
        help="the probability of belonging to a class below which the label of --out-of-scope-label is predicted "
        "(default: 95 %% of the run's held-out rows are above it)",
    )
    flags.add_thresholds(parser)
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--nproc", metavar="INT", help="processes that share the rows (gpu: one per GPU)")
    parser.add_argument(
        "--excel-safe",
        action="store_true",
        help="for Excel: a byte-order mark, four digits, and ' before cells that look like formulas (CSV injection)",
    )
    parser.add_argument("--exact", action="store_true", help="with --excel-safe: all digits of the probabilities")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model"])
    launch = Launch.read()
    allow_progress(not options.quiet and launch.is_main)
    if options.data is None and options.text is None:
        if sys.stdin is None or is_terminal(sys.stdin):
            raise InputError(f"--data or --text must be given. See {program} --help.")
        options.data = "-"
    if options.data is not None and options.text is not None:
        raise InputError("--data and --text both name what to predict; give one of them.")
    if options.text is not None:
        _check_text(options)
    options.out = options.out or _OUT
    if options.nproc is not None and not launch.is_worker:
        return run_processes(["predict", *arguments], _count_processes(options, launch))
    if options.text is not None:
        return _predict_text(options, launch)
    flags.check_standard_input(options.data, launch)
    comes_in_lines = options.data == options.out == STANDARD_INPUT
    return _predict_lines(options) if comes_in_lines else _predict_table(options, launch)


def _count_processes(options: argparse.Namespace, launch: Launch) -> int:
    """The number of processes to start. Raises InputError where the rows cannot be shared."""
    if options.text is not None or any(map(is_stream, split_paths(options.data))):
        raise InputError("--nproc works only with a file; give it with --data.")
    nproc = "gpu" if options.nproc == "gpu" else flags.count(options.nproc, "--nproc")
    check_count(nproc, launch)
    return count_devices() if isinstance(nproc, str) else nproc


def _check_text(options: argparse.Namespace) -> None:
    """Raise InputError where --text is given twice, or beside flags of tables."""
    if len(options.text) > 1:
        raise InputError("--text is given several times; give one text, or a table of them with --data.")
    if not options.text[0].strip():
        raise InputError("--text: expected a text. Got an empty one instead.")
    of_tables = (
        "out",
        "min_confidence",
        "min_precision",
        "coverage",
        "min_in_scope",
        "threshold",
        "overwrite",
        "excel_safe",
        "exact",
        *flags.OF_TABLES,
    )
    unused = [f"--{name.replace('_', '-')}" for name in of_tables if getattr(options, name) not in (None, False, "-")]
    if unused:
        raise InputError(
            f"--text predicts one text and prints it; drop {', '.join(unused)}, or give a table with --data."
        )


def _predict_text(options: argparse.Namespace, launch: Launch) -> int:
    from classify.modeling.result_folder import read_settings, trained_texts

    if trained_texts(read_settings(options.model)).pair is not None:
        raise InputError("--text: the model was trained on text pairs; give a table with --data.")
    from classify.data.languages import note_new_languages
    from classify.prediction.predictor import load_classifier

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True, launch=launch
    ) as predictor:
        probabilities, in_scope = predictor.predict(options.text)
        if not predictor.world.is_main:
            return 0
    note = note_new_languages(options.text, predictor.settings.get("languages"))
    if note is not None and not options.quiet:
        print(f"note: {note}", file=sys.stderr)
    task = predictor.task
    answer = next(task.answers.fields(probabilities, ".3f"))[0]
    if in_scope is not None:
        (answer,) = predictor.answers(probabilities, in_scope)
        answer += f" (in scope {in_scope[0]:.3f})"
    print(escape_controls(answer))
    if task.answers.has_labels:
        count = _TOP if options.top_k is None else flags.count(options.top_k, "--top-k")
        for number in (-probabilities[0]).argsort(kind="stable")[:count]:
            print(escape_controls(f"  {probabilities[0, number]:.3f}  {task.labels[number]}"))
    return 0


def _predict_lines(options: argparse.Namespace) -> int:
    """Predict the lines of standard input as they come."""
    from classify.modeling.result_folder import read_settings
    from classify.prediction.lines import read_lines

    columns, found = _columns(options)
    reading = flags.read_options(options)
    parts = read_lines(read_settings(options.model), options.text_column, options.text_pair_column, reading)
    first = list(itertools.islice(parts, 1))
    from classify.prediction.predictor import load_classifier
    from classify.prediction.stream import predict_lines

    with load_classifier(options.model, use_cpu=options.cpu, precision=options.precision) as predictor:
        rows, notes = predict_lines(predictor, columns, itertools.chain(first, parts))
    if not options.quiet:
        lines = [f"-: {columns.summary(rows)}", *(f"note: {text}" for text in [*found, *notes])]
        print(escape_controls("\n".join(lines)), file=sys.stderr)
    return 0


def _predict_table(options: argparse.Namespace, launch: Launch) -> int:
    from classify.prediction.inputs import check_prediction

    with announce_errors(launch, DeviceConfig(use_cpu=options.cpu)):
        columns, found = _columns(options)
        table, texts = check_prediction(
            options.model,
            options.data,
            options.out,
            options.text_column,
            options.text_pair_column,
            flags.read_options(options),
            overwrite=options.overwrite,
            launch=launch,
        )
    from classify.prediction.inputs import describe_table
    from classify.prediction.predictor import load_classifier
    from classify.prediction.stream import STANDARD_OUTPUT, predict_table

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True, launch=launch
    ) as predictor:
        begin = time.perf_counter()
        notes = predict_table(predictor, table, texts, options.out, columns)
    seconds = time.perf_counter() - begin
    if predictor.world.is_main and not options.quiet:
        # The rows themselves may go to standard output.
        file = sys.stderr if options.out == STANDARD_OUTPUT else sys.stdout
        print(escape_controls(describe_table(table, texts)), file=file)
        summary = f"{columns.summary(len(table))} ({len(table) / seconds:.0f} rows/s)"
        print(escape_controls(f"{options.out}: {summary}"), file=file)
        for line in [*found, *notes]:
            print(f"note: {escape_controls(line)}", file=file)
    return 0


def _scope(options: argparse.Namespace) -> Scope | None:
    """What tells texts that belong to no class, with the threshold of the flag, if any."""
    from dataclasses import replace

    from classify.evaluation.scope import Scope
    from classify.modeling.result_folder import read_settings

    scope = Scope.read(Path(options.model), read_settings(options.model))
    if options.min_in_scope is None:
        return scope
    if scope is None:
        raise InputError("--min-in-scope: the model was trained without --out-of-scope-label; drop the flag.")
    return replace(scope, threshold=flags.probability(options.min_in_scope, "--min-in-scope"))


def _columns(options: argparse.Namespace) -> tuple[PredictionColumns, list[str]]:
    """The columns to add to each row, and notes on what was required of them."""
    from classify.evaluation.predictions_file import EXACT, FOR_EXCEL
    from classify.prediction.thresholds import find_confidence, find_set_limit
    from classify.tasks.columns import PredictionColumns
    from classify.tasks.registry import trained_task

    task = trained_task(options.model).with_thresholds(flags.thresholds(options))
    if options.min_confidence is not None and options.min_precision is not None:
        raise InputError("--min-confidence and --min-precision both set the confidence; give one of them.")
    confidence, limit, found = None, None, list[str]()
    if options.min_confidence is not None:
        confidence = flags.probability(options.min_confidence, "--min-confidence")
    if options.min_precision is not None:
        precision = flags.probability(options.min_precision, "--min-precision")
        threshold = find_confidence(options.model, task, precision)
        confidence = threshold.confidence
        found.append(
            f"accepted: confidence at least {confidence:.3f}; {threshold.accepted} of the run's {threshold.rows} "
            f"held-out rows reach it, and {threshold.right} of these are predicted correctly"
        )
    if options.coverage is not None:
        coverage = flags.probability(options.coverage, "--coverage")
        limit, rows = find_set_limit(options.model, task, coverage)
        found.append(
            f"{', '.join(task.answers.set_columns)}: right for {coverage:g} of rows like the {rows} held-out ones of "
            "the run"
        )
    columns = PredictionColumns(
        task,
        None if options.top_k is None else flags.count(options.top_k, "--top-k"),
        confidence,
        limit,
        _scope(options),
        FOR_EXCEL if options.excel_safe and not options.exact else EXACT,
        options.excel_safe,
    )
    return columns, found

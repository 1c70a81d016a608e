"""Choose the rows of a table that are most worth labelling next."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classify.commands import flags
from classify.commands.failure import announce_errors
from classify.config.devices import DeviceConfig
from classify.config.parser import Parser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.predictor import Predictor

_COUNT, _OUT = 50, "label-me.csv"


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Write the rows of a table whose labels would teach a model most, the least certain first, with an "
        "empty column for the label.",
    )
    flags.add_model(parser)
    flags.add_table(parser)
    parser.add_argument("--count", metavar="INT", help=f"how many rows (default: {_COUNT})")
    parser.add_argument(
        "--out", metavar="FILE", default=_OUT, help=f".csv, .jsonl, .parquet or .xlsx (default: {_OUT})"
    )
    flags.add_overwrite(parser)
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model", "data"])
    launch = Launch.read()
    allow_progress(launch.is_main)
    count = _COUNT if options.count is None else flags.count(options.count, "--count")
    if options.out == "-":
        raise InputError("--out -: the rows go to a file; give its name.")
    flags.check_standard_input(options.data, launch)
    from classify.prediction.inputs import check_prediction

    with announce_errors(launch, DeviceConfig(use_cpu=options.cpu)):
        reading, overwrite = flags.read_options(options), options.overwrite
        table, texts = check_prediction(
            options.model, options.data, options.out, options.text_column, options.text_pair_column, reading,
            overwrite=overwrite, launch=launch,
        )  # fmt: skip
    from classify.prediction.predictor import load_classifier
    from classify.prediction.stream import describe_doubts
    from classify.prediction.suggest import suggest, write_suggestions
    from classify.tables.roles import rename_alike

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True, launch=launch
    ) as predictor:
        table = rename_alike(table, predictor.label_columns)
        suggestions = suggest(predictor, table, texts, count)
        notes = describe_doubts(predictor, table, texts, predictor.task.answers.columns())
        with predictor.world.sync_errors():
            if predictor.world.is_main:
                write_suggestions(Path(options.out), predictor, table, suggestions)
        if not predictor.world.is_main:
            return 0
    left_out = "".join(f"; {number:,} {reason}" for reason, number in suggestions.left_out.items())
    lines = [
        f"{options.out}: {len(suggestions.rows):,} of {suggestions.candidates:,} rows to label, the least certain "
        f"first{left_out}",
        *(f"note: {text}" for text in notes),
        f"next:   fill in {', '.join(map(repr, predictor.label_columns))}, {_unfilled(predictor)}then train as before, "
        f"with {_tables(predictor, options.out)}",
    ]
    print(escape_controls("\n".join(lines)))
    return 0


def _unfilled(predictor: Predictor) -> str:
    """What to do with rows that stay without a label: of several labels, an empty cell means none of them."""
    return "delete the rows that you do not label, " if predictor.task.answers.thresholds is not None else ""


def _tables(predictor: Predictor, out: str) -> str:
    """The flags of the run's table and the new one; an exported folder does not name the first."""
    from classify.data.split_record import FILE
    from classify.files import read_json

    words, model = ["--data", "former.csv", "--data", out], predictor.folder
    words += [] if predictor.task.answers.thresholds is not None else ["--drop-unlabelled"]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        words[1] = read_json(Path(model) / "run.json")["data"]["path"]
    return shlex.join([*words, *(["--split-like", model] if (Path(model) / FILE).exists() else [])])

"""Choose the rows of a table that are most worth labelling next."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from classify import data, prediction, tables, tasks
from classify.commands import flags
from classify.config.fields import above, option
from classify.config.parser import CommandParser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls
from classify.files import read_json
from classify.launch.launch import Launch

_OUT = "label-me.csv"


@dataclass(frozen=True)
class Options(flags.TableOptions):
    count: int = option(50, "how many rows", check=above(0))
    out: str = option(_OUT, f".csv, .jsonl, .parquet or .xlsx (default: {_OUT})", metavar="FILE")
    overwrite: bool = flags.overwrite()


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Write the rows of a table whose labels would teach a model most, the least certain first, with an "
    "empty column for the label.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model", "data"])
    launch = Launch.read()
    allow_progress(launch.is_main)
    if options.out == "-":
        raise InputError("--out -: the rows go to a file; give its name.")
    with options.check_inputs(launch):
        table, texts = options.read_texts()
        if launch.checks_output_dir:
            files, size = tables.source.list_files(options.data), (len(table), len(table.columns))
            prediction.inputs.check_out(options.out, files, *size, overwrite=options.overwrite)
    with options.load(launch) as predictor:
        table = tables.roles.rename_alike(table, predictor.label_columns)
        suggestions = prediction.suggest.suggest(predictor, table, texts, options.count)
        added = tasks.columns.PredictionColumns(predictor.task, top_k=0).names
        notes = prediction.predictor.describe_doubts(predictor, table, texts, added)
        with predictor.world.sync_errors():
            if predictor.world.is_main:
                prediction.suggest.write_suggestions(Path(options.out), predictor, table, suggestions)
        if not predictor.world.is_main:
            return 0
    left_out = "".join(f"; {number:,} {reason}" for reason, number in suggestions.left_out.items())
    # Of several labels, an empty cell means none of them.
    has_sets, former = predictor.task.answers.thresholds is not None, "former.csv"
    with contextlib.suppress(OSError, ValueError, KeyError):  # an exported folder does not name the table
        former = read_json(Path(options.model) / "run.json")["data"]["path"]
    words = ["--data", former, "--data", options.out, *([] if has_sets else ["--drop-unlabelled"])]
    if (Path(options.model) / data.split_record.FILE).exists():
        words += ["--split-like", options.model]
    lines = [
        f"{options.out}: {len(suggestions.rows):,} of {suggestions.candidates:,} rows to label, the least certain "
        f"first{left_out}",
        *(f"note: {text}" for text in notes),
        f"next:   fill in {', '.join(map(repr, predictor.label_columns))}, "
        f"{'delete the rows that you do not label, ' if has_sets else ''}then train as before, with "
        f"{shlex.join(words)}",
    ]
    print(escape_controls("\n".join(lines)))
    return 0

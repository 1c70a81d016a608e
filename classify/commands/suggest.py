"""Choose the rows of a table that are most worth labelling next."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from classify import data, prediction, tables, tasks
from classify.commands import flags
from classify.config.fields import above, option
from classify.config.parser import CommandParser
from classify.console import allow_progress
from classify.errors import InputError, escape_controls
from classify.files import read_json
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.predictor import Predictor

_OUT = "label-me.csv"


@dataclass(frozen=True)
class Options(flags.TableOptions, flags.ModelOptions):
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
    options.check_standard_input(launch)
    with options.announce_errors(launch):
        table, texts = prediction.inputs.check_prediction(
            options.model, options.data, options.out, options.text_column, options.text_pair_column, options.reading,
            overwrite=options.overwrite, launch=launch,
        )  # fmt: skip
    with options.load(launch) as predictor:
        table = tables.roles.rename_alike(table, predictor.label_columns)
        suggestions = prediction.suggest.suggest(predictor, table, texts, options.count)
        added = tasks.columns.PredictionColumns(predictor.task, top_k=0).names
        notes = prediction.stream.describe_doubts(predictor, table, texts, added)
        with predictor.world.sync_errors():
            if predictor.world.is_main:
                prediction.suggest.write_suggestions(Path(options.out), predictor, table, suggestions)
        if not predictor.world.is_main:
            return 0
    left_out = "".join(f"; {number:,} {reason}" for reason, number in suggestions.left_out.items())
    # Of several labels, an empty cell means none of them.
    unfilled = "delete the rows that you do not label, " if predictor.task.answers.thresholds is not None else ""
    lines = [
        f"{options.out}: {len(suggestions.rows):,} of {suggestions.candidates:,} rows to label, the least certain "
        f"first{left_out}",
        *(f"note: {text}" for text in notes),
        f"next:   fill in {', '.join(map(repr, predictor.label_columns))}, {unfilled}then train as before, with "
        f"{_table_flags(predictor, options.out)}",
    ]
    print(escape_controls("\n".join(lines)))
    return 0


def _table_flags(predictor: Predictor, out: str) -> str:
    """The flags of the run's table and the new one; an exported folder does not name the first."""
    words, model = ["--data", "former.csv", "--data", out], predictor.folder
    words += [] if predictor.task.answers.thresholds is not None else ["--drop-unlabelled"]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        words[1] = read_json(Path(model) / "run.json")["data"]["path"]
    return shlex.join([*words, *(["--split-like", model] if (Path(model) / data.split_record.FILE).exists() else [])])

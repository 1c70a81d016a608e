"""Compare runs or evaluations on the rows that all of them scored, or a new table with the rows of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classify import modeling, prediction, report
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.console import align_columns, allow_progress
from classify.errors import EXCERPT, InputError, escape_controls
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.drift import Drift


@dataclass(frozen=True)
class Options(flags.TableOptions, flags.ModelOptions):
    folders: tuple[str, ...] = option((), "output folders of classify train or evaluate", "FOLDER")
    json: bool = option(False, "print JSON")


def make_parser(program: str) -> CommandParser[Options]:
    return CommandParser(
        Options,
        program,
        "Compare runs or evaluations on the rows that all of them scored; the first is the reference. With --model and "
        "--data, tell whether the texts of a new table differ from a run's.",
        f"{program} FOLDER FOLDER [FOLDER ...] [flags], or {program} --model FOLDER --data FILE [flags]",
    )


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments)
    if options.model or options.data:
        return _compare_table(options, program)
    if len(options.folders) < 2:
        raise InputError(f"{program}: expected two folders or more. Got {len(options.folders)} instead.")
    comparison = report.comparison.compare([Path(folder) for folder in options.folders])
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2, ensure_ascii=False))
    else:
        print(escape_controls("\n".join(comparison.lines())))
    return 0


def _compare_table(options: Options, program: str) -> int:
    """Print how a table differs from the rows that scored a run."""
    if not options.model or not options.data or options.folders:
        raise InputError(f"{program}: expected --model and --data, without folders.")
    launch = Launch.read()
    allow_progress(launch.is_main)
    options.check_standard_input(launch)
    with options.announce_errors(launch):
        settings = modeling.result_folder.read_settings(options.model)
        table, texts = prediction.inputs.read_texts(
            options.data, settings, options.text_column, options.text_pair_column, options.reading
        )
    with options.load(launch) as predictor:
        drift, left_out = prediction.drift.compare_with_run(predictor, table, texts)
        if not predictor.world.is_main:
            return 0
    if options.json:
        print(json.dumps(drift.as_json(), indent=2, ensure_ascii=False))
        return 0
    rows = [["property", "run", table.path, "p"]]
    for change in drift.changes:
        p = "< 0.001" if change.p < 0.001 else f"{change.p:.3f}"
        rows.append([change.name, change.before, change.now, f"{p}  differs" if change.is_clear else p])
    lines = [*align_columns(rows), _describe(drift, left_out)]
    if any(change.is_clear for change in drift.changes):
        shown = table.take(texts.whole, np.sort(np.array(drift.unlike, dtype=np.int64)))
        lines += [f"unlike the run's: {text[:EXCERPT]!r}" for text in shown]
    print(escape_controls("\n".join(lines)))
    return 0


def _describe(drift: Drift, left_out: int) -> str:
    before, now = drift.rows
    changed = sum(change.is_clear for change in drift.changes)
    words = {0: "no property differs", 1: "1 property differs"}.get(changed, f"{changed} properties differ")
    left = "rows without a text, or with one that recurs in both together, are left out"
    rest = f"; {left_out:,} {left}" if left_out else ""
    return f"{words} by more than chance ({before:,} rows of the run, {now:,} new{rest})"

"""Compare runs or evaluations on the rows that all of them scored, or a new table with the rows of a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classify.commands import flags
from classify.commands.failure import announce_errors
from classify.config.devices import DeviceConfig
from classify.config.parser import Parser
from classify.console import align_columns, allow_progress
from classify.errors import EXCERPT, InputError, escape_controls
from classify.launch.launch import Launch
from classify.modeling.result_folder import read_settings

if TYPE_CHECKING:
    from classify.prediction.drift import Drift


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage=f"{program} FOLDER FOLDER [FOLDER ...] [flags], or {program} --model FOLDER --data FILE [flags]",
        description="Compare runs or evaluations on the rows that all of them scored; the first is the reference. With "
        "--model and --data, tell whether the texts of a new table differ from those of a run.",
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="output folders of classify train or evaluate")
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags.add_model(parser)
    flags.add_table(parser)
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments)
    if options.model is not None or options.data is not None:
        return _compare_table(options, program)
    if len(options.folders) < 2:
        raise InputError(f"{program}: expected two folders or more. Got {len(options.folders)} instead.")
    from classify.report.comparison import compare

    comparison = compare([Path(folder) for folder in options.folders])
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2, ensure_ascii=False))
    else:
        for line in comparison.lines():
            print(escape_controls(line))
    return 0


def _compare_table(options: argparse.Namespace, program: str) -> int:
    """Print how a table differs from the rows that scored a run."""
    if options.model is None or options.data is None or options.folders:
        raise InputError(f"{program}: expected --model and --data, without folders.")
    launch = Launch.read()
    allow_progress(launch.is_main)
    flags.check_standard_input(options.data, launch)
    from classify.prediction.inputs import read_texts

    with announce_errors(launch, DeviceConfig(use_cpu=options.cpu)):
        settings = read_settings(options.model)
        reading = flags.read_options(options)
        table, texts = read_texts(options.data, settings, options.text_column, options.text_pair_column, reading)
    from classify.prediction.drift import compare_with_run
    from classify.prediction.predictor import load_classifier

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True, launch=launch
    ) as predictor:
        drift, left_out = compare_with_run(predictor, table, texts)
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

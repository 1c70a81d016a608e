"""Compare runs or evaluations on the rows that all of them scored, or a new table with the rows of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from classify import prediction, report
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.console import align_columns, allow_progress
from classify.errors import EXCERPT, InputError, escape_controls
from classify.launch.launch import Launch


@dataclass(frozen=True)
class Options(flags.TableOptions):
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
    compared = report.comparison.compare([Path(folder) for folder in options.folders])
    if options.json:
        content = {name: asdict(comparison) for name, comparison in compared.items()}
        print(json.dumps(content.get("", content), indent=2, ensure_ascii=False))
        return 0
    for name, comparison in compared.items():
        print(escape_controls("\n".join([*([f"{name}:"] if name else []), *comparison.lines()])))
    return 0


def _compare_table(options: Options, program: str) -> int:
    """Print how a table differs from the rows that scored a run."""
    if not options.model or not options.data or options.folders:
        raise InputError(f"{program}: expected --model and --data, without folders.")
    launch = Launch.read()
    allow_progress(launch.is_main)
    with options.check_inputs(launch):
        table, texts = options.read_texts()
    with options.load(launch) as predictor:
        drift = prediction.drift.compare_with_run(predictor, table, texts)
        if not predictor.world.is_main:
            return 0
    if options.json:
        print(json.dumps(asdict(drift), indent=2, ensure_ascii=False))
        return 0
    rows, changed = [["property", "run", table.path, "p"]], sum(change.clear for change in drift.changes)
    for change in drift.changes:
        p = "< 0.001" if change.p < 0.001 else f"{change.p:.3f}"
        rows.append([change.name, change.before, change.now, f"{p}  differs" if change.clear else p])
    words = {0: "no property differs", 1: "1 property differs"}.get(changed, f"{changed} properties differ")
    left = "rows without a text, or with one that recurs in both together, are left out"
    compared = "{:,} rows of the run, {:,} new".format(*drift.rows)
    rest = f"; {drift.left_out:,} {left}" if drift.left_out else ""
    unlike = [f"unlike the run's: {text[:EXCERPT]!r}" for text in drift.unlike if changed]
    notes = [f"note: {finding.sentence}" for finding in table.findings]
    lines = [*align_columns(rows), f"{words} by more than chance ({compared}{rest})", *unlike, *notes]
    print(escape_controls("\n".join(lines)))
    return 0

"""Tell what more labelled rows would bring: train a run again on parts of its rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from classify import modeling, report, training
from classify.commands import flags
from classify.config.fields import above, option
from classify.config.parser import CommandParser
from classify.console import format_seconds
from classify.errors import InputError, escape_controls
from classify.files import read_json, why_not_writable
from classify.launch.launch import Launch


@dataclass(frozen=True)
class Options:
    model: str = flags.model()
    preset: Literal["fast", "default"] | None = option(
        None, "fast: only the output layer is trained, on all rows, too (default: as the run)"
    )
    draws: int | None = option(None, "trainings of each size (default: 3 below 1,000 rows, else 1)", check=above(0))


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Train a run again on a tenth, a quarter and a half of its rows, and tell what twice as many rows "
    "would bring; the report shows the curve.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model"])
    if Launch.read().is_launched:
        raise InputError(f"{program}: it works in one process; leave the launcher out.")
    folder = Path(options.model)
    modeling.result_folder.read_settings(str(folder))
    if not (folder / "run.json").exists():
        raise InputError(f"--model {folder}: no run.json in it; give the output folder of a training run.")
    if (reason := why_not_writable(folder)) is not None:
        raise InputError(f"--model {folder}: the curve cannot be written there ({reason}); copy the folder.")
    rows, trained_with = training.curve.read_run(folder)
    preset = options.preset or trained_with
    sizes = training.curve.plan_sizes(folder, preset, options.draws)
    listed = ", ".join(f"{size:,}" for size in dict.fromkeys(size for size, _ in sizes))
    about = ""
    if preset == trained_with:
        seconds = read_json(folder / "metrics.json")["wall_seconds"] * sum(size for size, _ in sizes) / rows
        about = f", about {format_seconds(seconds)}"
    print(f"curve: {len(sizes)} trainings on {listed} of {rows:,} rows{about} (--draws, --preset fast)", flush=True)

    def report_score(size: int, name: str, score: float) -> None:
        print(f"{size:,} rows: {name} {score:.3f}", flush=True)

    curve = training.curve.measure_curve(folder, sizes, preset, report_score)
    curve.write(folder)
    print(escape_controls(curve.line()))
    if gained := curve.most_gained():
        grown = ", ".join(f"{name} ({before:.2f} to {now:.2f})" for name, before, now in gained)
        print(escape_controls(f"F1 rose most from half of the rows to all: {grown}"))
    with contextlib.suppress(OSError):
        print(f"report: {report.page.write_report(report.result.Result.read(folder))}")
    return 0

"""Tell what more labelled rows would bring: train a run again on parts of its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from classify.commands import flags
from classify.config.parser import Parser
from classify.config.recipe import PRESETS
from classify.console import format_seconds
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Train a run again on a tenth, a quarter and a half of its rows, and tell what twice as many rows "
        "would bring; the report shows the curve.",
    )
    parser.add_argument("--model", metavar="FOLDER", help="the output folder of a training run")
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        metavar="NAME",
        help="fast: only the output layer is trained, on all rows, too (default: as the run)",
    )
    parser.add_argument("--draws", metavar="INT", help="trainings of each size (default: 3 below 1,000 rows, else 1)")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model"])
    if Launch.read().is_launched:
        raise InputError(f"{program}: it works in one process; leave the launcher out.")
    draws = None if options.draws is None else flags.count(options.draws, "--draws")
    folder = Path(options.model)
    from classify.files import read_json, why_not_writable
    from classify.modeling.result_folder import read_settings
    from classify.training.curve import measure_curve, plan_sizes, read_run

    read_settings(str(folder))
    if not (folder / "run.json").exists():
        raise InputError(f"--model {folder}: no run.json in it; give the output folder of a training run.")
    if (reason := why_not_writable(folder)) is not None:
        raise InputError(f"--model {folder}: the curve cannot be written there ({reason}); copy the folder.")
    rows, trained_with = read_run(folder)
    preset = options.preset or trained_with
    sizes = plan_sizes(folder, preset, draws)
    listed = ", ".join(f"{size:,}" for size in dict.fromkeys(size for size, _ in sizes))
    about = ""
    if preset == trained_with:
        seconds = read_json(folder / "metrics.json")["wall_seconds"] * sum(size for size, _ in sizes) / rows
        about = f", about {format_seconds(seconds)}"
    print(f"curve: {len(sizes)} trainings on {listed} of {rows:,} rows{about} (--draws, --preset fast)", flush=True)

    def report(size: int, name: str, score: float) -> None:
        print(f"{size:,} rows: {name} {score:.3f}", flush=True)

    curve = measure_curve(folder, sizes, preset, report)
    curve.write(folder)
    print(escape_controls("\n".join([curve.line(), *_describe_classes(curve.most_gained())])))
    from classify.report.page import write_report

    with contextlib.suppress(OSError):
        print(f"report: {write_report(folder)}")
    return 0


def _describe_classes(gained: list[tuple[str, float, float]]) -> list[str]:
    if not gained:
        return []
    listed = ", ".join(f"{name} ({before:.2f} to {now:.2f})" for name, before, now in gained)
    return [f"F1 rose most from half of the rows to all: {listed}"]

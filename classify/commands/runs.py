"""List the runs in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from classify.config.parser import Parser
from classify.errors import InputError, escape_controls


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, usage=f"{program} [DIR] [flags]", description="List the runs in a folder.")
    parser.add_argument("folder", nargs="?", metavar="DIR", default="runs", help="the folder (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments)
    from classify.report.runs import list_runs, table

    if not Path(options.folder).is_dir():
        got = "a file" if Path(options.folder).exists() else "no such folder"
        raise InputError(f"{options.folder}: {got}. Expected a folder with output folders of training runs.")
    runs = list_runs(Path(options.folder))
    if options.json:
        print(json.dumps([asdict(run) for run in runs], indent=2, ensure_ascii=False))
        return 0
    for line in table(runs) if runs else [f"{options.folder}: no runs"]:
        print(escape_controls(line))
    return 0

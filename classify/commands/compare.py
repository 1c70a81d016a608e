"""Compare runs or evaluations on the rows that all of them scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from classify.commands import flags
from classify.config.parser import Parser
from classify.errors import InputError, escape_controls
from classify.prediction.inputs import check_file


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage=f"{program} FOLDER FOLDER [FOLDER ...] [flags]",
        description="Compare runs or evaluations on the rows that all of them scored; the first is the reference.",
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="output folders of classify train or evaluate")
    parser.add_argument("--html", metavar="FILE", help="also write the comparison as an HTML page")
    flags.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments)
    if len(options.folders) < 2:
        raise InputError(f"{program}: expected two folders or more. Got {len(options.folders)} instead.")
    if options.html is not None:
        check_file(options.html, "--html", overwrite=options.overwrite)
    from classify.report.comparison import compare
    from classify.report.page import write_comparison

    comparison = compare([Path(folder) for folder in options.folders])
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2, ensure_ascii=False))
    else:
        for line in comparison.lines():
            print(escape_controls(line))
    if options.html is not None:
        write_comparison(Path(options.html), comparison)
        if not options.json:
            print(escape_controls(f"page: {options.html}"))
    return 0

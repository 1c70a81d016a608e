"""Flags that several commands share."""

from __future__ import annotations

import argparse

from classify.config.fields import above, at_least, between, parse
from classify.config.parser import Parser
from classify.errors import InputError
from classify.files import split_paths
from classify.launch.launch import Launch
from classify.tables.options import REMEMBERED, ReadOptions
from classify.tables.source import is_stream


def add_model(parser: Parser) -> None:
    """Add the flags of a trained model and its device."""
    parser.add_argument("--model", metavar="FOLDER", help="the output folder of a training run")
    parser.add_argument(
        "--precision",
        choices=["auto", "fp32", "tf32", "bf16", "fp16"],
        metavar="NAME",
        default="auto",
        help="fp32, tf32, bf16 or fp16 (default: fp32)",
    )
    parser.add_argument("--cpu", "--use-cpu", "--no-cuda", action="store_true", help="use the CPU only")


# The options of `add_table` other than --data.
OF_TABLES = (*REMEMBERED, "no_header", "text_column", "text_pair_column")


def add_table(parser: Parser) -> None:
    """Add the flags of a table and its text columns."""
    parser.add_argument(
        "--data",
        metavar="FILE",
        action="join",
        nargs="+",
        help="the table, in any format that training reads; several become one; - is standard input",
    )
    parser.add_argument("--encoding", metavar="NAME", help="its encoding (default: auto-detected)")
    parser.add_argument("--delimiter", metavar="TEXT", help="what separates columns: one character, or tab")
    parser.add_argument("--quote", metavar="TEXT", help="the character around fields, or none")
    parser.add_argument("--header", action="store_true", help="the first row names the columns")
    parser.add_argument("--no-header", action="store_true", help="no header row; columns are column_1, ...")
    parser.add_argument("--skip-lines", metavar="INT", help="lines above the table")
    parser.add_argument("--sheet", metavar="NAME", help="sheet of an Excel workbook (default: the first with texts)")
    parser.add_argument("--text-column", metavar="COLUMN", action="join", help="text column (default: as in training)")
    parser.add_argument(
        "--text-pair-column",
        metavar="COLUMN",
        help="column of the second text, for text pairs (default: as in training)",
    )


def add_overwrite(parser: Parser) -> None:
    """Add the flag that lets a command replace a file."""
    parser.add_argument("--overwrite", action="store_true", help="replace the output file if it exists")


def add_thresholds(parser: Parser) -> None:
    """Add the flag of the labels' thresholds."""
    parser.add_argument(
        "--threshold",
        metavar="LABEL=FLOAT",
        action="append",
        help="of several labels a row: predict this one from another probability on; may be given again",
    )


def thresholds(options: argparse.Namespace) -> dict[str, float]:
    """The thresholds by label. Raises InputError for other words."""
    found = {}
    for word in options.threshold or ():
        label, _, value = word.rpartition("=")
        if not label:
            raise InputError(f"--threshold {word}: expected a label and its threshold, e.g. urgent=0.4.")
        found[label] = probability(value, f"--threshold {label}=")
    return found


def read_options(options: argparse.Namespace) -> ReadOptions:
    """How to read the table of `add_table`."""
    settings = {**vars(options)}
    if options.skip_lines is not None:
        settings["skip_lines"] = parse(options.skip_lines, (int,), "--skip-lines", at_least(0))
    return ReadOptions.from_settings(settings)


def probability(text: str, flag: str) -> float:
    """Parse the value of a flag. Raises InputError for anything but a number from 0 to 1."""
    return float(parse(text, (float,), flag, between(0, 1, include_high=True)))


def count(text: str, flag: str) -> int:
    """Parse the value of a flag. Raises InputError for anything but a whole number above 0."""
    return int(parse(text, (int,), flag, above(0)))


def check_standard_input(data: str, launch: Launch) -> None:
    """Raise InputError where several processes would read standard input."""
    if any(map(is_stream, split_paths(data))) and launch.is_launched:
        raise InputError(f"--data {data}: only one of several processes can read a stream; give a file.")

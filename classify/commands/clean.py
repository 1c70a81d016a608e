"""Write a copy of a table with the labels that a reviewed suspects.csv suggests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classify.commands import flags
from classify.config.parser import Parser
from classify.errors import InputError, escape_controls

if TYPE_CHECKING:
    from classify.tables.texts import TextColumns


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Write a copy of a run's table with the suggested labels of suspects.csv, which classify train "
        "--folds writes. Review the file first: write x into the column accept where the suggestion is right.",
    )
    parser.add_argument("--apply", metavar="FILE", help="suspects.csv in a run's folder; with --label-names the folder")
    parser.add_argument("--label-names", metavar="A=B,C=D", help="also rename labels, such as typing errors")
    parser.add_argument("--data", metavar="FILE", help="the table (default: that of the run)")
    parser.add_argument("--out", metavar="FILE", help="the corrected copy: .csv, .jsonl, .parquet or .xlsx")
    flags.add_overwrite(parser)
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["apply", "out"])
    from classify.evaluation.suspects_file import apply_suspects
    from classify.prediction.inputs import check_out
    from classify.report.environment import count
    from classify.tables.folders import list_files
    from classify.tables.labels import name_classes
    from classify.tables.options import ReadOptions
    from classify.tables.read import read_table
    from classify.tables.roles import require_columns
    from classify.tables.writers import Added, find_writer

    suspects = Path(options.apply)
    renames_alone = suspects.is_dir() and options.label_names is not None
    if not suspects.is_file() and not renames_alone:
        got = "a folder" if suspects.is_dir() else "no such file"
        raise InputError(
            f"--apply {options.apply}: expected suspects.csv in the folder of a run, which --folds writes where labels "
            f"are probably wrong. Got {got} instead."
        )
    folder = suspects.absolute() if renames_alone else suspects.absolute().parent
    path, sha256, label_column, texts, stored = _describe_run(folder)
    data = options.data or path
    table = read_table(data, options=ReadOptions.from_settings(stored))
    check_out(
        options.out, [*list_files(data), options.apply], len(table), len(table.columns), overwrite=options.overwrite
    )
    if options.data is None and table.sha256 != sha256:
        raise InputError(f"{data}: the table has changed since the run; train again, or name the table with --data.")
    if label_column not in table.columns:
        raise InputError(f"{data}: no column {label_column!r}, which holds the labels; give the table of the run.")
    require_columns(table, dict.fromkeys(texts.named, "--data"))
    before = table.column(label_column)
    labels = before
    if not renames_alone:
        labels = apply_suspects(suspects, texts.derive(table), (texts.whole, label_column))
    if options.label_names is not None:
        renamed = name_classes(Counter(labels), normalize=False, requested=options.label_names).names
        labels = [renamed[label] for label in labels]
    changed = sum(one != other for one, other in zip(before, labels, strict=True))
    from classify.files import atomic_path

    write, unchanged = find_writer(options.out, "--out"), [()] * len(table)
    with atomic_path(Path(options.out)) as temporary:
        write(temporary, table, np.arange(len(table)), Added((), unchanged, replaced={label_column: labels}))
    print(
        escape_controls(
            f"{options.out}: {count(len(table), 'row')}, "
            f"{count(changed, 'label')} changed in column {label_column!r}; {data} is unchanged"
        )
    )
    counts, after = Counter(before), Counter(labels)
    for label in sorted({*counts, *after}):
        if counts[label] != after[label]:
            print(escape_controls(f"  {label!r}: {counts[label]} rows before, {after[label]} after"))
    return 0


def _describe_run(folder: Path) -> tuple[str, str, str, TextColumns, dict[str, Any]]:
    """Return path and hash of a run's table, its label and text columns, and how the table was read."""
    from classify.files import read_json, split_paths
    from classify.modeling.result_folder import trained_texts

    try:
        run = read_json(folder / "run.json")
        settings = read_json(folder / "classify.json")
        (label_column,) = settings["label_columns"]
        path, place = run["data"]["path"], Path(run["cwd"])
        whole = (place / path).exists()  # a name may hold a comma
        files = [path] if whole else split_paths(path)
        there = path if all(Path(file).exists() for file in files) else ",".join(str(place / file) for file in files)
        return there, run["data"]["sha256"], label_column, trained_texts(settings), run["config"]["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: expected the folder of a run beside suspects.csv ({type(error).__name__}: {error}); a reviewed "
            "copy has to lie in that folder, too."
        ) from None

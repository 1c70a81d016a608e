"""Write a copy of a table with the labels that a reviewed suspects.csv suggests."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classify import evaluation, modeling, prediction, report, tables
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls
from classify.files import atomic_path, read_json, split_paths

if TYPE_CHECKING:
    from classify.tables.roles import TextColumns


@dataclass(frozen=True)
class Options:
    apply: str = option("", "suspects.csv in a run's folder; with --label-names the folder", metavar="FILE")
    label_names: str | None = option(None, "also rename labels, such as typing errors", metavar="A=B,C=D")
    data: str | None = option(None, "the table (default: that of the run)", metavar="FILE")
    out: str = option("", "the corrected copy: .csv, .jsonl, .parquet or .xlsx", metavar="FILE")
    overwrite: bool = flags.overwrite()


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Write a copy of a run's table with the suggested labels of suspects.csv, which classify train --folds "
    "writes. Review the file first: write x into the column accept where the suggestion is right.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["apply", "out"])
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
    table = tables.read.read_table(data, options=tables.source.ReadOptions.from_settings(stored))
    inputs = [*tables.source.list_files(data), options.apply]
    prediction.inputs.check_out(options.out, inputs, len(table), len(table.columns), overwrite=options.overwrite)
    if options.data is None and table.sha256 != sha256:
        raise InputError(f"{data}: the table has changed since the run; train again, or name the table with --data.")
    if label_column not in table.columns:
        raise InputError(f"{data}: no column {label_column!r}, which holds the labels; give the table of the run.")
    tables.roles.require_columns(table, dict.fromkeys(texts.named, "--data"))
    labels = before = table.column(label_column)
    if not renames_alone:
        labels = evaluation.suspects_file.apply_suspects(suspects, texts.derive(table), (texts.whole, label_column))
    if options.label_names is not None:
        names = tables.labels.name_classes(Counter(labels), normalize=False, requested=options.label_names).names
        labels = [names[label] for label in labels]
    write = tables.writers.find_writer(options.out, "--out")
    added = tables.writers.Added((), [()] * len(table), replaced={label_column: labels})
    with atomic_path(Path(options.out)) as temporary:
        write(temporary, table, np.arange(len(table)), added)
    changed = sum(one != other for one, other in zip(before, labels, strict=True))
    count = report.environment.count
    lines = [
        f"{options.out}: {count(len(table), 'row')}, {count(changed, 'label')} changed in column {label_column!r}; "
        f"{data} is unchanged"
    ]
    counts, after = Counter(before), Counter(labels)
    for label in sorted({*counts, *after}):
        if counts[label] != after[label]:
            lines.append(f"  {label!r}: {counts[label]} rows before, {after[label]} after")
    print(escape_controls("\n".join(lines)))
    return 0


def _describe_run(folder: Path) -> tuple[str, str, str, TextColumns, dict[str, Any]]:
    """Path and hash of a run's table, its label and text columns, and how the table was read."""
    try:
        run, settings = read_json(folder / "run.json"), read_json(folder / "classify.json")
        (label_column,) = settings["label_columns"]
        path, place = run["data"]["path"], Path(run["cwd"])
        whole = (place / path).exists()  # a name may hold a comma
        files = [path] if whole else split_paths(path)
        there = path if all(Path(file).exists() for file in files) else ",".join(str(place / file) for file in files)
        texts = modeling.result_folder.trained_texts(settings)
        return there, run["data"]["sha256"], label_column, texts, run["config"]["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: expected the folder of a run beside suspects.csv ({type(error).__name__}: {error}); a reviewed "
            "copy has to lie in that folder, too."
        ) from None

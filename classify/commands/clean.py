"""Write a copy of a table with the labels that a reviewed suspects.csv suggests."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from classify import evaluation, modeling, prediction, report, tables
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls
from classify.files import atomic_path, read_json, split_paths


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
    apply = Path(options.apply)
    renames_alone = apply.is_dir() and options.label_names is not None
    if not apply.is_file() and not renames_alone:
        got = "a folder" if apply.is_dir() else "no such file"
        raise InputError(
            f"--apply {options.apply}: expected suspects.csv in the folder of a run, which --folds writes where labels "
            f"are probably wrong. Got {got} instead."
        )
    folder = apply.absolute() if renames_alone else apply.absolute().parent
    run, settings, path = _describe_run(folder)
    data, texts = options.data or path, modeling.result_folder.trained_texts(settings)
    (label_column,) = settings["label_columns"]
    table = tables.read.read_table(data, options=tables.source.ReadOptions.from_settings(run["config"]["data"]))
    inputs = [*tables.source.list_files(data), options.apply]
    prediction.inputs.check_out(options.out, inputs, len(table), len(table.columns), overwrite=options.overwrite)
    if options.data is None and table.sha256 != run["data"]["sha256"]:
        raise InputError(f"{data}: the table has changed since the run; train again, or name the table with --data.")
    tables.roles.require_columns(table, dict.fromkeys((label_column, *texts.named), "--data"))
    labels = before = table.column(label_column)
    if not renames_alone:
        labels = evaluation.suspects_file.apply_suspects(apply, texts.derive(table), (texts.whole, label_column))
    if options.label_names is not None:
        names = tables.labels.name_classes(Counter(labels), normalize=False, requested=options.label_names).names
        labels = [names[label] for label in labels]
    write = tables.writers.find_writer(options.out)
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


def _describe_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
    """run.json and classify.json of a run with one label column, and the path of its table from here."""
    try:
        run, settings = read_json(folder / "run.json"), read_json(folder / "classify.json")
        (_,), path, place = settings["label_columns"], run["data"]["path"], Path(run["cwd"])
        files = [path] if (place / path).exists() else split_paths(path)  # a name may hold a comma
        is_here = all(Path(file).exists() for file in files)
        return run, settings, path if is_here else ",".join(str(place / file) for file in files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: expected the folder of a run beside suspects.csv ({type(error).__name__}: {error}); a reviewed "
            "copy has to lie in that folder, too."
        ) from None

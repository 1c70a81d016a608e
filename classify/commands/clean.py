"""Write a copy of a table with the labels that a reviewed suspects.csv suggests."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    run, settings, path, place = _describe_run(folder)
    data, texts = options.data or path, modeling.result_folder.trained_texts(settings)
    label_columns = settings["label_columns"]
    if len(label_columns) > 1 and options.label_names is not None:
        raise InputError("--label-names: works with one label column; drop the flag.")
    table = tables.read.read_table(data, options=tables.source.ReadOptions.from_settings(run["config"]["data"]))
    if options.data is None and place and table.unit == "file":  # as the run, and so suspects.csv, has named them
        table = replace(table, places=[one.removeprefix(f"{place}/") for one in table.places])
    inputs = [*tables.source.list_files(data), options.apply]
    prediction.inputs.check_out(options.out, inputs, len(table), len(table.columns), overwrite=options.overwrite)
    if options.data is None and table.sha256 != run["data"]["sha256"]:
        raise InputError(f"{data}: the table has changed since the run; train again, or name the table with --data.")
    tables.roles.require_columns(table, dict.fromkeys((*label_columns, *texts.named), "--data"))
    before = {name: table.column(name) for name in label_columns}
    after = dict(before)
    if not renames_alone:
        whole, derived = texts.whole, texts.derive(table)
        after = {name: evaluation.suspects_file.apply_suspects(apply, derived, (whole, name)) for name in label_columns}
    if options.label_names is not None:
        (name,) = label_columns
        names = tables.labels.name_classes(Counter(after[name]), normalize=False, requested=options.label_names).names
        after = {name: [names[label] for label in after[name]]}
    write = tables.writers.find_writer(options.out)
    changed = {
        name: {row: new for row, (old, new) in enumerate(zip(before[name], cells, strict=True)) if old != new}
        for name, cells in after.items()
    }
    added = tables.writers.Added((), [()] * len(table), replaced=changed)
    with atomic_path(Path(options.out)) as temporary:
        write(temporary, table, np.arange(len(table)), added)
    count, lines = report.environment.count, list[str]()
    for name in label_columns:
        lines.append(f"{count(len(changed[name]), 'label')} changed in column {name!r}")
        counts, now = (Counter(cells[name]) for cells in (before, after))
        lines += [
            f"  {label!r}: {counts[label]} rows before, {now[label]} after"
            for label in sorted({*counts, *now})
            if counts[label] != now[label]
        ]
    lines[0] = f"{options.out}: {count(len(table), 'row')}, {lines[0]}; {data} is unchanged"
    lines += [f"note: {finding.sentence}" for finding in table.findings]
    print(escape_controls("\n".join(lines)))
    return 0


def _describe_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], str, str]:
    """run.json and classify.json of a run, the path of its table from here, and the folder that this begins with."""
    try:
        run, settings = read_json(folder / "run.json"), read_json(folder / "classify.json")
        path, place, columns = run["data"]["path"], Path(run["cwd"]), settings["label_columns"]
        if len(columns) != 1 and "columns" not in settings:
            raise ValueError("columns of 0 and 1 are no labels to correct")
        if tables.folders.is_hub(path) or all(Path(file).exists() for file in tables.source.list_files(path)):
            return run, settings, path, ""
        files = [path] if (place / path).exists() else split_paths(path)  # a name may hold a comma
        return run, settings, ",".join(str(place / file) for file in files), str(place)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: expected the folder of a run beside suspects.csv ({type(error).__name__}: {error}); a reviewed "
            "copy has to lie in that folder, too."
        ) from None

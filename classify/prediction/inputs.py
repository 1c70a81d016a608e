"""Validate the inputs of a prediction before torch is imported and anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.files import why_not_writable
from classify.findings import decided
from classify.launch import launcher
from classify.modeling.result_folder import read_settings, trained_texts
from classify.tables.decide import DoubtError
from classify.tables.derived import TextColumns
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.pattern import list_files
from classify.tables.formats.registry import read_table, refuse_unused
from classify.tables.roles import find_text_columns
from classify.tables.table import Table
from classify.tables.writers import find_writer


def check_prediction(
    model: str,
    data: str,
    out: str,
    text_column: str | None,
    pair_column: str | None = None,
    reading: ReadOptions | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Table, TextColumns]:
    """Validate all inputs; return the table to predict and its text columns. Raises InputError."""
    table, texts = read_texts(data, read_settings(model), text_column, pair_column, reading)
    if out != "-" and launcher.here().checks_output_dir:  # other machines may lack the folder; they do not write
        check_out(out, list_files(data), len(table), len(table.columns), overwrite=overwrite)
    return table, texts


def read_texts(
    data: str,
    settings: dict[str, Any],
    text_column: str | None,
    pair_column: str | None,
    reading: ReadOptions | None = None,
) -> tuple[Table, TextColumns]:
    """Read a table with the text columns that a model was trained on, or those named. Raises InputError.

    Flags of the training that say how tables are read apply here, too; what a table leaves open is read as there.
    """
    trained, stored = trained_texts(settings), settings.get("reading", {})
    reading = reading or ReadOptions()
    options = replace(reading, columns=trained.named).fill(stored.get("given", {}))
    try:
        table = read_table(data, options=options)
    except DoubtError:
        if not stored.get("found"):
            raise
        table = read_table(data, options=options.fill(stored["found"]))
    refuse_unused(reading, [table])
    texts = find_text_columns(table, trained, text_column, pair_column)
    table = texts.derive(table)
    texts.require_both(table)
    return table, texts


def describe_table(table: Table, texts: TextColumns) -> str:
    """Return the line on a table, as training prints it: its texts, what its file was recognized as, and the flag."""
    named = "+".join(map(repr, texts.named))
    return decided("table", f"{table.path}, {len(table):,} rows, texts in {named}", table.form, table.flag).line()


def check_out(out: str, inputs: Sequence[str], rows: int, columns: int, *, overwrite: bool) -> None:
    """Raise InputError where a table of that size cannot be written to `out`, or it is one of the inputs."""
    find_writer(out, "--out").check_size(rows, columns, out)
    path = Path(out)
    for data in inputs:
        if path.exists() and Path(data).exists() and path.samefile(data):
            raise InputError(f"--out {out}: this is {data}, an input; give another file name.")
        if Path(data).is_dir() and path.resolve().is_relative_to(Path(data).resolve()):
            raise InputError(f"--out {out}: it lies in {data}, an input; give a file in another folder.")
    check_file(out, "--out", overwrite=overwrite)


def partial_path(out: Path) -> Path:
    """Return the file beside an output in which an interrupted prediction is kept."""
    return out.with_name(f"{out.name}.partial")


def check_file(name: str, flag: str, *, overwrite: bool) -> None:
    """Raise InputError where the file `name` that a flag names cannot be written, or exists and may hold work."""
    path = Path(name)
    if path.is_file() and not overwrite:
        raise InputError(f"{flag} {name}: the file exists; give another name, or --overwrite to replace it.")
    if path.is_dir():
        raise InputError(f"{flag} {name}: expected a file name. Got a folder instead.")
    if path.exists() and not path.is_file():
        raise InputError(f"{flag} {name}: expected a file name. Got a device or a pipe instead.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{flag} {name}: the folder {path.parent} does not exist; create it first.")
    reason = why_not_writable(path.absolute().parent)
    if reason is not None:
        raise InputError(
            f"{flag} {name}: the folder {path.parent} is not writable ({reason}); give a file in another folder."
        )

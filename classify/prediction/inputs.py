"""Validate the inputs of a prediction before torch is imported and anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.files import why_not_writable
from classify.findings import decided
from classify.launch.launch import Launch
from classify.modeling.result_folder import read_settings, trained_texts
from classify.tables import writers
from classify.tables.read import read_table
from classify.tables.roles import TextColumns, find_text_columns
from classify.tables.source import ReadOptions, list_files
from classify.tables.table import Table


def check_prediction(
    model: str,
    data: str,
    out: str,
    text_column: str | None,
    pair_column: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
    *,
    overwrite: bool = False,
    launch: Launch = Launch(),  # noqa: B008
) -> tuple[Table, TextColumns]:
    """Validate all inputs; return the table to predict and its text columns. Raises InputError."""
    table, texts = read_texts(data, read_settings(model), text_column, pair_column, options)
    if out != "-" and launch.checks_output_dir:  # other machines may lack the folder; they do not write
        check_out(out, list_files(data), len(table), len(table.columns), overwrite=overwrite)
    return table, texts


def read_texts(
    data: str | Table,
    settings: dict[str, Any],
    text_column: str | None = None,
    pair_column: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> tuple[Table, TextColumns]:
    """Read a table with the text columns that a model was trained on, or those named. Raises InputError.

    Flags of the training that say how tables are read apply here, too; what a file leaves open is read as there.
    """
    trained = trained_texts(settings)
    if not isinstance(data, Table):
        data = read_table(data, options=options.after(settings.get("reading", {}), trained.named))
    texts = find_text_columns(data, trained, text_column, pair_column)
    return texts.derive(data), texts


def describe_table(table: Table, texts: TextColumns) -> str:
    """The line on a table, as training prints it: its texts, how the file was read, and the flag."""
    named = "+".join(map(repr, texts.named))
    return decided("table", f"{table.path}, {len(table):,} rows, texts in {named}", table.form, table.flag).line()


def check_out(out: str, inputs: Sequence[str], rows: int, columns: int, *, overwrite: bool) -> None:
    """Check that a table of that size can be written to `out`, which is none of the inputs. Raises InputError."""
    writers.find_writer(out, "--out")
    writers.check_size(out, rows, columns)
    path = Path(out)
    for data in inputs:
        if path.exists() and Path(data).exists() and path.samefile(data):
            raise InputError(f"--out {out}: this is {data}, an input; give another file name.")
        if Path(data).is_dir() and path.resolve().is_relative_to(Path(data).resolve()):
            raise InputError(f"--out {out}: it lies in {data}, an input; give a file in another folder.")
    if path.is_file() and not overwrite:
        raise InputError(f"--out {out}: the file exists; give another name, or --overwrite to replace it.")
    if path.exists() and not path.is_file():
        got = "folder" if path.is_dir() else "device or a pipe"
        raise InputError(f"--out {out}: expected a file name. Got a {got} instead.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"--out {out}: the folder {path.parent} does not exist; create it first.")
    if (reason := why_not_writable(folder)) is not None:
        raise InputError(
            f"--out {out}: the folder {path.parent} is not writable ({reason}); give a file in another folder."
        )

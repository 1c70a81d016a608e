"""Write predictions: every column of the table, followed by the predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import list_some
from classify.files import atomic_path, read_json
from classify.tables.formats.delimited import read_written
from classify.tables.table import Kind, Table
from classify.tables.writers import TableWriter, find_writer, kinds_of, unescape_formula

FILE = "predictions.csv"
# Column of the fold that predicted a row, in cross-validation.
FOLD_COLUMN = "fold"
# Formats of probabilities and scores: for programs, and for readers of a spreadsheet.
EXACT, FOR_EXCEL = ".8g", ".4f"
_BOOLEAN = "accepted"
# The added columns of other names hold numbers.
_TEXT_COLUMNS = ("predicted_label", "label_", "accepted")
# Between the labels of a cell.
JOIN = "|"
_BLOCK = 4096


def read_predictions(folder: Path) -> Table:
    """Read predictions.csv of a result folder, with the texts that were predicted. Raises OSError and InputError."""
    table = read_written(str(folder / FILE))
    if not read_json(folder / "run.json").get("config", {}).get("training", {}).get("excel_safe"):
        return table
    columns = [list(map(unescape_formula, table.column(name))) for name in table.columns]
    return replace(table, arrow=pyarrow.table(columns, names=table.columns))


def name_columns(table: Table, added: Sequence[str]) -> list[str]:
    """Return the table's columns, renamed where one is also in `added`, followed by `added`."""
    names: list[str] = []
    for name in table.columns:
        new = name
        while new in added or new in names or (new != name and new in table.columns):
            new += "_input"
        names.append(new)
    return [*names, *added]


def note_renamed(table: Table, added: Sequence[str]) -> str | None:
    """Return a note where columns have other names in the file of predictions; None where all keep theirs."""
    pairs = zip(table.columns, name_columns(table, added), strict=False)
    renamed = [f"{name!r} is named {new!r}" for name, new in pairs if name != new]
    shown = list_some(renamed)
    return f"{table.path}: in the predictions, column {shown}" if renamed else None


def kinds_of_columns(table: Table, added: Sequence[str]) -> dict[str, Kind]:
    """Return the kinds of a table's columns, by their names in the file of predictions, and of the columns of these."""
    names, kinds = name_columns(table, added), kinds_of(table)
    own = {new: kinds[name] for name, new in zip(table.columns, names, strict=False) if name in kinds}
    for name in added:
        if name == _BOOLEAN:
            own[name] = "boolean"
        elif not name.startswith(_TEXT_COLUMNS):
            own[name] = "number"
    return own


def write_predictions(
    path: Path,
    table: Table,
    rows: npt.NDArray[np.int64],
    added: Sequence[str],
    fields: Iterable[Sequence[str]],
    *,
    for_excel: bool = False,
) -> None:
    """Write `rows` of the table, in order, with all its columns and the `added` ones, whose cells are `fields`.

    The format follows from the extension of the name; see `TableWriter` for `for_excel`.
    """
    columns = name_columns(table, added)
    sheet = table.reading.get("sheet") or "predictions"
    writer = find_writer(path.name, "--out")(columns, kinds_of_columns(table, added), for_excel=for_excel, sheet=sheet)
    with atomic_path(path) as temporary, writer.open(temporary):
        write_rows(writer, table, rows, fields)


def write_rows(writer: TableWriter, table: Table, rows: npt.NDArray[np.int64], fields: Iterable[Sequence[str]]) -> None:
    """Write rows of a table, each followed by its `fields`, a block at a time."""
    added = iter(fields)
    for start in range(0, len(rows), _BLOCK):
        columns = [table.take(name, rows[start : start + _BLOCK]) for name in table.columns]
        blocks = zip(zip(*columns, strict=True), itertools.islice(added, _BLOCK), strict=True)
        writer.write([[*cells, *more] for cells, more in blocks])

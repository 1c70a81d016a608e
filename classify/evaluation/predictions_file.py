"""Write predictions: every column of the table, followed by the predictions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import list_some
from classify.files import atomic_path, read_json
from classify.tables import csv_file
from classify.tables.source import ReadOptions, Source
from classify.tables.table import Table, to_arrow
from classify.tables.writers import Added, find_writer, rename_columns, unescape_formula, write_csv

FILE = "predictions.csv"
# Column of the fold that predicted a row, in cross-validation.
FOLD_COLUMN = "fold"
# Formats of probabilities and scores: for programs, and for readers of a spreadsheet.
EXACT = ".8g"
FOR_EXCEL = ".4f"
# Column that says whether a prediction reaches the confidence that is asked for.
ACCEPTED = "accepted"
# The added columns of other names hold numbers.
_TEXT_COLUMNS = ("predicted_label", "label_", ACCEPTED)
# Between the labels of a cell.
JOIN = "|"


def read_predictions(folder: Path) -> Table:
    """Read predictions.csv of a result folder, with the texts that were predicted. Raises OSError and InputError."""
    written = ReadOptions(encoding="utf-8", quote='"', header=True, like={"delimiter": ","})
    table = csv_file.read(Source(str(folder / FILE)), written)
    if not read_json(folder / "run.json").get("config", {}).get("training", {}).get("excel_safe"):
        return table
    columns = [to_arrow(map(unescape_formula, table.column(name))) for name in table.columns]
    return replace(table, arrow=pyarrow.table(columns, names=table.columns))


def note_renamed(table: Table, added: Sequence[str]) -> str | None:
    """A note where columns have other names in the file of predictions, or None."""
    pairs = zip(table.columns, rename_columns(table, added), strict=True)
    renamed = [f"{name!r} is named {new!r}" for name, new in pairs if name != new]
    return f"{table.path}: in the predictions, column {list_some(renamed)}" if renamed else None


def write_predictions(
    path: Path,
    table: Table,
    rows: npt.NDArray[np.int64],
    names: Sequence[str],
    cells: Iterable[Sequence[str]],
    *,
    for_excel: bool = False,
) -> None:
    """Write `rows` of the table, ascending, with all its columns, then `names`, whose cells of each row `cells` yields.

    The format follows from the extension of the file; see `CSVStream` for `for_excel`.
    """
    numbers = frozenset(name for name in names if not name.startswith(_TEXT_COLUMNS))
    write = find_writer(path.name, "--out")
    if write is write_csv:
        write = functools.partial(write_csv, for_excel=for_excel)
    with atomic_path(path) as temporary:
        write(temporary, table, rows, Added(names, cells, numbers, frozenset({ACCEPTED})))

"""Write predictions.csv: every column of the table, followed by the predictions."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.dialect import is_number
from classify.data.files import atomic_write
from classify.data.table import Table
from classify.errors import InputError

# Column of the fold that predicted a row, in cross-validation.
FOLD_COLUMN = "fold"
# Formats of probabilities and scores: for programs, and for readers of a spreadsheet.
EXACT, FOR_EXCEL = ".8g", ".4f"
# A spreadsheet computes cells that begin with one of these.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def check_columns_free(table: Table, added: Sequence[str]) -> None:
    """Raise InputError if the table already has one of the `added` columns."""
    taken = [name for name in added if name in table.columns]
    if taken:
        raise InputError(
            f"{table.path}: the table already has the column{'s' if len(taken) > 1 else ''} "
            f"{', '.join(map(repr, taken[:3]))}, to which predictions are written; rename it first."
        )


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

    A .tsv file is tab-separated. `for_excel` begins the file with a byte-order mark, without which Excel does not read
    UTF-8, and prefixes cells that look like formulas with '
    (https://owasp.org/www-community/attacks/CSV_Injection); numbers stay unchanged.
    """
    predicted = iter(fields)
    with atomic_write(path) as file:
        if for_excel:
            file.write("\ufeff")
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        # Python before 3.13 does not quote a lone carriage return, which readers take for the end of the row.
        quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)

        def write_row(fields: list[str]) -> None:
            if for_excel:
                fields = [f"'{text}" if _is_formula(text) else text for text in fields]
            (quoting if any("\r" in text for text in fields) else writer).writerow(fields)

        write_row([*table.columns, *added])
        for start in range(0, len(rows), 4096):
            columns = [table.take(name, rows[start : start + 4096]) for name in table.columns]
            for cells, added_cells in zip(zip(*columns, strict=True), itertools.islice(predicted, 4096), strict=True):
                write_row([*cells, *added_cells])


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULAS) and not is_number(text)

"""predictions.csv: every column of the table, followed by the predictions."""

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

# Characters with which cells begin that a spreadsheet computes.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def check_columns_free(table: Table, added: Sequence[str]) -> None:
    """Raise InputError where the table already has one of the columns that predictions add."""
    taken = [name for name in added if name in table.columns]
    if taken:
        raise InputError(
            f"{table.path}: the table already has the column{'s' if len(taken) > 1 else ''} "
            f"{', '.join(map(repr, taken[:3]))}, which predictions are written to; rename it first."
        )


def write_predictions(
    path: Path,
    table: Table,
    rows: npt.NDArray[np.int64],
    added: Sequence[str],
    fields: Iterable[Sequence[str]],
    *,
    escape_formulas: bool = False,
) -> None:
    """Write every input column and those that predictions add, in file order.

    `fields` are those of the `added` columns, for each of the table's `rows` in the order given. A .tsv file has tabs
    between the columns, as it is read. `escape_formulas` puts a ' before cells that a spreadsheet would compute
    (https://owasp.org/www-community/attacks/CSV_Injection); numbers stay numbers.
    """
    predicted = iter(fields)
    with atomic_write(path) as file:
        between = "\t" if path.suffix.lower() == ".tsv" else ","
        writer = csv.writer(file, delimiter=between, lineterminator="\n")
        # Python before 3.13 leaves a lone carriage return bare, which readers take for the end of the row.
        quoting = csv.writer(file, delimiter=between, lineterminator="\n", quoting=csv.QUOTE_ALL)

        def write_row(fields: list[str]) -> None:
            if escape_formulas:
                fields = [f"'{text}" if _is_formula(text) else text for text in fields]
            (quoting if any("\r" in text for text in fields) else writer).writerow(fields)

        write_row([*table.columns, *added])
        for start in range(0, len(rows), 4096):
            columns = [table.take(name, rows[start : start + 4096]) for name in table.columns]
            for given, added_fields in zip(zip(*columns, strict=True), itertools.islice(predicted, 4096), strict=True):
                write_row([*given, *added_fields])


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULAS) and not is_number(text)

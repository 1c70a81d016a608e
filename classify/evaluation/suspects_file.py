"""suspects.csv: rows of a table whose label may be wrong, to be reviewed and applied.

Rows are numbered as messages number them: by their line in a text file, or their row in a sheet.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.errors import EXCERPT, InputError, list_some
from classify.evaluation.label_noise import Suspects
from classify.files import atomic_write
from classify.tables.profile import parse_mark
from classify.tables.read import read_table
from classify.tables.roles import find_id_column
from classify.tables.source import ReadOptions
from classify.tables.table import Table, normalize_text
from classify.tables.writers import CSVStream, unescape_formula

FILE = "suspects.csv"
# See `classify.evaluation.label_noise`.
MEASURED = "in tests with 2 to 15 % wrong labels, 57 to 100 % of such lines were wrong"
_COLUMNS = ("row", "accept", "label", "suggested_label", "prob_label", "prob_suggested", "text")


def write_suspects(
    path: Path,
    suspects: Suspects,
    table: Table,
    rows: npt.NDArray[np.int64],
    columns: tuple[str, str],
    targets: npt.NDArray[np.int64],
    probabilities: npt.NDArray[np.float64],
    *,
    for_excel: bool = False,
) -> None:
    """Write the suspects among `rows` (n,) of a table, by their place in the file, with its ID column if it has one.
    `accept` is empty: whoever reviews a line writes x there if its suggestion is right.

    `columns` name the text and the label. Labels are written as most rows of a class have them, not as the
    class is named.
    """
    id_column = find_id_column(table)
    ids = [] if id_column is None or id_column in (*_COLUMNS, *columns) else [id_column]
    labels, order = table.take(columns[1], rows), np.sort(suspects.rows)
    # Cells are read in the table's order, and written with the surest suspect first.
    cells = {name: dict(zip(order.tolist(), table.take(name, rows[order]), strict=True)) for name in (*ids, columns[0])}
    ways: dict[int, Counter[str]] = {}
    for target, label in zip(targets.tolist(), labels, strict=True):
        ways.setdefault(target, Counter())[label] += 1
    with atomic_write(path) as file:
        stream = CSVStream(file, [_COLUMNS[0], *ids, *_COLUMNS[1:]], for_excel=for_excel)
        for row, suggested in zip(suspects.rows.tolist(), suspects.suggested.tolist(), strict=True):
            which = [str(table.places[rows[row]]), *(cells[name][row] for name in ids), ""]
            numbers = (probabilities[row, targets[row]], probabilities[row, suggested])
            label = ways[suggested].most_common(1)[0][0]
            stream.write([[*which, labels[row], label, *(f"{p:.4f}" for p in numbers), cells[columns[0]][row]]])


def apply_suspects(path: Path, table: Table, columns: tuple[str, str]) -> list[str]:
    """The labels of all rows after the accepted changes of suspects.csv.

    `columns` name the text and the label. Raises InputError where no line is accepted, where the file does not
    fit the table, and for a label that no row of the table has.
    """
    suspects = read_table(str(path), "--apply", ReadOptions(header=True))
    missing = [name for name in _COLUMNS[:4] if name not in suspects.columns]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; expected {FILE} of a run with --folds.")
    accepted = [number for number, cell in enumerate(suspects.column(_COLUMNS[1])) if parse_mark(cell)]
    if not accepted and len(suspects):  # a reviewer may have deleted all lines
        raise InputError(
            f"{path}: no line is accepted. Write x into the column {_COLUMNS[1]!r} of each line whose suggested_label "
            "is right."
        )
    shown = suspects.column(_COLUMNS[-1]) if _COLUMNS[-1] in suspects.columns else [""] * len(suspects)
    texts, labels = table.column(columns[0]), table.column(columns[1])
    classes, places = set(labels), {str(place): row for row, place in enumerate(table.places)}
    cells = [suspects.column(name) for name in (_COLUMNS[0], *_COLUMNS[2:4])]
    for number in accepted:
        row, before, after = (unescape_formula(column[number]) for column in cells)
        place = places.get(row, -1)
        label, text = (labels[place], texts[place]) if place >= 0 else ("", "")
        # Spreadsheets escape and cut the text, which helps to find a table that has changed.
        ways = {normalize_text(shown[number]), normalize_text(unescape_formula(shown[number]))}
        here = f"{table.unit} {row} of {table.path}"
        table_of_faults = [
            (place < 0, f"{table.path} has no row at {table.unit} {row}."),
            (
                label not in (before, after),
                f"{here} has the label {label!r}. Expected {before!r}; the table has changed since the run.",
            ),
            (
                not any(map(normalize_text(text).startswith, ways)),
                f"{here} has another text, {text[:EXCERPT]!r}; the table has changed since the run.",
            ),
            (
                after.strip() and after not in classes,
                f"suggested_label {after!r} is not a label of {table.path}; expected one of "
                f"{list_some(sorted(classes))}. Edit the table itself for a new one.",
            ),
        ]
        if fault := next((sentence for holds, sentence in table_of_faults if holds), None):
            raise InputError(f"{suspects.describe_rows([number])}: {fault}")
        labels[place] = after if after.strip() else label
    return labels


def read_suspects(folder: Path, most: int) -> tuple[list[dict[str, str]], int]:
    """The first suspects of a run's folder, and how many there are; none without the file.

    `id` is the cell of the ID column, "" without one. People review the file in a spreadsheet, which may save it with
    semicolons: it is read as any table.
    """
    if not (folder / FILE).exists():
        return [], 0
    table = read_table(str(folder / FILE), options=ReadOptions(header=True))
    if not set(_COLUMNS) <= set(table.columns):
        return [], 0
    first = np.arange(min(most, len(table)))
    ids = next((name for name in table.columns if name not in _COLUMNS), None)
    columns = {name: table.take(name, first) for name in _COLUMNS}
    columns["id"] = table.take(ids, first) if ids else [""] * len(first)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], len(table)

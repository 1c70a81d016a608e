"""suspects.csv: rows of a table whose label may be wrong, to be reviewed and applied.

Rows are numbered as messages number them: by their line in a text file, or their row in a sheet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.errors import EXCERPT, InputError, list_some
from classify.evaluation.label_noise import Suspects
from classify.files import atomic_write
from classify.tables.options import ReadOptions
from classify.tables.profile import parse_mark
from classify.tables.read import read_table
from classify.tables.roles import find_id_column
from classify.tables.table import Table
from classify.tables.text_hashes import normalize_text
from classify.tables.writers import CSVStream, unescape_formula

FILE = "suspects.csv"
# See `classify.evaluation.label_noise`.
MEASURED = "in tests with 2 to 15 % wrong labels, 57 to 100 % of such lines were wrong"
# Characters of a cell that Excel keeps.
_LONGEST_CELL = 32_767
# Characters between cells, and around empty ones.
_BETWEEN = ',;\t" \r\n'
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

    `columns` are those of the text and the label. Labels are written as most rows of a class have them, not as the
    class is named.
    """
    id_column = find_id_column(table)
    id_column = None if id_column in (*_COLUMNS, *columns) else id_column
    order = np.sort(suspects.rows)
    ids = dict(zip(order.tolist(), table.take(id_column, rows[order]), strict=True)) if id_column else {}
    cells = table.take(columns[1], rows)
    ways: dict[int, Counter[str]] = {}
    for target, cell in zip(targets.tolist(), cells, strict=True):
        ways.setdefault(target, Counter())[cell] += 1
    texts = dict(zip(order.tolist(), table.take(columns[0], rows[order]), strict=True))
    names = [_COLUMNS[0], *([id_column] if id_column else []), *_COLUMNS[1:]]
    with atomic_write(path) as file:
        stream = CSVStream(file, names, for_excel=for_excel)
        for row, suggested in zip(suspects.rows.tolist(), suspects.suggested.tolist(), strict=True):
            label = ways[suggested].most_common(1)[0][0]
            numbers = (probabilities[row, targets[row]], probabilities[row, suggested])
            which = [table.place_of(int(rows[row])), *([ids[row]] if ids else []), ""]
            stream.write([[*which, cells[row], label, *(f"{p:.4f}" for p in numbers), texts[row]]])


def apply_suspects(path: Path, table: Table, columns: tuple[str, str]) -> list[str]:
    """The labels of all rows after the accepted changes of suspects.csv.

    `columns` are those of the text and the label. Raises InputError where no line is accepted, where the file does not
    fit the table, and for a label that no row of the table has.
    """
    if _is_header_alone(path):
        return table.column(columns[1])
    suspects = read_table(str(path), "--apply")
    missing = [name for name in _COLUMNS[:4] if name not in suspects.columns]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; expected {FILE} of a run with --folds.")
    accepted = [number for number, cell in enumerate(suspects.column(_COLUMNS[1])) if parse_mark(cell)]
    if not accepted:
        raise InputError(
            f"{path}: no line is accepted. Write x into the column {_COLUMNS[1]!r} of each line whose suggested_label "
            "is right."
        )
    shown = suspects.column(_COLUMNS[-1]) if _COLUMNS[-1] in suspects.columns else [""] * len(suspects)
    texts, labels = table.column(columns[0]), table.column(columns[1])
    classes, unit = set(labels), table.unit
    numbers = {table.place_of(row): row for row in range(len(table))}
    cells = [suspects.column(name) for name in (_COLUMNS[0], *_COLUMNS[2:4])]
    for number in accepted:
        row, before, after = (unescape_formula(column[number]) for column in cells)
        place = numbers.get(row, -1)
        fault = ""
        if place < 0:
            fault = f"{table.path} has no row at {unit} {row}."
        elif labels[place] not in (before, after):
            fault = (
                f"{unit} {row} of {table.path} has the label {labels[place]!r}. Expected {before!r}; the table has "
                "changed since the run."
            )
        elif not _is_same_text(shown[number], texts[place]):
            fault = (
                f"{unit} {row} of {table.path} has another text, {texts[place][:EXCERPT]!r}; the table has changed "
                "since the run."
            )
        elif after.strip() and after not in classes:
            fault = (
                f"suggested_label {after!r} is not a label of {table.path}; expected one of "
                f"{list_some(sorted(classes))}. Edit the table itself for a new one."
            )
        if fault:
            raise InputError(f"{suspects.describe_rows([number])}: {fault}")
        if after.strip():
            labels[place] = after
    return labels


def _is_header_alone(path: Path) -> bool:
    """Whether a file is the first line of suspects.csv, and empty cells that a spreadsheet left below it."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = list(islice((line for line in file if line.strip(_BETWEEN)), 2))
    names = {name.strip(_BETWEEN) for name in re.split("[,;\t]", lines[0])} if len(lines) == 1 else set()
    return names.issuperset(_COLUMNS[:4])


def _is_same_text(shown: str, text: str) -> bool:
    """Whether a cell is the text of a row, which spreadsheets may have escaped or cut; "" says nothing."""
    ways = {normalize_text(shown), normalize_text(unescape_formula(shown))}
    whole = normalize_text(text)
    return not shown or whole in ways or (len(shown) >= _LONGEST_CELL and whole.startswith(normalize_text(shown)))


def read_suspects(folder: Path, most: int) -> tuple[Sequence[dict[str, str]], int]:
    """The first suspects of a run's folder, and how many there are; none without the file.

    `id` is the cell of the ID column, "" without one.
    """
    if not (folder / FILE).exists():
        return [], 0
    if _is_header_alone(folder / FILE):
        return [], 0
    # Not as it was written: people review the file in a spreadsheet, which may save it with semicolons.
    table = read_table(str(folder / FILE), options=ReadOptions(header=True))
    if not set(_COLUMNS) <= set(table.columns):
        return [], 0
    first = np.arange(min(most, len(table)))
    columns = {name: table.take(name, first) for name in _COLUMNS}
    ids = [name for name in table.columns if name not in _COLUMNS]
    columns["id"] = table.take(ids[0], first) if ids else [""] * len(first)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], len(table)

"""Write a table with more columns: CSV, JSON Lines, Parquet or Excel, by the file's extension.

A format that has types keeps the types of a table that came in it: the columns are added to the original, which nobody
converted.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import openpyxl
import pyarrow
import pyarrow.parquet
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from classify.errors import InputError
from classify.tables.json_file import as_text
from classify.tables.profile import parse_number
from classify.tables.table import Table, to_arrow

# A spreadsheet computes cells that begin with one of these.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
# Limits of a sheet: https://support.microsoft.com/office/1672b34d-7043-467e-8e27-269d656771c3
_SHEET_ROWS = 1_048_576
_SHEET_COLUMNS = 16_384
_CELL_CHARACTERS = 32_767
_BLOCK = 4096


@dataclass(frozen=True)
class Added:
    """The columns to add: `names`, a row of cells for each row in `cells`, and the `types` of those that are no text.

    `replaced` are the new cells of columns that the table has, by row; all others stay what they are.
    """

    names: Sequence[str]
    cells: Iterable[Sequence[str]]
    types: Mapping[str, type[float | bool]] = field(default_factory=dict)
    replaced: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def typed(self, row: Sequence[str]) -> list[Any]:
        """The cells of a row as numbers, True and False, or text; None for an empty one that is no text."""
        read: dict[type, Callable[[str], Any]] = {float: float, bool: "true".__eq__, str: str}
        kinds = [self.types.get(name, str) for name in self.names]
        return [read[kind](cell) if cell or kind is str else None for kind, cell in zip(kinds, row, strict=True)]


Write = Callable[[Path, Table, npt.NDArray[np.int64], Added], None]


def rename_columns(table: Table, added: Sequence[str]) -> list[str]:
    """The names of a table's columns beside `added` ones: one that is taken gets `_input` behind it."""
    names: list[str] = []
    for name in table.columns:
        new = name
        while new in added or new in names or (new != name and new in table.columns):
            new += "_input"
        names.append(new)
    return names


def _read_as(value: str, old: Any) -> Any:
    """A new cell as what JSON reads, such as a number or a list, where the `old` one was no text, or as a text."""
    if old is None or isinstance(old, str):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return read if as_text(read) == value else value


def rows_of(table: Table, rows: npt.NDArray[np.int64], added: Added) -> Iterator[list[str]]:
    """Yield the cells of some rows, given in ascending order, each followed by the added ones, a block at a time."""
    cells = iter(added.cells)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        columns: dict[str, Sequence[str]] = {name: table.take(name, block) for name in table.columns}
        for name, changed in added.replaced.items():
            columns[name] = [changed.get(row, cell) for row, cell in zip(block.tolist(), columns[name], strict=True)]
        for own, more in zip(zip(*columns.values(), strict=True), itertools.islice(cells, _BLOCK), strict=True):
            yield [*own, *more]


class CSVStream:
    """Rows of CSV in UTF-8 to an open file, first the header, unless there is none.

    `for_excel`: begin with a byte-order mark, without which Excel does not read UTF-8, and put ' before cells that look
    like formulas (https://owasp.org/www-community/attacks/CSV_Injection).
    """

    def __init__(self, file: IO[str], names: Sequence[str] | None, delimiter: str = ",", *, for_excel: bool = False):
        self.for_excel = for_excel
        if for_excel:
            file.write("\ufeff")
        self._writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        # Python before 3.13 does not quote a lone carriage return, which readers take for the end of the row.
        self._quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self.write([] if names is None else [names])

    def write(self, rows: Iterable[Sequence[str]]) -> None:
        for row in rows:
            cells = [f"'{text}" if is_formula(text) else text for text in row] if self.for_excel else row
            (self._quoting if any("\r" in text for text in cells) else self._writer).writerow(cells)


def write_csv(path: Path, table: Table, rows: npt.NDArray[np.int64], added: Added, *, for_excel: bool = False) -> None:
    """Write UTF-8; with semicolons where the table came with them, as spreadsheets in most of Europe want."""
    delimiter = ";" if table.reading.get("delimiter") == ";" else ","
    with path.open("w", encoding="utf-8", newline="") as file:
        names = [*rename_columns(table, added.names), *added.names]
        stream = CSVStream(file, names if table.has_names or added.names else None, delimiter, for_excel=for_excel)
        stream.write(rows_of(table, rows, added))


def write_json_lines(path: Path, table: Table, rows: npt.NDArray[np.int64], added: Added) -> None:
    """Write an object per row: the record as it was, or the cells as texts, and the added values."""
    names = dict(zip(table.columns, rename_columns(table, added.names), strict=True))
    records = table.original() if table.original is not None and table.form.startswith("JSON") else None
    with path.open("w", encoding="utf-8") as file:
        for row, cells in zip(rows.tolist(), rows_of(table, rows, added), strict=True):
            own = dict(zip(names.values(), cells, strict=False)) if records is None else records[row]
            own = {names.get(key, key): value for key, value in own.items()}
            values = dict(zip(added.names, added.typed(cells[len(names) :]), strict=True))
            for name, changed in added.replaced.items():
                if name not in own:  # a nested one: all rows get it, or readers would find it empty in the others
                    values[name] = cells[table.columns.index(name)]
                elif row in changed:
                    values[name] = _read_as(changed[row], own[name])
            file.write(json.dumps(own | values, ensure_ascii=False) + "\n")


def write_parquet(path: Path, table: Table, rows: npt.NDArray[np.int64], added: Added) -> None:
    """Write the columns of the original file with their types, else texts, and the added ones."""
    typed = table.arrow.select(table.columns)
    if table.original is not None and table.form.startswith(("Parquet", "Arrow")):
        typed = table.original()
    if not {*added.replaced} <= {*typed.column_names}:  # of nested columns
        typed = table.arrow.select(table.columns)
    for name, changed in added.replaced.items():
        column = _replace(typed.column(name), table.column(name), changed)
        typed = typed.set_column(typed.column_names.index(name), name, column)
    if len(rows) < len(table):
        typed = typed.take(pyarrow.array(rows.tolist(), pyarrow.int64()))
    renamed = dict(zip(table.columns, rename_columns(table, added.names), strict=True))
    names = [renamed.get(name, name) for name in typed.column_names]
    columns = list(zip(*map(added.typed, added.cells), strict=True)) or [()] * len(added.names)
    kinds = {float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    types = [kinds[added.types.get(name, str)] for name in added.names]
    more = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    whole = pyarrow.table([*typed.columns, *more], names=[*names, *added.names])
    with path.open("wb") as file:
        pyarrow.parquet.write_table(whole, file, compression="zstd")


def _replace(column: pyarrow.ChunkedArray, texts: Sequence[str], changed: Mapping[int, str]) -> pyarrow.Array:
    """A column with some of its cells, as `texts`, changed: of its type if that holds all of them, else of texts."""
    cells, expected = column.to_pylist(), list(texts)
    for row, value in changed.items():
        cells[row], expected[row] = _read_as(value, cells[row]), value
    with contextlib.suppress(pyarrow.ArrowException, OverflowError):
        typed = pyarrow.array(cells, column.type)
        if list(map(as_text, typed.to_pylist())) == expected:
            return typed
    return to_arrow(expected)


def write_workbook(path: Path, table: Table, rows: npt.NDArray[np.int64], added: Added) -> None:
    """Add the columns to a copy of the workbook, or write a new one; texts are never formulas, longer cells are cut."""
    if table.original is not None and table.form.startswith("Excel") and len(rows) == len(table):
        _add_to_workbook(path, table, table.original(), added)
        return
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("predictions")
    if table.has_names or added.names:
        names = [*rename_columns(table, added.names), *added.names]
        sheet.append([_fill(openpyxl.cell.WriteOnlyCell(sheet), name) for name in names])
    width = len(table.columns)
    for cells in rows_of(table, rows, added):
        values = [*cells[:width], *added.typed(cells[width:])]
        sheet.append([_fill(openpyxl.cell.WriteOnlyCell(sheet), value) for value in values])
    book.save(path)


def _fill(cell: Any, value: Any) -> Any:
    """Write a value into a cell, of a text what a sheet can hold; it is no formula even where it begins with =."""
    cell.value = value
    if isinstance(value, str):
        cell.value = ILLEGAL_CHARACTERS_RE.sub("", value)[:_CELL_CHARACTERS]
        cell.data_type = "s"
    return cell


def _add_to_workbook(path: Path, table: Table, original: IO[bytes], added: Added) -> None:
    book = openpyxl.load_workbook(original)
    sheet = book[table.reading["sheet"]]
    first, numbers = sheet.max_column + 1, [int(number) for number in table.places]
    # The nearest row above the first one with values.
    above = range(numbers[0] - 1, 0, -1) if table.has_names else ()
    header = next((row for row in above if any(cell.value is not None for cell in sheet[row])), 1)
    for name, changed in added.replaced.items():
        column = table.columns.index(name) + 1
        if table.has_names:
            column = next((cell.column for cell in sheet[header] if cell.value == name), column)
        for row, value in changed.items():
            cell = sheet.cell(numbers[row], column)
            _fill(cell, _read_as(value, cell.value))
    if table.has_names:
        renamed = dict(zip(table.columns, rename_columns(table, added.names), strict=True))
        for cell in sheet[header]:
            if (new := renamed.get(cell.value, cell.value)) != cell.value:  # a merged cell cannot be set
                cell.value = new
        for place, name in enumerate(added.names):
            _fill(sheet.cell(header, first + place), name)
    for number, values in zip(numbers, map(added.typed, added.cells), strict=True):
        for place, value in enumerate(values):
            _fill(sheet.cell(number, first + place), value)
    book.save(path)


WRITERS: dict[str, Write] = {
    ".csv": write_csv,
    ".jsonl": write_json_lines,
    ".parquet": write_parquet,
    ".xlsx": write_workbook,
}


def find_writer(name: str) -> Write:
    """The function that writes a file of this name; CSV without an extension. Raises InputError for other ones."""
    suffix = Path(name).suffix.lower()
    if suffix not in ("", *WRITERS):
        raise InputError(f"--out {name}: expected a name that ends in {', '.join(WRITERS)}. Got {suffix} instead.")
    return WRITERS.get(suffix, write_csv)


def check_size(name: str, rows: int, columns: int) -> None:
    """Raise InputError where a workbook cannot hold that many rows or columns."""
    if Path(name).suffix.lower() == ".xlsx" and (rows >= _SHEET_ROWS or columns > _SHEET_COLUMNS):
        raise InputError(
            f"--out {name}: a sheet of Excel holds {_SHEET_ROWS - 1:,} rows and {_SHEET_COLUMNS:,} columns. Got "
            f"{rows:,} and {columns:,}; give a name that ends in .csv or .parquet."
        )


def unescape_formula(text: str) -> str:
    """A cell without the ' that `for_excel` puts before a formula."""
    return text[1:] if text[:1] == "'" and is_formula(text[1:]) else text


def is_formula(text: str) -> bool:
    """Whether a spreadsheet would compute a text; numbers stay numbers."""
    return text.startswith(_FORMULAS) and parse_number(text) is None

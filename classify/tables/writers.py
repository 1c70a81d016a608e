"""Write tables row by row: CSV, TSV, JSON Lines, Parquet or Excel by the file's extension."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from classify.errors import InputError
from classify.tables.profile import is_number
from classify.tables.table import Kind, Table

# A spreadsheet computes cells that begin with one of these.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
# Limits of a sheet: https://support.microsoft.com/office/1672b34d-7043-467e-8e27-269d656771c3
_SHEET_ROWS, _SHEET_COLUMNS, _CELL_CHARACTERS = 1_048_576, 16_384, 32_767


# Rows by which the widths of a sheet's columns are chosen, and their limits in characters.
_SAMPLED, _NARROWEST, _WIDEST = 100, 9, 60
# Characters that a sheet's name cannot have, and how many it has at most.
_NO_SHEET_NAME, _SHEET_NAME = re.compile(r"[\\*?:/\[\]]"), 31
# Spreadsheets have no earlier day; 1900-02-29, which was none, is one of theirs.
_FIRST_DAY = datetime.date(1900, 3, 1)
# A larger number is not exact in a spreadsheet, nor in most readers of JSON.
_MOST_EXACT = 1 << 53


class TableWriter(ABC):
    """Write a table of the given columns; a context manager. Cells are strings, also those of columns with a kind.

    `kinds` are the kinds of columns, by which formats with types write their cells; `sheet` is the name of a sheet.
    `for_excel`: begin with a byte-order mark, without which Excel does not read UTF-8, and prefix cells that look like
    formulas with ' (https://owasp.org/www-community/attacks/CSV_Injection); numbers stay unchanged.
    """

    suffixes: ClassVar[tuple[str, ...]]
    most_rows: ClassVar[int | None] = None  # with the header
    most_columns: ClassVar[int | None] = None

    def __init__(
        self,
        columns: Sequence[str],
        kinds: Mapping[str, Kind] | None = None,
        *,
        for_excel: bool = False,
        sheet: str = "predictions",
    ):
        self.columns, self.for_excel, self.sheet = list(columns), for_excel, sheet
        self.kinds = [(kinds or {}).get(name) for name in columns]

    @abstractmethod
    def open(self, path: Path) -> Self:
        """Create the file, with its header where the format has one."""

    @abstractmethod
    def write(self, rows: Sequence[Sequence[str]]) -> None:
        """Append rows of cells."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.discard()

    def discard(self) -> None:
        """End a file that will not be used."""
        self.close()

    @classmethod
    def check_size(cls, rows: int, columns: int, name: str) -> None:
        """Raise InputError where the format cannot hold that many rows and columns."""
        if cls.most_columns is not None and columns > cls.most_columns:
            raise InputError(
                f"--out {name}: a sheet of Excel holds {cls.most_columns:,} columns. Got {columns:,}; give a name that "
                "ends in .csv or .parquet."
            )
        if cls.most_rows is not None and rows >= cls.most_rows:
            raise InputError(
                f"--out {name}: a sheet of Excel holds {cls.most_rows - 1:,} rows. Got {rows:,}; give a name that ends "
                "in .csv or .parquet."
            )

    def convert_types(self, row: Sequence[str]) -> list[Any]:
        """Return the cells of a row as their columns' kinds; an empty one of these is None."""
        return [
            cell if kind is None else convert(cell, kind) if cell else None
            for cell, kind in zip(row, self.kinds, strict=True)
        ]


class CSVWriter(TableWriter):
    """Comma-separated UTF-8."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    delimiter = ","

    def open(self, path: Path) -> Self:
        return self.write_to(path.open("w", encoding="utf-8", newline=""))

    def write_to(self, file: IO[str]) -> Self:
        """Write to an open file, first the header."""
        self._file = file
        if self.for_excel:
            file.write("\ufeff")
        self._writer = csv.writer(file, delimiter=self.delimiter, lineterminator="\n")
        # Python before 3.13 does not quote a lone carriage return, which readers take for the end of the row.
        self._quoting = csv.writer(file, delimiter=self.delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self.write([self.columns])
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        for row in rows:
            cells = [f"'{text}" if _is_formula(text) else text for text in row] if self.for_excel else row
            (self._quoting if any("\r" in text for text in cells) else self._writer).writerow(cells)

    def close(self) -> None:
        self._file.close()


class TSVWriter(CSVWriter):
    """Tab-separated UTF-8."""

    suffixes = (".tsv", ".tab")
    delimiter = "\t"


class JSONLinesWriter(TableWriter):
    """One JSON object per row."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    def open(self, path: Path) -> Self:
        self._file = path.open("w", encoding="utf-8")
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        for row in rows:
            self._file.write(self._as_object(row) + "\n")

    def _as_object(self, row: Sequence[str]) -> str:
        """Return a row as JSON, which has no dates."""
        typed = zip(self.columns, self.kinds, row, self.convert_types(row), strict=True)
        cells = {name: cell if kind in ("date", "time") else value for name, kind, cell, value in typed}
        return json.dumps(cells, ensure_ascii=False)

    def close(self) -> None:
        self._file.close()


class JSONWriter(JSONLinesWriter):
    """A list of JSON objects, one per row, as annotation tools import it."""

    suffixes = (".json",)

    def open(self, path: Path) -> Self:
        super().open(path)
        self._before = "[\n"
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        for row in rows:
            self._file.write(self._before + self._as_object(row))
            self._before = ",\n"

    def close(self) -> None:
        self._file.write("[]\n" if self._before == "[\n" else "\n]\n")
        super().close()


class ParquetWriter(TableWriter):
    """Parquet with a row group per call of `write`."""

    suffixes = (".parquet",)

    def open(self, path: Path) -> Self:
        import pyarrow as pa
        import pyarrow.parquet as pq

        by_kind = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
        by_kind |= {"time": pa.timestamp("us")}
        types = [pa.string() if kind is None else by_kind[kind] for kind in self.kinds]
        self._schema = pa.schema(list(zip(self.columns, types, strict=True)))
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        import pyarrow as pa

        cells = zip(*map(self.convert_types, rows), strict=True) if rows else [()] * len(self.columns)
        arrays = [pa.array(column, field.type) for column, field in zip(cells, self._schema, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class ExcelWriter(TableWriter):
    """One sheet; no cell is a formula. Excel's limits hold: a longer cell is cut, control characters are left out."""

    suffixes = (".xlsx",)
    most_rows, most_columns = _SHEET_ROWS, _SHEET_COLUMNS

    def open(self, path: Path) -> Self:
        from openpyxl import Workbook

        self._path, self._rows = path, 0
        self._book = Workbook(write_only=True)
        name = _NO_SHEET_NAME.sub("_", self.sheet)[:_SHEET_NAME].strip("'")
        self._sheet = self._book.create_sheet(name or "predictions")
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        if not self._rows:
            self._write_header(rows)
        for row in rows:
            self._sheet.append(list(map(self._make_cell, self.convert_types(row))))
        self._rows += len(rows)

    def _write_header(self, rows: Sequence[Sequence[str]]) -> None:
        """Write the names in bold, in a row that stays in sight, and set widths by the first rows."""
        from openpyxl.styles import Font
        from openpyxl.utils import get_column_letter

        self._sheet.freeze_panes = "A2"
        for place, name in enumerate(self.columns):
            widest = max((len(row[place]) for row in rows[:_SAMPLED]), default=0)
            width = min(max(widest, len(name) + 3, _NARROWEST), _WIDEST)
            self._sheet.column_dimensions[get_column_letter(place + 1)].width = width
        header = list(map(self._make_cell, self.columns))
        for cell in header:
            cell.font = Font(bold=True)
        self._sheet.append(header)
        self._rows += 1

    def _make_cell(self, value: Any) -> Any:
        """Return a cell; a text is never a formula."""
        from openpyxl.cell import WriteOnlyCell
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        if not isinstance(value, str):
            return WriteOnlyCell(self._sheet, value)
        cell = WriteOnlyCell(self._sheet, ILLEGAL_CHARACTERS_RE.sub("", value)[:_CELL_CHARACTERS])
        cell.data_type = "s"  # also where it begins with =
        return cell

    def close(self) -> None:
        from openpyxl.utils import get_column_letter

        if not self._rows:
            self._write_header([])
        self._sheet.auto_filter.ref = f"A1:{get_column_letter(len(self.columns))}{self._rows}"
        self._book.save(self._path)

    def discard(self) -> None:
        """Write nothing: saving takes as long as all rows."""


WRITERS: tuple[type[TableWriter], ...] = (
    CSVWriter, TSVWriter, JSONLinesWriter, JSONWriter, ParquetWriter, ExcelWriter,
)  # fmt: skip


def find_writer(name: str, flag: str) -> type[TableWriter]:
    """Return the format of a file to write; CSV without an extension. Raises InputError for other extensions."""
    suffix = Path(name).suffix.lower()
    for writer in WRITERS:
        if suffix in writer.suffixes:
            return writer
    if suffix in ("", ".txt"):
        return CSVWriter
    endings = ", ".join(writer.suffixes[0] for writer in WRITERS)
    raise InputError(f"{flag} {name}: expected a name that ends in {endings}. Got {suffix} instead.")


def convert(cell: str, kind: Kind) -> Any:
    """Return a cell as its column's kind. Raises ValueError where it is none."""
    return _CONVERT[kind](cell)


def kinds_of(table: Table) -> dict[str, Kind]:
    """Return the kinds of a table's columns whose cells all are of that kind, so that writing them loses nothing."""
    found: dict[str, Kind] = {}
    for name, kind in table.kinds.items():
        with contextlib.suppress(ValueError):
            for cell in table.dictionary_encode(name)[0]:
                if cell:
                    convert(cell, kind)
            found[name] = kind
    return found


def _to_integer(cell: str) -> int:
    if abs(number := int(cell)) > _MOST_EXACT:
        raise ValueError(cell)
    return number


def _to_number(cell: str) -> float:
    if not math.isfinite(number := float(cell)):
        raise ValueError(cell)
    return number


def _to_date(cell: str) -> datetime.date:
    if (day := datetime.date.fromisoformat(cell)) < _FIRST_DAY:
        raise ValueError(cell)
    return day


def _to_time(cell: str) -> datetime.datetime:
    if (time := datetime.datetime.fromisoformat(cell)).date() < _FIRST_DAY:
        raise ValueError(cell)
    return time


def _to_boolean(cell: str) -> bool:
    if cell not in ("true", "false"):
        raise ValueError(cell)
    return cell == "true"


_CONVERT: dict[Kind, Callable[[str], Any]] = {
    "integer": _to_integer,
    "number": _to_number,
    "boolean": _to_boolean,
    "date": _to_date,
    "time": _to_time,
}


def unescape_formula(text: str) -> str:
    """Return a cell without the ' that `for_excel` puts before a formula."""
    return text[1:] if text[:1] == "'" and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULAS) and not is_number(text)

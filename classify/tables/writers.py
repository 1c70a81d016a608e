"""Write tables row by row: CSV, TSV, JSON Lines, Parquet or Excel by the file's extension."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from classify.errors import InputError
from classify.tables.profile import is_number

# A spreadsheet computes cells that begin with one of these.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
# Limits of a sheet: https://support.microsoft.com/office/1672b34d-7043-467e-8e27-269d656771c3
_SHEET_ROWS, _SHEET_COLUMNS, _CELL_CHARACTERS = 1_048_576, 16_384, 32_767


class TableWriter(ABC):
    """Write a table of the given columns; a context manager. Cells are strings; those in `numbers` are numbers.

    `for_excel`: begin with a byte-order mark, without which Excel does not read UTF-8, and prefix cells that look like
    formulas with ' (https://owasp.org/www-community/attacks/CSV_Injection); numbers stay unchanged.
    """

    suffixes: ClassVar[tuple[str, ...]]
    most_rows: ClassVar[int | None] = None  # with the header
    most_columns: ClassVar[int | None] = None

    def __init__(self, columns: Sequence[str], numbers: Collection[str] = (), *, for_excel: bool = False):
        self.columns, self.for_excel = list(columns), for_excel
        self.is_number = [name in numbers for name in columns]

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
        """Return the cells of a row, those of number columns as numbers; an empty one is None."""
        return [
            (float(cell) if cell else None) if number else cell
            for cell, number in zip(row, self.is_number, strict=True)
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
            json.dump(dict(zip(self.columns, self.convert_types(row), strict=True)), self._file, ensure_ascii=False)
            self._file.write("\n")

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
            self._file.write(self._before)
            json.dump(dict(zip(self.columns, self.convert_types(row), strict=True)), self._file, ensure_ascii=False)
            self._before = ",\n"

    def close(self) -> None:
        self._file.write("[]\n" if self._before == "[\n" else "\n]\n")
        super().close()


class ParquetWriter(TableWriter):
    """Parquet with a row group per call of `write`; strings and doubles."""

    suffixes = (".parquet",)

    def open(self, path: Path) -> Self:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = [pa.float64() if number else pa.string() for number in self.is_number]
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
        self._sheet = self._book.create_sheet("predictions")
        self.write([self.columns])
        return self

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        from openpyxl.cell import WriteOnlyCell
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        for row in rows:
            header = not self._rows
            self._rows += 1
            cells = []
            for value in row if header else self.convert_types(row):
                text = isinstance(value, str)
                clean = ILLEGAL_CHARACTERS_RE.sub("", value)[:_CELL_CHARACTERS] if text else value
                cells.append(WriteOnlyCell(self._sheet, clean))
                if text:
                    cells[-1].data_type = "s"  # also where it begins with =
            self._sheet.append(cells)

    def close(self) -> None:
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


def unescape_formula(text: str) -> str:
    """Return a cell without the ' that `for_excel` puts before a formula."""
    return text[1:] if text[:1] == "'" and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULAS) and not is_number(text)

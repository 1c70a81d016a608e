"""A person's table to one Arrow table of strings, with faults told by physical line.

Arrow's CSV reader does the reading: it is fast, understands quoted commas and newlines, and what it yields goes on
as `datasets.Dataset` without a copy. All columns stay text, byte for byte as in the file, so that predictions.csv
can repeat them. Arrow does not count physical lines; where a message needs one, `physical_lines` walks the file
once more with the standard library's reader.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classify.errors import InputError

if TYPE_CHECKING:
    import datasets
    import pyarrow

csv.field_size_limit((1 << 31) - 1)  # texts longer than the standard library's 128 Ki characters exist
_BLOCK = 1 << 24
_MOST_BYTES = 2**31 - 1  # of a block of Arrow's
_SHOWN = 3


@dataclass(frozen=True)
class Table:
    """A file and its rows: every column a string column, rows in the order of the file."""

    path: str
    arrow: pyarrow.Table
    delimiter: str
    sha256: str

    @property
    def columns(self) -> list[str]:
        """Column names in the order of the file."""
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> list[str]:
        """All values of a column, in the order of the file."""
        values: list[str] = self.arrow.column(name).to_pylist()
        return values

    def as_dataset(self) -> datasets.Dataset:
        """The same Arrow table as `datasets.Dataset`; nothing is copied."""
        import datasets

        return datasets.Dataset(datasets.table.InMemoryTable(self.arrow))

    def lines(self, rows: Iterable[int]) -> list[int]:
        """Physical line in the file on which each of the given rows begins."""
        wanted = list(rows)
        found = physical_lines(self.path, self.delimiter, max(wanted, default=-1) + 1)
        return [found[row] for row in wanted]

    def where(self, rows: Iterable[int]) -> str:
        """`my.csv line 7` or `my.csv lines 7, 9, 12 and 4 more`, for messages."""
        wanted = list(rows)
        shown = ", ".join(str(line) for line in self.lines(wanted[:_SHOWN]))
        more = f" and {len(wanted) - _SHOWN} more" if len(wanted) > _SHOWN else ""
        return f"{self.path} line{'s' if len(wanted) > 1 else ''} {shown}{more}"


def read_table(path: str, flag: str = "--data") -> Table:
    """Read a CSV (comma; tab for a .tsv file) with a header, UTF-8. Raises InputError with all faults of the file."""
    file = Path(path)
    if not file.exists():
        raise InputError(f"{flag} {path}: no such file.{_neighbours(file)}")
    if file.is_dir():
        raise InputError(f"{flag} {path}: expected a CSV file. Got a folder instead; name one file in it.")
    try:
        if file.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty. Expected a header line with column names, then rows.")
        digest, lines = _check_text(file)
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be read ({error.strerror}).") from None
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    _check_header(file, delimiter)
    arrow = _read_arrow(file, delimiter)
    if lines > arrow.num_rows + 1:  # texts of several lines, empty lines - or a quote that never closes
        fault = _ragged_rows(file, delimiter)
        if fault is not None:
            raise InputError(fault)
    if arrow.num_rows == 0:
        raise InputError(f"{path}: there is a header but no row below it. Expected one row per text.")
    return Table(path, arrow, delimiter, digest)


def physical_lines(path: str, delimiter: str, rows: int) -> list[int]:
    """Line (counted from 1) on which each of the first `rows` rows below the header begins."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        starts = (line for line, _ in _whole_rows(csv.reader(file, delimiter=delimiter)))
        next(starts, None)
        return list(itertools.islice(starts, rows))


def _whole_rows(reader: Any) -> Iterable[tuple[int, list[str]]]:
    """(first physical line, fields) of every row that is not an empty line."""
    before = 0
    for row in reader:
        if row:
            yield before + 1, row
        before = reader.line_num


def _check_text(file: Path) -> tuple[str, int]:
    """Check that the file is UTF-8 text; returns its SHA-256 and how many lines it has. Reads it once, in blocks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    digest = hashlib.sha256()
    lines, last = 1, b""
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            last = block[-1:]
            digest.update(block)
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                # The decoder counts from the bytes it had kept of the block before.
                kept = len(error.object) - len(block)
                line = lines + block[: max(error.start - kept, 0)].count(b"\n")
                raise InputError(
                    f"{file} line {line}: expected UTF-8 text. Got the byte 0x{error.object[error.start]:02x} instead; "
                    f"save the file as UTF-8 (in a spreadsheet: 'CSV UTF-8'), or convert it with iconv."
                ) from None
            if b"\0" in block:
                line = lines + block[: block.index(b"\0")].count(b"\n")
                raise InputError(f"{file} line {line}: expected text. Got a NUL byte instead; this is no CSV file.")
            lines += block.count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(f"{file} line {lines}: expected UTF-8 text, but the file ends inside a character.") from None
    return digest.hexdigest(), lines - (last == b"\n")


def _check_header(file: Path, delimiter: str) -> None:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        header = next((row for row in csv.reader(stream, delimiter=delimiter) if row), None)
    if header is None:
        raise InputError(f"{file}: only empty lines. Expected a header line with column names, then rows.")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{file} line 1: column {', '.join(map(repr, twice))} stands in the header more than once.")
    if len(header) == 1:
        for other, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
            if other != delimiter and other in header[0]:
                wanted = "tabs" if delimiter == "\t" else "commas"
                raise InputError(f"{file} line 1: expected {wanted} between the columns. Got {name} instead.")


def _read_arrow(file: Path, delimiter: str, block: int = 1 << 20) -> pyarrow.Table:
    """The rows as strings; a row with too few or too many fields is a fault told with its line.

    Arrow reads the file in blocks of so many bytes, and no row may be longer than one.
    """
    import pyarrow
    from pyarrow import csv as arrow_csv

    bad: list[tuple[int, int]] = []

    def note(row: Any) -> str:
        bad.append((row.expected_columns, row.actual_columns))
        return "skip"

    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note)
    read = arrow_csv.ReadOptions(block_size=block)
    try:
        with arrow_csv.open_csv(str(file), read, parse_options=parse) as head:
            names = head.schema.names
        bad.clear()
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False
        )
        table = arrow_csv.read_csv(str(file), read, parse_options=parse, convert_options=convert)
    except pyarrow.ArrowInvalid as error:
        size = min(file.stat().st_size, _MOST_BYTES)
        if "straddling" in str(error) and block < size:
            return _read_arrow(file, delimiter, size)
        ragged = _ragged_rows(file, delimiter)
        raise InputError(ragged or f"{file}: not a readable CSV file ({str(error).splitlines()[0]}).") from None
    if bad:
        raise InputError(_ragged_rows(file, delimiter) or f"{file}: {len(bad)} rows do not have {bad[0][0]} fields.")
    return table


def _ragged_rows(file: Path, delimiter: str) -> str | None:
    """The message for rows whose number of fields differs from the header's, or for a quote that never closes."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        width: int | None = None
        wrong: list[tuple[int, int]] = []
        end = 0
        try:
            for line, row in _whole_rows(reader):
                width = len(row) if width is None else width
                if len(row) != width:
                    wrong.append((line, len(row)))
                end = reader.line_num
        except csv.Error:
            return (
                f'{file} line {end + 1}: a quote (") opens a field in this row and never closes as it should; '
                'double a quote that belongs to the text ("").'
            )
    if not wrong:
        return None
    shown = ", ".join(f"line {line} ({found})" for line, found in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return (
        f"{file}: the header has {width} columns, but these rows have another number of fields: {shown}{more}. "
        'Put a field that contains a comma between quotes (").'
    )


def _neighbours(file: Path) -> str:
    """A hint that names tables lying where the missing one was looked for."""
    folder = file.parent
    if not folder.is_dir():
        return f" The folder {folder} does not exist either."
    import difflib

    names = [entry.name for entry in sorted(folder.iterdir()) if entry.suffix.lower() in (".csv", ".tsv")]
    near = difflib.get_close_matches(file.name, names, n=1) or names[:3]
    return f" In {folder} there is: {', '.join(near)}." if near else " Check the path."

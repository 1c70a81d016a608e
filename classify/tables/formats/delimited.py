"""Read CSV and other text with a delimiter between columns.

Arrow reads the rows: it is fast, understands quoted delimiters and newlines, and all columns stay text, byte for byte
as in the file. It accepts quotes that do not close, and drops those inside a field; where there are such, the standard
library's reader finds the dialect that fits, and reads the rows for Arrow.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from classify.errors import SHOWN, InputError, list_some
from classify.tables.cache import LARGE, map_from_cache
from classify.tables.decide import Answer, Doubt, DoubtError
from classify.tables.dialect import (
    SEPARATOR,
    Dialect,
    choose_dialect,
    choose_header,
    find_lines_above,
    is_table,
    list_quotes,
)
from classify.tables.encoding import Encoding, detect_encoding
from classify.tables.formats.base import Confidence, Format, ReadOptions, deduplicate_names, default_names
from classify.tables.names import TEXT_NAMES
from classify.tables.source import Source
from classify.tables.table import Table

if TYPE_CHECKING:
    import pyarrow

_SAMPLE, _SAMPLE_ROWS, _PIECE = 1 << 18, 2000, 1 << 24
_MOST_BYTES = 2**31 - 1  # of a block of Arrow's
# Line ends in a field from which it is noted.
_MANY_LINES = 20
# Files of these names, and standard input, hold one text per line unless they look like a table.
_PLAIN = (".txt", "")
_UNNAMED = "unnamed_"


class Delimited(Format):
    """Any text file that no other format reads."""

    suffixes = (".csv", ".tsv", ".txt", ".tab", ".psv")
    takes = frozenset({"encoding", "delimiter", "quote", "header", "skip_lines"})

    def sniff(self, source: Source) -> Confidence:
        """Accept any file, with the lowest confidence."""
        return Confidence.FALLBACK if source.is_file else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Choose encoding, dialect and header, and read all rows."""
        encoding = detect_encoding(source, options.encoding, options.legacy)
        text = _Text(source, encoding, options.skip_lines or 0)
        sample = text.sample(_SAMPLE)
        if not sample.strip():
            raise InputError(f"{source.path}: only empty lines. Expected a header line with column names, then rows.")
        dialect = None if options.delimiter == "\n" else self._choose_dialect(text, sample, options)
        if dialect is None:
            return _read_lines(text, options)
        if options.skip_lines is None:
            above = 1 if SEPARATOR.match(sample) else find_lines_above(sample, dialect)
            text = replace(text, skipped=above)
        text = replace(text, names_rows=_names_rows(text, dialect))
        return _read_rows(text, dialect, sample, options)

    def _choose_dialect(self, text: _Text, sample: str, options: ReadOptions) -> Dialect | None:
        """Return the dialect, as flags say where they do; None for one text per line. Raises DoubtError."""
        path = text.source.path
        if options.delimiter is not None:
            if options.quote is not None:
                return Dialect(options.delimiter, options.quote or None)
            return list_quotes(options.delimiter, sample)[0]
        answer = choose_dialect(sample, text.source.suffix)
        is_plain = text.source.suffix in _PLAIN
        if isinstance(answer, Doubt):
            if is_plain:
                return None
            raise DoubtError(path, [answer])
        if is_plain and not is_table(sample, answer.value, options.columns):
            return None
        if options.quote is not None:
            return Dialect(answer.value.delimiter, options.quote or None)
        return answer.value


def _names_rows(text: _Text, dialect: Dialect) -> bool:
    """Return whether rows are numbered in a column that the header leaves out. Raises InputError for no row."""
    rows = [row for _, row in itertools.islice(text.rows(dialect, strict=False), _SAMPLE_ROWS)]
    if not rows:
        raise InputError(f"{text.source.path}: no row in it. Expected a header line with column names, then rows.")
    numbered = all(row[0] == str(number) for number, row in enumerate(rows[1:], start=1))
    return len(rows) > 2 and numbered and {len(row) for row in rows[1:]} == {len(rows[0]) + 1}


def read_written(path: str) -> Table:
    """Read a file as `CSVWriter` wrote it, without guesses. Raises OSError and InputError."""
    text = _Text(Source(path, "--model"), Encoding("utf-8-sig"))
    return _read_rows(text, Dialect(), text.sample(_SAMPLE), ReadOptions(header=True))


@dataclass(frozen=True)
class _Text:
    """The text of a file below its first `skipped` lines."""

    source: Source
    encoding: Encoding
    skipped: int = 0
    names_rows: bool = False  # the first row has no name for the first column, as R writes row names

    def sample(self, size: int) -> str:
        """Return the first characters."""
        with self.encoding.text(self.source) as stream:
            self._skip(stream)
            return stream.read(size)

    def _skip(self, stream: io.TextIOBase) -> None:
        for _ in range(self.skipped):
            stream.readline()

    def rows(self, dialect: Dialect, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yield (first line in the file, fields) of each row. Raises csv.Error where it is `strict`."""
        with self.encoding.text(self.source) as stream:
            self._skip(stream)
            for place, (line, row) in enumerate(dialect.rows(stream, strict=strict)):
                yield self.skipped + line, ["", *row] if self.names_rows and place == 0 else row

    def pieces(self) -> Iterator[bytes]:
        """Yield UTF-8 in pieces that end with a line, without the file's mark and empty lines at the beginning."""
        left, begun = b"", False
        for block in self._blocks():
            left = left + block
            if not begun:
                left = left.lstrip(b"\r\n")
                begun = bool(left)
            end = max(left.rfind(b"\n"), left.rfind(b"\r", 0, -1)) + 1
            if end:
                yield left[:end]
                left = left[end:]
        yield left + b"\n" if left else left  # Arrow refuses a header alone without an end

    def _blocks(self) -> Iterator[bytes]:
        if self.encoding.is_utf8 and not self.skipped:
            for number, block in enumerate(self.source.blocks()):
                yield block.removeprefix(b"\xef\xbb\xbf") if number == 0 else block
            return
        with self.encoding.text(self.source) as stream:
            self._skip(stream)
            while text := stream.read(_PIECE):
                yield text.encode()

    def rewritten(self, dialect: Dialect, width: int) -> Iterator[bytes]:
        """Yield the rows of a width with the usual delimiter and quotes."""
        rows = (row for _, row in self.rows(dialect, strict=False) if len(row) == width)
        while batch := list(itertools.islice(rows, _SAMPLE_ROWS)):
            written = io.StringIO(newline="")
            csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(batch)
            yield written.getvalue().encode()


class _Watch:
    """See quotes that are neither around a field nor doubled in pieces of text, as they pass."""

    def __init__(self, dialect: Dialect):
        self._quotes, self._is_odd = 0, False
        self._quote = b"" if dialect.quote is None else dialect.quote.encode()
        self._delimiter = dialect.delimiter.encode()

    def look_at(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces."""
        for piece in pieces:
            if self._quote and self._quote in piece and not self._is_odd:
                self._look_at_quotes(piece)
            yield piece

    def check(self, batches: pyarrow.RecordBatchReader) -> pyarrow.RecordBatchReader:
        """Return the batches of the pieces; raise ArrowInvalid behind the last one where a quote does not fit."""
        import pyarrow

        def checked() -> Iterator[pyarrow.RecordBatch]:
            yield from batches
            if not self.is_sound:
                raise pyarrow.ArrowInvalid("quotes inside fields")

        return pyarrow.RecordBatchReader.from_batches(batches.schema, checked())

    def _look_at_quotes(self, piece: bytes) -> None:
        quote, ends = self._quote, (self._delimiter, b"\n", b"\r")
        lines = b"\n%b\n" % piece
        single = lines.replace(quote * 2, b"") if quote * 2 in lines else lines
        self._quotes += single.count(quote)
        at_ends = sum(single.count(end + quote) + single.count(quote + end) for end in ends)
        # An empty field of quotes with text behind it.
        empty = rb"[%b\r\n]%b%b[^%b%b\r\n]" % (re.escape(ends[0]), quote, quote, quote, re.escape(ends[0]))
        self._is_odd = at_ends != single.count(quote) or (single is not lines and bool(re.search(empty, lines)))

    @property
    def is_sound(self) -> bool:
        """Return whether each quote opens or closes a field."""
        return not self._is_odd and self._quotes % 2 == 0


def _read_rows(text: _Text, dialect: Dialect, sample: str, options: ReadOptions) -> Table:
    """Read all rows, in the dialect of the same delimiter in which they are of one width. Raises InputError."""
    header, names, remark = _choose_names(text, dialect, options)
    arrow, bad = _parse(text, dialect, names, header), list[int]()
    if arrow is None:
        dialect, fault = _find_sound(text, dialect, sample, options)
        header, names, remark = _choose_names(text, dialect, options)
        if fault is not None:
            bad = [line for line, row in text.rows(dialect, strict=False) if len(row) != len(names)]
        arrow = _parse(text, Dialect(), names, header, rewritten=dialect)
        assert arrow is not None, "rows that this program has written are sound"
    if not len(arrow) and not header:
        raise InputError(f"{text.source.path}: no row in it. Expected one row per text.")
    unnamed = [name for name in names if name.startswith(_UNNAMED)]
    arrow = arrow.drop_columns([name for name in unnamed if not any(arrow.column(name).unique().to_pylist())])
    named = [name for name in arrow.column_names if name not in unnamed]
    if len(named) < 2 < arrow.num_columns:
        raise InputError(
            f"{text.source.path}: the first row names {len(named)} of {arrow.num_columns} columns; give the delimiter "
            "with --delimiter, or --no-header if the first row is data. Where rows are in quotes as a whole, save the "
            "table again."
        )
    of = f" of {header} rows" if header > 1 else ""
    form = f"{text.encoding.description} {'with a' if header else 'without'} header{of}, {dialect.description}{remark}"
    if text.skipped:
        form += f"; line{'s 1 to' if text.skipped > 1 else ''} {text.skipped} left out (--skip-lines)"
    skipped = set(bad)

    @functools.cache
    def starts() -> npt.NDArray[np.int64]:
        """Return the line of each row, from one pass over the file for all messages."""
        lines = (line for line, _ in text.rows(dialect, strict=False) if line not in skipped)
        return np.fromiter(lines, dtype=np.int64)[header:]

    def places(rows: Sequence[int]) -> list[int]:
        numbers: list[int] = starts()[np.asarray(rows, dtype=np.int64)].tolist()
        return numbers

    if bad:
        shown = list_some(bad)
        form += f"; {len(bad)} rows with a different number of fields skipped (lines {shown})"
    flag, source = "--on-bad-rows" if bad else _join_flags(text.encoding.flag, "--delimiter", "--header"), text.source
    reading: dict[str, Any] = {
        "encoding": text.encoding.name, "delimiter": dialect.delimiter, "quote": dialect.quote or "",
        "header": header > 0, "skip_lines": text.skipped,
    }  # fmt: skip
    table = Table(
        source.path,
        source.sha256,
        arrow,
        form,
        places,
        flag=flag,
        has_names=header > 0,
        skipped=len(bad),
        reading=reading,
    )
    table = _drop_empty_rows(table) if len(names) > 1 else table
    return _note_long_fields(table)


def _drop_empty_rows(table: Table) -> Table:
    """Leave out the rows in which every cell is empty, as spreadsheets write them."""
    empty = np.ones(len(table), dtype=bool)
    for name in table.columns:
        if empty.any():
            empty &= table.lengths(name) == 0
    if not empty.any():
        return table
    kept = np.flatnonzero(~empty)
    import pyarrow

    places = lambda rows: table.places(kept[np.asarray(rows, dtype=np.int64)].tolist())  # noqa: E731
    return replace(table, arrow=table.arrow.filter(pyarrow.array(~empty)), places=places)


def _note_long_fields(table: Table) -> Table:
    """Note the field with the most lines, if it holds most of those in its column: its quotes may be text."""
    import pyarrow.compute as pc

    for name in table.columns:
        ends = pc.count_substring(table.arrow.column(name), "\n")
        most, every = pc.max(ends).as_py() or 0, pc.sum(ends).as_py() or 0
        if most >= _MANY_LINES and 2 * most > every:
            line = table.places([pc.index(ends, most).as_py()])[0]
            return table.add_note(
                f"line {line}: a field of {most + 1} lines; if its quotes are text, give --quote none"
            )
    return table


def _find_sound(text: _Text, dialect: Dialect, sample: str, options: ReadOptions) -> tuple[Dialect, str | None]:
    """Return the dialect of the same delimiter in which all rows are of one width, last that without quotes.

    Raises InputError where there is none, unless bad rows are skipped; then the fault is returned, too.
    """
    others = [dialect]
    if options.quote is None:
        others = [*list_quotes(dialect.delimiter, sample), Dialect(dialect.delimiter, quote=None)]
    faults = dict[Dialect, str]()
    for other in others:
        fault, closes = _find_fault(text, other)
        if fault is None:
            return other, None
        if closes or not options.skips_bad_rows:
            faults.setdefault(other, fault)
    if not options.skips_bad_rows:
        raise InputError(next(iter(faults.values())))
    return next(iter(faults.items()))


def _choose_names(text: _Text, dialect: Dialect, options: ReadOptions) -> tuple[int, list[str], str]:
    """Return the rows of the header, the names of columns, and a remark on repeated ones. Raises DoubtError."""
    rows = [row for _, row in itertools.islice(text.rows(dialect, strict=False), _SAMPLE_ROWS)]
    header, why = int(options.header or 0), ""
    if options.header is None:
        answer = choose_header(rows, options.columns)
        if not isinstance(answer, Answer):
            raise DoubtError(text.source.path, [answer])
        header = answer.value
        why = "" if answer.clear else f" ({'; '.join(filter(None, [answer.why, '--header, --no-header']))})"
    if not header:
        return 0, default_names(len(rows[0]), options), why
    named = [name if name.strip() else f"{_UNNAMED}{number}" for number, name in enumerate(rows[0], start=1)]
    names, repeated = deduplicate_names(named)
    return header, names, why + repeated


def _find_fault(text: _Text, dialect: Dialect) -> tuple[str | None, bool]:
    """Return the fault of a file's rows in a dialect, those of another width, and whether its quotes close."""
    width: int | None = None
    wrong: list[tuple[int, int]] = []
    last = below = 0
    path = text.source.path
    try:
        for line, row in text.rows(dialect):
            width = len(row) if width is None else width
            if len(row) != width:
                wrong.append((line, len(row)))
            last, below = line, below + 1
    except csv.Error:
        return (
            f'{path} line {last + 1}: a quote (") in or below this row never closes; write each quote inside a text '
            'twice (""), or give --quote none if quotes are text.'
        ), False
    if not wrong:
        return None, True
    shown = [f"line {line} ({count} field{'s' * (count != 1)})" for line, count in wrong[:SHOWN]]
    found = f"the first row has {width} columns, but some rows have a different number of fields: "
    way = "Quote fields that contain the delimiter, or skip these rows with --on-bad-rows skip."
    if len(wrong) == below - 1 > 1 and len({count for _, count in wrong}) == 1:
        way = "Name all columns in the first line, or quote fields that contain the delimiter."
    elif len(wrong) > below / 3:
        way = "If the last fields are several labels, write these into one, separated by |."
    return f"{path}: {found}{list_some(shown, len(wrong))}. {way}", True


def _join_flags(*flags: str) -> str:
    return ", ".join(filter(None, flags))


def _read_lines(text: _Text, options: ReadOptions) -> Table:
    """Read one text per line. Raises InputError where there is none."""
    import pyarrow

    with text.encoding.text(text.source) as stream:
        text._skip(stream)
        lines = [line.rstrip("\r\n").removeprefix("\ufeff") for line in stream]
    named = lines[0] in options.columns or lines[0].strip().lower() in TEXT_NAMES
    header = options.header if options.header is not None else named
    name = lines[0] if header else options.columns[0] if len(options.columns) == 1 else "text"
    arrow = pyarrow.table({name: pyarrow.array(lines[header:], pyarrow.string())})
    form = f"{text.encoding.description}, one text per line, {'with a' if header else 'without'} header"
    first, source = text.skipped + 1 + header, text.source
    places = lambda rows: [first + row for row in rows]  # noqa: E731
    flag = _join_flags(text.encoding.flag, "--delimiter", "--header")
    reading = {"encoding": text.encoding.name, "delimiter": "\n", "header": header}
    return Table(source.path, source.sha256, arrow, form, places, flag=flag, has_names=header, reading=reading)


def _parse(
    text: _Text, dialect: Dialect, names: list[str], header: int, rewritten: Dialect | None = None, block: int = 1 << 20
) -> pyarrow.Table | None:
    """Parse all columns as strings, those of a large file into the cache; None where a row or a quote does not fit.

    A `rewritten` text, of another dialect, is sound. Arrow reads in blocks of `block` bytes, and no row may be longer.
    """
    import pyarrow
    from pyarrow import csv as arrow_csv

    parse = arrow_csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote or False,
        double_quote=dialect.escape is None,
        escape_char=dialect.escape or False,
        newlines_in_values=dialect.quote is not None,
    )
    read = arrow_csv.ReadOptions(block_size=block, column_names=names, skip_rows_after_names=header)
    convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    options = {"read_options": read, "parse_options": parse, "convert_options": convert}

    def open_pieces() -> tuple[_Watch, Iterator[bytes]]:
        watch = _Watch(dialect if rewritten is None else Dialect(quote=None))
        pieces = text.pieces() if rewritten is None else text.rewritten(rewritten, len(names))
        return watch, watch.look_at(pieces)

    def batches() -> pyarrow.RecordBatchReader:
        watched, pieces = open_pieces()
        return watched.check(arrow_csv.open_csv(io.BufferedReader(_Pieces(pieces)), **options))

    watched, pieces = open_pieces()
    # Arrow's own memory: its threads may free an object of Python's when the interpreter is gone, and abort.
    begin = pyarrow.BufferOutputStream()
    for piece in pieces:
        begin.write(piece)
        if begin.tell() > LARGE:
            break
    size = begin.tell()
    try:
        if size <= LARGE:
            table = arrow_csv.read_csv(pyarrow.BufferReader(begin.getvalue()), **options)
            return table if watched.is_sound else None
        del begin
        settings = (text.encoding, text.skipped, dialect, names, header, rewritten)
        return map_from_cache(f"{text.source.sha256}\0{settings}", batches)
    except pyarrow.ArrowInvalid as error:
        if "straddling" in str(error) and block < min(max(size, block + 1), _MOST_BYTES):
            return _parse(text, dialect, names, header, rewritten, min(64 * block, _MOST_BYTES))
        return None


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(view), len(self._left))
        view[:count], self._left = self._left[:count], self._left[count:]
        return count

"""Read CSV and other text with a delimiter between columns.

Arrow reads the rows: it is fast, understands quoted delimiters and newlines, and all columns stay text, byte for byte
as in the file. It does not count physical lines and accepts quotes that do not close. Where a message needs a line, or
there are fewer rows than lines, the standard library's reader reads the file again.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from classify.errors import InputError, list_some
from classify.tables.dialect import Dialect, candidates, find_table, has_header, is_table, parse_rows, skip_lines
from classify.tables.encoding import Encoding, detect_encoding
from classify.tables.formats.base import Confidence, Format, ReadOptions, deduplicate_names, default_names
from classify.tables.formats.large import LARGE, map_from_cache
from classify.tables.formats.resaved import original_text
from classify.tables.names import TEXT_NAMES, USUAL_NAMES
from classify.tables.source import Source
from classify.tables.table import Table

if TYPE_CHECKING:
    import pyarrow

_SAMPLE = 1 << 18
_SAMPLE_ROWS = 2000
_PIECE = 1 << 24
_MOST_BYTES = 2**31 - 1  # of a block of Arrow's
_SHOWN = 5
# Fields of more lines are noted; the share of lines that must end in a class to be rows.
_LONG_FIELD, _MOST = 10, 0.9
_QUOTE = "Quote fields that contain the delimiter, or skip these rows with --on-bad-rows skip."
# Files of these names, and standard input, hold one text per line unless they look like a table.
_PLAIN = (".txt", "")
_UNNAMED = "unnamed_"
_ROW_NAMES = "; if R wrote the file, the first field is a row's name, which write.table(row.names = FALSE) leaves out"


class Delimited(Format):
    """Any text file that no other format reads."""

    suffixes = (".csv", ".tsv", ".txt", ".tab", ".psv")
    takes = frozenset({"encoding", "no_header"})

    def sniff(self, source: Source) -> Confidence:
        """Accept any file, with the lowest confidence."""
        return Confidence.FALLBACK if source.is_file else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        encoding = detect_encoding(source, options.encoding)
        with encoding.text(source) as stream:
            sample = stream.read(_SAMPLE)
        if not sample.strip():
            raise InputError(f"{source.path}: only empty lines. Expected a header line with column names, then rows.")
        if source.suffix in _PLAIN and not is_table(sample, options.columns):
            return _read_lines(source, encoding, options)
        dialect, above = find_table(sample, source.suffix, options.columns)
        text = _Text(source, encoding, above)
        sample = skip_lines(sample, above)
        names = {name.strip().lower() for name in _first_row(sample, dialect)}
        if dialect.is_doubtful and not (above or options.no_header or options.columns or names & USUAL_NAMES):
            if source.suffix in _PLAIN:
                return _read_lines(source, encoding, options)
            raise InputError(
                f"{source.path}: expected commas, tabs, semicolons or pipes between columns. Got {dialect.delimiter!r} "
                "in each line, which may be text; save the table as CSV, or name its columns in a first line, e.g. "
                f"label{dialect.delimiter}text."
            )
        if _is_wrapped(sample, dialect):
            wrapping = dialect if dialect.quote is not None else Dialect(",")
            text, dialect = text.unwrap(wrapping, Dialect(",")), Dialect(",")
        with contextlib.suppress(InputError, csv.Error):
            table, lines = _read(text, dialect, options)
            if lines == text.lines and not text.has_quotes_inside(dialect):
                first = text.above + text.empty_lines + 1 + table.has_names
                return replace(table, places=lambda rows: [first + row for row in rows])
        # Rows of several lines, empty lines, quotes that are text, or rows of another width.
        try:
            dialect, survey = _check_dialect(text, dialect, sample)
            return replace(_read(text, dialect, options)[0], notes=_long_fields(survey))
        except InputError:
            if not options.skips_bad_rows:
                raise
            return _read_good(text, dialect, options)


def read_written(path: str) -> Table:
    """Read a file as `CSVWriter` wrote it, without guesses. Raises OSError and InputError."""
    text = _Text(Source(path, "--model"), Encoding("utf-8-sig"))
    return _read(text, Dialect(","), ReadOptions(), has_names=True)[0]


class _Text:
    """The table of a file as UTF-8 bytes for Arrow, and its number of lines.

    The table begins below the first `above` lines. `rewritten` replaces the file's characters where they were repaired.
    """

    def __init__(self, source: Source, encoding: Encoding, above: int = 0, rewritten: str | None = None):
        self.source, self.encoding, self.above, self._rewritten = source, encoding, above, rewritten
        self.empty_lines = 0  # leading ones, counted when the file is read

    @property
    def key(self) -> str:
        """Return a cache key of the bytes."""
        rewritten = self._rewritten and hashlib.sha256(self._rewritten.encode()).hexdigest()
        return f"{self.source.sha256}\0{self.encoding}\0{self.above}\0{rewritten}"

    @cached_property
    def whole(self) -> bytes | None:
        """Return all bytes; None where they are too many for memory."""
        pieces, size = [], 0
        for piece in self._read():
            pieces.append(piece)
            size += len(piece)
            if size > LARGE:
                return None
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Return the bytes in pieces that end with a line, without the file's mark and leading empty lines."""
        return self._read() if self.whole is None else iter([self.whole])

    @cached_property
    def lines(self) -> int:
        feeds = returns = 0
        last = b""
        for piece in self.pieces():
            feeds, returns, last = feeds + piece.count(b"\n"), returns + piece.count(b"\r"), piece[-1:]
        return max(feeds, returns) + (last not in (b"\n", b"\r"))

    def _read(self) -> Iterator[bytes]:
        left, begun = b"", False
        for block in self._blocks():
            left += block
            if not begun:
                below = skip_lines(left.removeprefix(b"\xef\xbb\xbf"), self.above)
                left = below.lstrip(b"\r\n")
                empty = below[: len(below) - len(left)]
                self.empty_lines = max(empty.count(b"\n"), empty.count(b"\r"))
                begun = bool(left)
            end = max(left.rfind(b"\n"), left.rfind(b"\r", 0, -1)) + 1
            if end:
                yield left[:end]
                left = left[end:]
        yield left

    def _blocks(self) -> Iterator[bytes]:
        if self._rewritten is not None:
            yield self._rewritten.encode()
        elif self.encoding.name in ("utf-8", "utf-8-sig") and not self.encoding.damaged:
            with self.source.open() as stream:
                yield from iter(lambda: stream.read(_PIECE), b"")
        else:
            with self.encoding.text(self.source) as text:
                yield from (block.encode() for block in iter(lambda: text.read(_PIECE), ""))

    def rows(self, dialect: Dialect, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yield (first line in the file, fields) of each row. Raises csv.Error where it is `strict`."""
        rewritten = self._rewritten
        with self.encoding.text(self.source) if rewritten is None else io.StringIO(rewritten, newline="") as stream:
            for _ in range(self.above):
                stream.readline()
            for line, row in parse_rows(stream, dialect, strict=strict):
                yield self.above + line, row

    def unwrap(self, dialect: Dialect, before: Dialect) -> _Text:
        """Return the text as it was `before` a spreadsheet saved its lines as cells of this dialect."""
        joined = [(dialect.delimiter.join(row), len(row)) for _, row in self.rows(dialect)]
        cells = [cell.rstrip(dialect.delimiter) if width > 1 else cell for cell, width in joined]
        return _Text(self.source, self.encoding, rewritten=original_text(cells, before) + "\n")

    def has_quotes_inside(self, dialect: Dialect) -> bool:
        """Return whether a quote that is not doubled occurs inside a field.

        It may be text in a quoted field; Arrow would drop it.
        """
        if dialect.quote is None:
            return False
        quote, ends = dialect.quote.encode(), (dialect.delimiter.encode(), b"\n", b"\r")
        # An empty field of quotes with text after it.
        empty = rb"[%b\r\n]%b%b[^%b%b\r\n]" % (re.escape(ends[0]), quote, quote, quote, re.escape(ends[0]))
        for piece in self.pieces():
            if quote not in piece:
                continue
            lines = b"\n%b\n" % piece
            single = lines.replace(quote * 2, b"") if quote * 2 in lines else lines
            at_ends = sum(single.count(end + quote) + single.count(quote + end) for end in ends)
            if at_ends != single.count(quote) or (single is not lines and re.search(empty, lines)):
                return True
        return False


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


def _is_wrapped(sample: str, dialect: Dialect) -> bool:
    """Return whether each line of a CSV became a cell: the header is one field with commas, then empty ones.

    A spreadsheet of one column, saved with commas, has each line in quotes.
    """
    if dialect == Dialect(",", quote=None):
        rows = [row for _, row in parse_rows(io.StringIO(sample, newline=""), Dialect(","), strict=False)]
        return len(rows) > 1 and all(len(row) == 1 and "," in row[0] for row in rows[:-1])
    first = _first_row(sample, dialect)
    return dialect.delimiter != "," and len(first) > 1 and first[0].count(",") > 0 and not any(first[1:])


def _first_row(sample: str, dialect: Dialect) -> list[str]:
    return next(parse_rows(io.StringIO(sample, newline=""), dialect, strict=False), (1, [""]))[1]


@dataclass(frozen=True)
class _Survey:
    """The rows of a file in a dialect: their fault, and the longest field as (line, number of lines)."""

    fault: str | None
    longest: tuple[int, int] = (0, 1)


def _check_dialect(text: _Text, dialect: Dialect, sample: str) -> tuple[Dialect, _Survey]:
    """Return the dialect in which all rows of the file are equally wide, the sample's if it is. Raises InputError.

    Bare quotes can swallow whole rows and leave equally wide ones behind. So where rows span lines, the dialect in
    which quotes are text is taken if all lines are equally wide in it: those of a row that really spans several are
    not. Many texts hold commas, so there the lines inside must end in other rows' classes, too. A name in quotes in
    the header shows that quotes are not text; so does a single column whose quotes all open and close a field, since
    its lines are always equally wide.
    """
    survey = _survey(text, dialect)
    bare = Dialect(dialect.delimiter, quote=None)
    quoted = any(len(name) > 1 and name[0] == name[-1] == '"' for name in _first_row(sample, bare))
    if dialect.quote is not None and not quoted and (survey.fault is not None or survey.longest[1] > 1):
        lines = _survey(text, bare)
        several = len(_first_row(sample, dialect)) > 1
        doubtful = survey.fault is not None or (several and dialect.delimiter != ",")
        if lines == _Survey(None) and (doubtful or _swallows_rows(text, dialect, bare)):
            return bare, lines
    if survey.fault is None:
        return dialect, survey
    for candidate in candidates(dialect.delimiter, sample):
        if candidate != dialect and (other_survey := _survey(text, candidate)).fault is None:
            return candidate, other_survey
    raise InputError(survey.fault)


def _survey(text: _Text, dialect: Dialect) -> _Survey:
    """Read all rows of a file in a dialect."""
    width: int | None = None
    wrong: list[tuple[int, int]] = []
    last, below, longest, source = 0, -1, (0, 1), text.source
    try:
        for line, row in text.rows(dialect):
            width = len(row) if width is None else width
            if len(row) != width:
                wrong.append((line, len(row)))
            longest = max(longest, (line, _count_lines(row)), key=lambda place: place[1])
            last = line
            below += 1
    except csv.Error:
        return _Survey(
            f'{source.path} line {last + 1}: a quote (") in or below this row never closes; write each quote inside '
            'a text twice ("").',
            longest,
        )
    if not wrong:
        return _Survey(None, longest)
    line, count = wrong[0]
    if width == 1:
        fault = f"{source.path} line {line}: expected one column, as in line 1. Got {count} instead. {_QUOTE}"
    elif len(wrong) == below > _SHOWN and len({count for _, count in wrong}) == 1:
        fault = (
            f"{source.path}: the header has {width} columns, and each row below it has {count} fields; "
            "name all columns in the first line, or quote fields that contain the delimiter"
            f"{_ROW_NAMES if count - 1 == width else ''}."
        )
    else:
        shown = [f"line {line} ({count} field{'s' * (count != 1)})" for line, count in wrong[:_SHOWN]]
        fault = (
            f"{source.path}: the header has {width} columns, but some rows have a different number of fields: "
            f"{list_some(shown, len(wrong))}. {_QUOTE}"
        )
    return _Survey(fault, longest)


def _count_lines(row: Sequence[str]) -> int:
    """Return the number of lines of the field of a row that spans most."""
    return 1 + max(max(field.count("\n"), field.count("\r")) for field in row)


def _swallows_rows(text: _Text, dialect: Dialect, bare: Dialect) -> bool:
    """Return whether rows over several lines swallowed other rows: a column of these lines holds the same classes."""
    inside: set[int] = set()
    values: list[Counter[str]] = []
    for line, row in text.rows(dialect):
        span = _count_lines(row)
        if span > 1:
            inside.update(range(line, line + span))
        else:
            values = values or [Counter() for _ in row]
            for counts, value in zip(values, row, strict=False):
                counts[value] += 1
    lines = [row for line, row in text.rows(bare) if line in inside]
    return any(
        len(counts) <= counts.total() / 2 and sum(row[place] in counts for row in lines) > _MOST * len(lines)
        for place, counts in enumerate(values)
    )


def _read(text: _Text, dialect: Dialect, options: ReadOptions, *, has_names: bool = False) -> tuple[Table, int]:
    """Read all rows with Arrow; also return their number of lines if none spans several.

    The header is detected, unless `has_names` says that there is one.
    """
    source, encoding = text.source, text.encoding
    first = [row for _, row in itertools.islice(text.rows(dialect), _SAMPLE_ROWS)]
    header, names, again = _header(first, options, has_names=has_names)
    if header and len(first) == 1:
        raise InputError(f"{source.path}: there is a header but no row below it. Expected one row per text.")
    arrow = _parse(text, dialect, names, header)
    unnamed = [name for name in names if name.startswith(_UNNAMED)]
    arrow = arrow.drop_columns([name for name in unnamed if not any(arrow.column(name).unique().to_pylist())])
    form = _describe_form(text, dialect, header) + again

    @functools.cache
    def starts() -> npt.NDArray[np.int64]:
        """Return the line of each row, from one pass over the file for all messages."""
        return np.fromiter((line for line, _ in text.rows(dialect)), dtype=np.int64)

    def places(rows: Sequence[int]) -> list[int]:
        numbers: list[int] = starts()[np.asarray(rows, dtype=np.int64) + header].tolist()
        return numbers

    table = Table(source.path, source.sha256, arrow, form, places, flag=encoding.flag, has_names=header)
    return table, len(arrow) + header


def _read_good(text: _Text, dialect: Dialect, options: ReadOptions) -> Table:
    """Read the rows that are as wide as the header, and note the others."""
    import pyarrow

    lines: list[int] = []
    rows: list[list[str]] = []
    bad: list[int] = []
    for line, row in text.rows(dialect, strict=False):
        if rows and len(row) != len(rows[0]):
            bad.append(line)
            continue
        rows.append(row)
        lines.append(line)
    header, names, again = _header(rows[:_SAMPLE_ROWS], options)
    body = rows[header:]
    if not body:
        raise InputError(f"{text.source.path}: no row has the {len(names)} columns of the header.")
    arrow = pyarrow.table(
        {name: pyarrow.array([row[place] for row in body], pyarrow.string()) for place, name in enumerate(names)}
    )
    shown = ", ".join(map(str, bad[:_SHOWN])) + (", ..." if len(bad) > _SHOWN else "")
    skipped = f"{len(bad)} rows with a different number of fields skipped (lines {shown})"
    form = f"{_describe_form(text, dialect, header)}{again}; {skipped}"

    def places(numbers: Sequence[int]) -> list[int]:
        return [lines[row + header] for row in numbers]

    source = text.source
    return Table(
        source.path, source.sha256, arrow, form, places, flag="--on-bad-rows", has_names=header, skipped=len(bad)
    )


def _long_fields(survey: _Survey) -> tuple[str, ...]:
    """Return a note on a field that spans many lines: its quote may be text."""
    line, span = survey.longest
    if span <= _LONG_FIELD:
        return ()
    return (
        f'line {line}: a quoted field spans {span} lines; if the quote character is part of the text, double it ("")',
    )


def _describe_form(text: _Text, dialect: Dialect, header: bool) -> str:
    """Describe how a table was read, and the lines that are left out above it."""
    form = f"{text.encoding.description} {'with a' if header else 'without'} header, {dialect.description}"
    if not text.above:
        return form
    return f"{form}; line{'s 1 to' if text.above > 1 else ''} {text.above} above the table left out"


def _read_lines(source: Source, encoding: Encoding, options: ReadOptions) -> Table:
    """Read one text per line, without empty lines."""
    import pyarrow

    with encoding.text(source) as stream:
        lines = [(number, line.rstrip("\r\n")) for number, line in enumerate(stream, start=1)]
    rows = [(number, line.removeprefix("\ufeff")) for number, line in lines if line.strip()]
    names = (*options.columns, *TEXT_NAMES)
    header = not options.no_header and (rows[0][1] in names or rows[0][1].strip().lower() in names)
    name = rows[0][1] if header else options.columns[0] if len(options.columns) == 1 else "text"
    body = rows[header:]
    if not body:
        raise InputError(f"{source.path}: there is a header but no row below it. Expected one row per text.")
    arrow = pyarrow.table({name: pyarrow.array([line for _, line in body], pyarrow.string())})
    form = f"{encoding.description}, one text per line, {'with a' if header else 'without'} header"
    places = lambda rows: [body[row][0] for row in rows]  # noqa: E731
    return Table(source.path, source.sha256, arrow, form, places, flag=encoding.flag, has_names=header)


def _header(
    rows: Sequence[Sequence[str]], options: ReadOptions, *, has_names: bool = False
) -> tuple[bool, list[str], str]:
    """Return whether the first row names the columns, their names, and a remark on repeated ones.

    Empty names are numbered.
    """
    if not has_names and (options.no_header or not has_header(rows, options.columns)):
        return False, default_names(len(rows[0]), options), ""
    names = [name if name.strip() else f"{_UNNAMED}{number}" for number, name in enumerate(rows[0], start=1)]
    return True, *deduplicate_names(names)


def _parse(text: _Text, dialect: Dialect, names: list[str], header: bool, block: int = 1 << 20) -> pyarrow.Table:
    """Parse all columns as strings; those of a large file are memory-mapped from the cache.

    Arrow reads in blocks of `block` bytes, and no row may be longer than one.
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
    read = arrow_csv.ReadOptions(block_size=block, column_names=names, skip_rows_after_names=int(header))
    convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    options = {"read_options": read, "parse_options": parse, "convert_options": convert}
    try:
        if text.whole is not None:
            return arrow_csv.read_csv(io.BytesIO(text.whole), **options)
        key = f"{text.key}\0{dialect}\0{names}\0{header}"
        return map_from_cache(key, lambda: arrow_csv.open_csv(io.BufferedReader(_Pieces(text.pieces())), **options))
    except pyarrow.ArrowInvalid as error:
        size = _MOST_BYTES if text.whole is None else min(len(text.whole), _MOST_BYTES)
        if "straddling" in str(error) and block < size:
            return _parse(text, dialect, names, header, min(64 * block, size))
        raise InputError(f"{text.source.path}: not a readable CSV file ({str(error).splitlines()[0]}).") from None

"""Delimited text: the dialect from the first MiB, then one strict pass of `csv.reader` into Arrow."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow

from classify.errors import InputError, list_some
from classify.findings import Finding, note
from classify.tables.decide import Question, QuestionError
from classify.tables.header import is_header
from classify.tables.options import ReadOptions
from classify.tables.profile import SAMPLE, Profile
from classify.tables.source import HEAD_BYTES, Source
from classify.tables.table import BLOCK, Table, string_array
from classify.tables.text import Encoding, find_encoding, find_legacy

SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
_DELIMITERS = (",", "\t", ";", "|")
_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
# Where a file has one column: a sign that texts do not hold, since `csv.reader` needs one.
_NOTHING = "\x1f"
# What a file counts for that is read as one column: all delimiters must fail in a fifth of its lines.
_ONE_COLUMN = 0.8
_LONGEST_CELL = 1 << 28
# Share of rows with the right number of fields below lines that a refusal proposes to leave out.
_MOST_ROWS = 0.95
# Excel writes the delimiter above a table for another Excel.
_SEP = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)

Record = list[str] | str


@dataclass(frozen=True)
class Dialect:
    """How rows are written: `delimiter` is "" for one column, `quote` "" for none; `escaped`: by a backslash."""

    delimiter: str
    quote: str = '"'
    escaped: bool = False

    def reader(self, lines: Iterable[str]) -> Any:
        return csv.reader(
            lines,
            delimiter=self.delimiter or _NOTHING,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar="\\" if self.escaped else None,
            strict=True,
        )

    @property
    def shown(self) -> str:
        between = f"{_NAMES.get(self.delimiter, repr(self.delimiter))} between columns"
        quotes = ", quotes escaped by a backslash" if self.escaped else "" if self.quote else ", quotes as text"
        return f"{between if self.delimiter else 'one column'}{quotes}"


def read(source: Source, options: ReadOptions) -> Table:
    """Read delimited text. Raises InputError with the lines of rows that cannot be read, or QuestionError."""
    csv.field_size_limit(_LONGEST_CELL)
    encoding = _find_encoding(source, options)
    try:
        return _read(source, options, encoding)
    except UnicodeError as error:
        if options.encoding is not None or encoding.name != "utf-8":
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{source.path}: not {encoding.shown} ({reason}); name its encoding with --encoding."
            ) from None
    # The first MiB is UTF-8, but a later line is not.
    with source.open() as stream:
        foreign = itertools.islice((line for line in stream if not line.isascii()), HEAD_BYTES // 64)
        data = source.head + b"\n" + b"".join(foreign)
    return _read(source, options, find_legacy(data, source.path))


def _find_encoding(source: Source, options: ReadOptions) -> Encoding:
    try:
        return find_encoding(source.head, options.encoding, source.path)
    except QuestionError:
        if "encoding" not in options.like:
            raise
        return Encoding(options.like["encoding"])
    except InputError:  # damaged UTF-8
        if not options.skips_bad_rows or options.encoding is not None:
            raise
        return Encoding("utf-8")


def find_dialect(text: str, options: ReadOptions, path: str = "") -> Dialect:
    """The dialect by which most records of the beginning of a file have the same number of fields.

    The last record counts for nothing: it may be cut, inside a quoted field even. Between equals a delimiter wins over
    none, quotes that are used over none, doubled ones over a backslash. Raises QuestionError between two delimiters.
    """
    delimiters = [sign for sign in _DELIMITERS if sign in text] if options.delimiter is None else [options.delimiter]
    quotes = ('"', "") if options.quote is None else (options.quote,)
    candidates = [Dialect(sign, quote) for quote in quotes for sign in (*delimiters, "")]
    if '\\"' in text:
        candidates += [Dialect(sign, '"', escaped=True) for sign in (*delimiters, "") if '"' in quotes]
    rated = {dialect: _rate(dialect, text) for dialect in candidates}
    best = max(rated, key=lambda dialect: rated[dialect])
    if best.delimiter == "," and options.delimiter is None and '"' not in text and _is_prose(",", text):
        best = max((dialect for dialect in rated if dialect.delimiter != ","), key=lambda dialect: rated[dialect])
    rivals = {one.delimiter: one for one in rated if rated[one] == rated[best] and one.delimiter != best.delimiter}
    if best.delimiter and "delimiter" in options.like:
        return rivals.get(options.like["delimiter"], best)
    if best.delimiter and rated[best][1] > 1 and rivals:
        dense = [one for one in (best, *rivals.values()) if not _is_prose(one.delimiter, text)]
        if len(dense) == 1:
            return dense[0]
        names = tuple(_NAMES[one.delimiter] for one in (best, *rivals.values()))
        flags = tuple(
            f"--delimiter {name if name == 'tab' else repr(sign)}"
            for name, sign in zip(names, (best.delimiter, *rivals), strict=True)
        )
        raise QuestionError(path, [Question("what is between the columns", names, flags)])
    return best


def _is_prose(delimiter: str, text: str) -> bool:
    """Whether a sign has a space behind it nearly always, as commas between clauses have."""
    return text.count(delimiter + " ") > 0.9 * text.count(delimiter)


def _rate(dialect: Dialect, text: str) -> tuple[float, int, int, bool]:
    """How many lines are records with the commonest number of fields; two columns; the records; quotes to use."""
    records = [(line, record) for line, record in _records(dialect.reader(io.StringIO(text, newline="")), 0) if record]
    lines, counts = Counter[int](), Counter[int]()
    for (line, record), (after, _) in itertools.pairwise(records):
        if not isinstance(record, str):
            lines[len(record)] += after - line
            counts[len(record)] += 1
    if not lines:  # one record
        return 0.0, len(records[0][1]) if records else 0, 0, False
    width, covered = max(lines.items(), key=lambda item: (item[1], item[0]))
    used = bool(dialect.quote) and dialect.quote in text
    return covered * (1.0 if width > 1 else _ONE_COLUMN), min(width, 2), counts[width], used


def _records(reader: Any, above: int) -> Iterator[tuple[int, Record]]:
    """Yield each record with the number of its first line; of one that cannot be read, what is wrong with it."""
    while True:
        line = above + reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            record = str(error)
        yield line, record


def _read(source: Source, options: ReadOptions, encoding: Encoding) -> Table:
    head = source.head.decode(encoding.name, "replace")
    above = options.skip_lines or 0
    if (sep := _SEP.match(head)) and options.delimiter is None:
        above, options = above + 1, options.with_delimiter(sep[1])
    head = "".join(head.splitlines(keepends=True)[above:]) if above else head
    dialect = find_dialect(head, options, source.path)
    # Bytes that are no UTF-8 become lone surrogates, which Arrow refuses: the row is found where it is converted.
    errors = "surrogateescape" if encoding.name.startswith("utf-8") else "strict"
    with io.TextIOWrapper(source.open(), encoding.name, errors, newline="") as stream:
        for _ in range(above):
            stream.readline()
        records = _records(dialect.reader(stream), above)
        records = itertools.dropwhile(lambda numbered: not numbered[1], records)  # empty lines above the table
        sample = list(itertools.islice(records, SAMPLE))
        if not sample:
            raise InputError(f"{source.path}: no row. Expected a header line with column names, then rows.")
        first, width = sample[0][1], _common_width([record for _, record in sample if record])
        if len(first) != width or isinstance(first, str):
            _refuse_first(source.path, sample, width)
        has_names = _has_header([record for _, record in sample], options, source.path)
        rows = _Rows(width, options.skips_bad_rows, first if has_names else [])
        rows.add(itertools.chain(sample[1:] if has_names else sample, records))
    names = first if has_names else default_names(width, options)
    table = rows.to_arrow(names, source.path)
    reading = {
        "encoding": encoding.name,
        "delimiter": dialect.delimiter,
        "quote": dialect.quote,
        "header": has_names,
        "skip_lines": options.skip_lines or 0,
    }
    return Table(
        source.path,
        source.sha256,
        table,
        f"{encoding.shown} {'with' if has_names else 'without'} a header, {dialect.shown}",
        np.array(rows.lines, dtype=np.int64),
        flag="--delimiter, --header" if encoding.certain else "--encoding, --delimiter, --header",
        has_names=has_names,
        reading=reading,
        skipped=len(rows.bad),
        findings=tuple(rows.findings(source.path)),
    )


@dataclass
class _Rows:
    """Records of one width, as they come, in blocks of Arrow arrays."""

    width: int
    skips_bad_rows: bool
    header: Record
    lines: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    empty_at_end: int = 0
    _blocks: list[list[pyarrow.Array]] = field(default_factory=list)

    def add(self, records: Iterator[tuple[int, Record]]) -> None:
        """Add all records; empty lines are rows of one column only, and no rows at the end."""
        block: list[list[str]] = []
        empty: list[tuple[int, list[str]]] = []
        for line, record in records:
            if isinstance(record, str):
                self.bad.append((line, record))
            elif not any(record):
                if len(record) == self.width or self.width == 1:
                    empty.append((line, [""] * self.width))
            elif len(record) != self.width:
                self.bad.append((line, f"{len(record)} fields"))
            elif record[0] in self.header and sorted(record) == sorted(self.header):
                self.bad.append((line, "the header again"))
            else:
                for place, blank in empty:
                    self.lines.append(place)
                    block.append(blank)
                empty.clear()
                self.lines.append(line)
                block.append(record)
                if len(block) >= BLOCK:
                    self._convert(block)
                    block = []
        self._convert(block)
        self.empty_at_end = len(empty)

    def _convert(self, block: list[list[str]]) -> None:
        """Convert a block of rows. Raises UnicodeError where one is not in the encoding and may not be left out."""
        try:
            arrays = [string_array(cells) for cells in zip(*block, strict=True)]
        except UnicodeEncodeError:
            if not self.skips_bad_rows:
                raise
            lines = self.lines[len(self.lines) - len(block) :]
            sound = ["".join(record).isascii() or _is_unicode("".join(record)) for record in block]
            self.bad += [(line, "not UTF-8") for line, is_sound in zip(lines, sound, strict=True) if not is_sound]
            self.lines[len(self.lines) - len(block) :] = itertools.compress(lines, sound)
            block = list(itertools.compress(block, sound))
            arrays = [string_array(cells) for cells in zip(*block, strict=True)]
        self._blocks.append(arrays or [string_array([])] * self.width)

    def to_arrow(self, names: Sequence[str], path: str) -> pyarrow.Table:
        """The rows as columns of these names. Raises InputError for rows that could not be read, unless skipped."""
        if self.bad and not self.skips_bad_rows:
            shown = list_some([f"line {line} ({what})" for line, what in self.bad])
            raise InputError(
                f"{path}: the first row has {self.width} column{'s' * (self.width > 1)}, but some rows have a "
                f"different number of fields: {shown}. Quote fields that contain the delimiter, or skip these rows "
                "with --on-bad-rows skip."
            )
        chunks = [pyarrow.chunked_array(list(arrays), pyarrow.string()) for arrays in zip(*self._blocks, strict=True)]
        return name_columns(names, chunks)

    def findings(self, path: str) -> Iterator[Finding]:
        if self.bad:
            shown = list_some([f"{line} ({what})" for line, what in self.bad])
            yield note(f"{len(self.bad)} rows skipped that could not be read: line {shown}", path)
        if self.empty_at_end:
            yield note(f"{self.empty_at_end} rows without a value at the end are left out", path)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _common_width(records: Sequence[Record]) -> int:
    widths = Counter(len(record) for record in records if isinstance(record, list))
    return max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))[0]


def _has_header(records: Sequence[Record], options: ReadOptions, path: str) -> bool:
    """Whether the first of some records is a header. Raises QuestionError where it may be."""
    if options.header is not None:
        return options.header
    first, *below = [record for record in records if record and isinstance(record, list)]
    cells = list(itertools.zip_longest(*(record for record in below if len(record) <= len(first)), fillvalue=""))
    cells += [()] * (len(first) - len(cells))
    columns = [
        Profile(name, len(below), [cell.strip() for cell in values if cell.strip()])
        for name, values in zip(first, cells, strict=False)
    ]
    found = options.answer("header", is_header(columns, options.columns, repeated=first in below))
    if isinstance(found, Question):
        raise QuestionError(path, [found])
    return bool(found)


def _refuse_first(path: str, sample: Sequence[tuple[int, Record]], width: int) -> None:
    """Raise InputError where the first row has another number of fields than most, with the way to leave it out."""
    line, first = sample[0]
    start = next(place for place, (_, record) in enumerate(sample) if _is_row(record, width))
    below = [record for _, record in sample[start:] if record]
    fits = sum(_is_row(record, width) for record in below) >= _MOST_ROWS * len(below)
    way = f" To leave out the lines above the table give --skip-lines {sample[start][0] - 1}." if fits else ""
    got = first if isinstance(first, str) else f"{len(first)} field{'s' * (len(first) != 1)}"
    raise InputError(f"{path}: line {line}: expected {width} fields, as in most rows. Got {got} instead.{way}")


def _is_row(record: Record, width: int) -> bool:
    return isinstance(record, list) and len(record) == width


def default_names(width: int, options: ReadOptions) -> list[str]:
    """Names of columns without a header: as in the related table, or by number."""
    if len(options.columns) == width:
        return list(options.columns)
    return [f"column_{number}" for number in range(1, width + 1)]


def name_columns(names: Sequence[str], columns: Sequence[pyarrow.ChunkedArray]) -> pyarrow.Table:
    """A table of columns: repeated names are numbered as pandas does, columns without name and value are left out."""
    counts, unique = Counter[str](), dict[str, pyarrow.ChunkedArray]()
    for number, (name, column) in enumerate(zip(names, columns, strict=True), start=1):
        name = name.strip("\ufeff")
        if not name.strip():
            if not any(pyarrow.compute.any(pyarrow.compute.not_equal(chunk, "")).as_py() for chunk in column.chunks):
                continue
            name = f"unnamed_{number}"
        new = name
        while new in unique or (new != name and new in names):
            counts[name] += 1
            new = f"{name}.{counts[name]}"
        unique[new] = column
    return pyarrow.table(unique)

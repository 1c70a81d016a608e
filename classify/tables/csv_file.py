"""Delimited text: dialect and header from the first MiB, then one strict pass of `csv.reader` into Arrow."""

from __future__ import annotations

import csv
import io
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow

from classify.errors import EXCERPT, SHOWN, InputError, list_some
from classify.findings import note
from classify.tables.profile import MOST, SAMPLE, Profile, count_words
from classify.tables.rules import is_header_name
from classify.tables.source import Question, QuestionError, ReadOptions, Source
from classify.tables.table import BLOCK, Table, string_array
from classify.tables.text import Encoding, find_encoding, find_legacy

SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
# What may stand between columns, and what messages call it.
_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
# Where a file has one column: a sign that texts do not hold, since `csv.reader` needs one.
_NOTHING = "\x1f"
# What a file counts for that is read as one column: all delimiters must fail in a fifth of its lines.
_ONE_COLUMN = 0.8
LONGEST_CELL = 1 << 28
# Share of rows with the right number of fields below lines that a refusal proposes to leave out.
_MOST_ROWS = 0.95
# Share of commas with a space behind them from which they separate clauses, not columns.
_CLAUSES = 0.9
# Excel writes the delimiter above a table for another Excel.
_SEP = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
# Words that a sentence has, and a name has not.
_SENTENCE = 6
# Rows per value from which a column's values are all of them, so that another one above them is a name.
_ROWS_A_VALUE = 4

# The fields of a record, or what is wrong with it.
Record = list[str] | str


@dataclass(frozen=True)
class Dialect:
    """How rows are written: `delimiter` is "" for one column, `quote` "" for none; `escaped`: by a backslash."""

    delimiter: str
    quote: str = '"'
    escaped: bool = False

    def records(self, lines: Iterable[str], above: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield each record with the number of its first line, below the lines `above`."""
        reader = csv.reader(
            lines,
            delimiter=self.delimiter or _NOTHING,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar="\\" if self.escaped else None,
            strict=True,
        )
        while True:
            line = above + reader.line_num + 1
            try:
                yield line, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, str(error)

    @property
    def shown(self) -> str:
        between = f"{_DELIMITERS.get(self.delimiter, repr(self.delimiter))} between columns"
        quotes = ", quotes escaped by a backslash" if self.escaped else "" if self.quote else ", quotes as text"
        return f"{between if self.delimiter else 'one column'}{quotes}"

    def rate(self, text: str) -> tuple[float, int, int, bool]:
        """How many lines are records with the commonest number of fields; two columns; the records; quotes to use."""
        records = [(line, record) for line, record in self.records(io.StringIO(text, newline="")) if record]
        lines, counts = Counter[int](), Counter[int]()
        for (line, record), (after, _) in itertools.pairwise(records):
            if not isinstance(record, str):
                lines[len(record)] += after - line
                counts[len(record)] += 1
        if not lines:  # one record
            return 0.0, len(records[0][1]) if records else 0, 0, False
        width, covered = max(lines.items(), key=operator.itemgetter(1, 0))
        used = bool(self.quote) and self.quote in text
        return covered * (1.0 if width > 1 else _ONE_COLUMN), min(width, 2), counts[width], used


def read(source: Source, options: ReadOptions) -> Table:
    """Read delimited text. Raises InputError with the lines of rows that cannot be read, or QuestionError."""
    csv.field_size_limit(LONGEST_CELL)
    encoding = find_encoding(source.head, options, source.path)
    try:
        return _read(source, options, encoding)
    except UnicodeError as error:
        if options.encoding is not None or encoding.name != "utf-8":
            raise encoding.refuse(source.path, error) from None
    with source.open() as stream:  # the first MiB is UTF-8, but a later line is not
        return _read(source, options, find_legacy(stream.read(), options, source.path))


def find_dialect(text: str, options: ReadOptions, path: str = "") -> Dialect:
    """The dialect by which most records of the beginning of a file have the same number of fields.

    The last record counts for nothing: it may be cut, inside a quoted field even. Between equals a delimiter wins over
    none, quotes that are used over none, doubled ones over a backslash. Raises QuestionError between two delimiters.
    """
    delimiters = [sign for sign in _DELIMITERS if sign in text] if options.delimiter is None else [options.delimiter]
    if options.delimiter is None and '"' not in text and text.count(", ") > _CLAUSES * text.count(","):
        delimiters = [sign for sign in delimiters if sign != ","]
    quotes = ('"', "") if options.quote is None else (options.quote,)
    candidates = [Dialect(sign, quote) for quote in quotes for sign in (*delimiters, "")]
    if '\\"' in text and '"' in quotes:
        candidates += [Dialect(sign, '"', escaped=True) for sign in (*delimiters, "")]
    rated = {dialect: dialect.rate(text) for dialect in candidates}
    best = max(rated, key=rated.__getitem__)
    rivals = {one.delimiter: one for one in rated if rated[one] == rated[best] and one.delimiter}
    if "delimiter" in options.like:
        return rivals.get(options.like["delimiter"], best)
    if len(rivals) > 1 and rated[best][1] > 1:
        names = tuple(_DELIMITERS[sign] for sign in rivals)
        flags = tuple(f"--delimiter {'tab' if sign == chr(9) else repr(sign)}" for sign in rivals)
        raise QuestionError(path, [Question("what is between the columns", names, flags)])
    return best


def _read(source: Source, options: ReadOptions, encoding: Encoding) -> Table:
    """Read the rows. Raises UnicodeError where one is not in the encoding."""
    head, above, path = source.head.decode(encoding.name, "replace"), options.skip_lines or 0, source.path
    if (sep := _SEP.match(head)) and options.delimiter is None:
        above, options = above + 1, replace(options, delimiter=sep[1])
    dialect = find_dialect("".join(head.splitlines(keepends=True)[above:]), options, path)
    with io.TextIOWrapper(source.open(), encoding.name, newline="") as stream:
        for _ in range(above):
            stream.readline()
        records = itertools.dropwhile(lambda numbered: not numbered[1], dialect.records(stream, above))
        sample = list(itertools.islice(records, SAMPLE))
        if not sample:
            raise InputError(f"{path}: no row. Expected a header line with column names, then rows.")
        widths = Counter(len(record) for _, record in sample if record and isinstance(record, list))
        width = max(widths.items(), key=operator.itemgetter(1, 0), default=(1, 0))[0]
        first = sample[0][1]
        if isinstance(first, str) or len(first) != width:
            raise InputError(_refuse_first(path, sample, width))
        has_names = has_header([record for _, record in sample if record and isinstance(record, list)], options, path)
        rows = _Rows(width, first if has_names else [])
        rows.add(itertools.chain(sample[1:] if has_names else sample, records))
    shown = list_some([f"line {line} ({what})" for line, what in rows.bad])
    if rows.bad and not options.skips_bad_rows:
        raise InputError(
            f"{path}: the first row has {width} column{'s' * (width > 1)}, but some rows have a different number of "
            f"fields: {shown}. Quote fields that contain the delimiter, or skip these rows with --on-bad-rows skip."
        )
    findings = [note(f"{len(rows.bad)} rows skipped that could not be read: {shown}", path)] if rows.bad else []
    if left_out := len(rows.lines) - rows.filled:
        findings.append(note(f"{left_out} rows without a value at the end are left out", path))
    return Table(
        path,
        source.sha256,
        name_columns(first if has_names else default_names(width, options), rows.columns()),
        f"{encoding.shown} {'with' if has_names else 'without'} a header, {dialect.shown}",
        np.array(rows.lines[: rows.filled], dtype=np.int64),
        flag="--delimiter, --header" if encoding.certain else "--encoding, --delimiter, --header",
        has_names=has_names,
        reading={
            "encoding": encoding.name,
            "delimiter": dialect.delimiter,
            "quote": dialect.quote,
            "header": has_names,
            "skip_lines": options.skip_lines or 0,
        },
        skipped=len(rows.bad),
        findings=tuple(findings),
    )


class _Rows:
    """Records of one width, as they come, in blocks of Arrow arrays; the rows from `filled` on hold no value."""

    def __init__(self, width: int, header: Sequence[str]):
        self.lines: list[int] = []
        self.bad: list[tuple[int, str]] = []
        self.filled = 0
        self._width, self._header, self._blocks = width, header, list[list[pyarrow.Array]]()

    def add(self, records: Iterable[tuple[int, Record]]) -> None:
        fitting = self._fit(records)
        while block := list(itertools.islice(fitting, BLOCK)):
            self._blocks.append([string_array(cells) for cells in zip(*block, strict=True)])

    def _fit(self, records: Iterable[tuple[int, Record]]) -> Iterator[list[str]]:
        """Yield the records of the right width; note the others."""
        for line, record in records:
            if not record:
                if self._width > 1:
                    continue
                record = [""]
            if isinstance(record, str):
                self.bad.append((line, record))
            elif len(record) != self._width:
                if any(record):
                    self.bad.append((line, f"{len(record)} fields"))
            elif self._width > 1 and record[0] in self._header and sorted(record) == sorted(self._header):
                self.bad.append((line, "the header again"))
            else:
                self.lines.append(line)
                self.filled = len(self.lines) if any(record) else self.filled
                yield record

    def columns(self) -> list[pyarrow.ChunkedArray]:
        chunks = zip(*self._blocks, strict=True) if self._blocks else [()] * self._width
        return [pyarrow.chunked_array(list(arrays), pyarrow.string()).slice(0, self.filled) for arrays in chunks]


def _refuse_first(path: str, sample: Sequence[tuple[int, Record]], width: int) -> str:
    """The message where the first row has another number of fields than most, with the way to leave it out."""
    line, first = sample[0]
    fits = [isinstance(record, list) and len(record) == width for _, record in sample]
    start = fits.index(True)
    works = sum(fits) >= _MOST_ROWS * sum(bool(record) for _, record in sample[start:])
    way = f" To leave out the lines above the table give --skip-lines {sample[start][0] - 1}." if works else ""
    got = first if isinstance(first, str) else f"{len(first)} field{'s' * (len(first) != 1)}"
    return f"{path}: line {line}: expected {width} fields, as in most rows. Got {got} instead.{way}"


def has_header(rows: Sequence[Sequence[str]], options: ReadOptions, path: str) -> bool:
    """Whether the first of some rows names the columns. Raises QuestionError where it may.

    It does by known names, or where a cell is of another kind than those below it; it does not where a cell comes again
    below, or is of their kind. Where both hold, or neither, that is a question, unless a flag or an earlier table of
    the same kind answers it.
    """
    if options.header is not None:
        return options.header
    first, *below = rows
    fitting = [row for row in below if len(row) == len(first)]
    columns = [
        Profile(name, len(below), [cell.strip() for row in fitting if (cell := row[place]).strip()])
        for place, name in enumerate(first)
    ]
    known = [column for column in columns if is_header_name(column.name)]
    if not set(first).isdisjoint(options.columns) or (known and first in below):
        return True
    speaks_for = any(column.name.strip() not in column.values for column in known) or any(map(_is_other_kind, columns))
    if speaks_for != any(map(_is_same_kind, columns)):
        return speaks_for
    if len(columns) == len(options.columns) or len(columns) == 1:
        return False
    if "header" in options.like:
        return bool(options.like["header"])
    shown = ", ".join(repr(name.strip()[:EXCERPT]) for name in first[:SHOWN])
    raise QuestionError(path, [Question(f"is the first row ({shown}) a header", (), ("--header", "--no-header"))])


def _is_other_kind(column: Profile) -> bool:
    """Whether a cell is no value of the column below it: a word over numbers, or a new value over few that recur."""
    name = column.name.strip()
    if not name or name in column.values or not column.values:
        return False
    if column.is_numeric or max(column.unreadable, column.codes) >= MOST:
        return not _looks_alike(column)
    few = len(column.values) >= _ROWS_A_VALUE * column.kinds
    return (few and len(column.values) >= 10) or (column.words >= _SENTENCE and count_words(name) <= 2)


def _is_same_kind(column: Profile) -> bool:
    """Whether a cell is one of the values below it, a number over numbers, or a sentence over sentences."""
    name = column.name.strip()
    again = name in column.values and column.kinds > 1
    sentence = column.reads_like_text and count_words(name) >= _SENTENCE
    return bool(name) and (again or sentence or _looks_alike(column))


def _looks_alike(column: Profile) -> bool:
    """Whether the name is a number over numbers, or a date, link or code over such."""
    name = Profile("", 1, [column.name.strip()])
    if column.is_numeric:  # over numbers q1 is a name
        return name.is_numeric
    return (column.unreadable >= MOST and name.unreadable == 1) or (column.codes >= MOST and name.codes == 1)


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

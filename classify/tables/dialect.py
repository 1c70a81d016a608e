"""Detect how a text file separates columns: the delimiter, the quotes, and whether there is a header."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, AnyStr

from classify.tables.names import is_usual

# Characters of a field; the standard library's limit of 128 Ki is below the longest texts.
_LONGEST_FIELD = (1 << 31) - 1
_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
# Unusual delimiters that sentences and keys have, too.
_IN_PROSE = ":/#@&=*+<>%$"
# Characters of names and texts that are not delimiters.
_WITHIN_NAMES = "\0 \r\n\"'._-?!()[]"
# Penalty on the fit of a dialect that does not split the first line.
_BARE_HEADER = 0.05
# A dialect fits where at least this share of a sample's rows has the most frequent width.
_UNIFORM = 0.9
# Excel's `sep=;` line, and the most lines above a header.
_SEPARATOR = re.compile(r'\ufeff?"?sep=([^\r\n])"?[\r\n]', re.IGNORECASE)
_MOST_ABOVE = 10
# Most characters of a class name.
_LONGEST_CLASS = 60


@dataclass(frozen=True)
class Dialect:
    """`quote` is None where quotes are text like any other; `escape` precedes a quote inside a field."""

    delimiter: str
    quote: str | None = '"'
    escape: str | None = None

    @property
    def description(self) -> str:
        """Describe the delimiter, and quotes other than the usual ones."""
        between = f"{_DELIMITERS.get(self.delimiter, repr(self.delimiter))} between columns"
        if self.quote is None:
            return f"{between}, quotes are text"
        if self.quote != '"':
            return f"{between}, fields in single quotes"
        return f"{between}, quotes escaped by a backslash" if self.escape else between

    @property
    def is_doubtful(self) -> bool:
        """Return whether sentences hold the delimiter, too; then only a header with usual names shows a table."""
        return self.delimiter in _IN_PROSE

    def reader(self, lines: Iterable[str], *, strict: bool = True) -> Any:
        """Return the standard library's reader for this dialect."""
        csv.field_size_limit(_LONGEST_FIELD)
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote or '"',
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            doublequote=self.escape is None,
            escapechar=self.escape,
            strict=strict,
        )


def candidates(delimiter: str, sample: str) -> list[Dialect]:
    """Return the dialects with a delimiter that a sample shows signs of, the usual one first."""
    signs = [Dialect(delimiter)]
    if '\\"' in sample:
        signs.append(Dialect(delimiter, escape="\\"))
    if '"' in sample:
        signs.append(Dialect(delimiter, quote=None))
    if re.search(rf"(^|{re.escape(delimiter)})'", sample, re.MULTILINE):
        signs.append(Dialect(delimiter, quote="'"))
    return signs


def detect_dialect(sample: str, suffix: str) -> Dialect:
    """Return the dialect in which the rows of a sample have equally many columns, if possible more than one.

    Ties go to a delimiter without a space after it, which prose has; then to the tab in .tsv files; then to the comma.
    Other characters are tried where none of the usual delimiters fits. The sample may end inside a row.
    """

    def order(delimiter: str) -> tuple[bool, bool]:
        return _is_prose(sample, delimiter), (delimiter == "\t") != (suffix == ".tsv")

    delimiters = sorted(_DELIMITERS, key=order)
    # The first line with a usual delimiter; unlike the rows below, it has no decimal commas.
    header = next((line for line in io.StringIO(sample) if not _DELIMITERS.keys().isdisjoint(line)), "")
    best, best_share, best_fit = Dialect(delimiters[0]), 0.0, 0.0
    for delimiter in delimiters:
        for dialect in candidates(delimiter, sample):
            share = _uniformity(sample, dialect)
            fit = share - _BARE_HEADER * (delimiter not in header)
            if fit > best_fit + 0.01:
                best, best_share, best_fit = dialect, share, fit
    if best_share >= _UNIFORM:
        return best
    first = sample.lstrip("\r\n").partition("\n")[0]
    for delimiter in _unusual(first):
        if _uniformity(sample, Dialect(delimiter)) >= _UNIFORM:
            return Dialect(delimiter)
    return Dialect(max(delimiters, key=first.count))


def find_table(sample: str, suffix: str, related: Sequence[str] = ()) -> tuple[Dialect, int]:
    """Return the dialect of a sample's table, and the number of lines above it.

    Above a table there may be `sep=;`, Excel's name of the delimiter, or a title, keys and values, blank lines. Such
    lines fill at most half of the columns. The header below them has no numbers, fills all columns and, of two columns,
    holds a usual name or one of `related`.
    """
    separator = _SEPARATOR.match(sample)
    if separator is not None:
        table = skip_lines(sample, 1)
        return max(candidates(separator[1], table), key=lambda dialect: _uniformity(table, dialect)), 1
    dialect = detect_dialect(sample, suffix)
    numbered = list(parse_rows(io.StringIO(sample, newline=""), dialect, strict=False))
    rows = [row for _, row in numbered]
    filled = [_count_filled(row) for row in rows]
    usually = Counter(filled).most_common(1)[0][0] if filled else 0
    if _uniformity(sample, dialect) >= _UNIFORM and filled[0] >= usually:
        return dialect, numbered[1][0] - 1 if is_title(rows, related) else 0
    for above in range(1, _MOST_ABOVE + 1):
        table = skip_lines(sample, above)
        below = detect_dialect(table, suffix)
        if _uniformity(table, below) < _UNIFORM:
            continue
        header, *rows = _sample_rows(table, below)
        width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
        is_full = len(header) == _count_filled(header) == width and not any(map(is_number, header))
        named = any(is_usual(value, related) for value in header)
        lines = sample[: len(sample) - len(table)]
        is_narrow = all(_count_filled(row) <= max(1, width // 2) for row in _sample_rows(lines, below))
        if is_full and is_narrow and (named or width > 2):
            return below, above
    return dialect, 0


def is_table(sample: str, related: Sequence[str] = ()) -> bool:
    """Return whether a text file without a table's suffix holds columns; prose has commas, too.

    It does if the header has several names, one of them usual or of a `related` table, or one such name above quoted
    fields. It also does if its rows are equally wide, and the delimiter is not followed by a space or the values of a
    column repeat, as classes do.
    """
    dialect, above = find_table(sample, "", related)
    rows = _sample_rows(skip_lines(sample, above), dialect)
    header = rows[0] if rows else []
    if len(header) == 1 and is_usual(header[0], related) and _is_quoted_column(sample):
        return True
    if above or (len(header) > 1 and any(is_usual(value, related) for value in header)):
        return True
    if _uniformity(sample, dialect) < _UNIFORM:
        return False
    return not _is_prose(sample, dialect.delimiter) or any(
        len(set(column)) <= len(column) / 2 and max(map(len, column)) <= _LONGEST_CLASS
        for column in itertools.zip_longest(*rows, fillvalue="")
    )


def _is_quoted_column(sample: str) -> bool:
    """Return whether a sample is a CSV of one column: fields with commas, quotes or line breaks are in quotes."""
    reader, needed = Dialect(",").reader(io.StringIO(sample, newline="")), False
    try:
        for row in reader:
            if len(row) > 1:
                return False
            needed = needed or any(sign in field for field in row for sign in ',\n\r"')
    except csv.Error:
        # The sample's end may cut a field.
        return reader.line_num >= sample.count("\n")
    return needed


def skip_lines(text: AnyStr, count: int) -> AnyStr:
    """Drop the first lines of text or bytes."""
    ends = re.compile(b"\r\n|\r|\n" if isinstance(text, bytes) else "\r\n|\r|\n")
    for _ in range(count):
        end = ends.search(text)
        text = text[end.end() :] if end is not None else text[:0]
    return text


def _is_prose(sample: str, delimiter: str) -> bool:
    """Return whether a space follows most of the delimiters, as it does the commas of a sentence."""
    return sample.count(f"{delimiter} ") > sample.count(delimiter) / 2


def _sample_rows(sample: str, dialect: Dialect) -> list[list[str]]:
    """Return the rows of a sample that are not empty lines; the last one may be cut."""
    return [row for _, row in parse_rows(io.StringIO(sample, newline=""), dialect, strict=False)]


def _count_filled(row: Sequence[str]) -> int:
    return sum(bool(value.strip()) for value in row)


def _unusual(line: str) -> list[str]:
    """Return unusual delimiters that a line may have, most frequent first."""
    counts = Counter(sign for sign in line if sign.isascii() and not sign.isalnum() and sign not in _WITHIN_NAMES)
    return [sign for sign, _ in counts.most_common()]


def _uniformity(sample: str, dialect: Dialect) -> float:
    """Return the share of rows with the most frequent width; 0 for one column, or where quotes do not close."""
    widths: list[int] = []
    reader = dialect.reader(io.StringIO(sample, newline=""))
    try:
        for row in reader:
            if row:
                widths.append(len(row))
    except csv.Error:
        # An open quote at the sample's end may be the cut; anywhere else it is not of this dialect.
        if reader.line_num < sample.count("\n"):
            return 0.0
    if len(widths) > 1:
        widths.pop()  # perhaps cut
    width, count = Counter(widths).most_common(1)[0] if widths else (1, 0)
    return count / len(widths) if width > 1 else 0.0


def parse_rows(lines: Iterable[str], dialect: Dialect, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield (first physical line, fields) of each row that is not an empty line. Raises csv.Error if `strict`."""
    reader = dialect.reader(lines, strict=strict)
    before = 0
    for row in reader:
        if row:
            yield before + 1, row
        before = reader.line_num


def is_title(rows: Sequence[Sequence[str]], related: Sequence[str] = ()) -> bool:
    """Return whether the first row is a title: it has no usual name, and the second row has at least two.

    None of these names occurs again below.
    """
    if len(rows) < 3 or any(is_usual(value, related) or "\n" in value for value in rows[0]):
        return False
    named = [place for place, value in enumerate(rows[1]) if is_usual(value, related)]
    return len(named) > 1 and all(rows[1][place] not in row[place : place + 1] for row in rows[2:] for place in named)


def has_header(rows: Sequence[Sequence[str]], related: Sequence[str] = ()) -> bool:
    """Return whether the first of some rows names the columns.

    It does where it holds a usual name, or a column of a `related` table. A name that repeats in its
    column is a class, unless the whole row repeats, as in joined files. A number over numbers, or any repeated value,
    makes the row data. Otherwise it is a header, unless the rows are as wide as `related`.
    """
    first, *below = ([value.lstrip("\ufeff") for value in row] for row in rows)  # of joined files, each with a mark
    columns = [[row[place] for row in below if place < len(row) and row[place]] for place in range(len(first))]
    comes_again = [bool(value) and value in column for value, column in zip(first, columns, strict=True)]
    is_name = [is_usual(value, related) for value in first]
    if any(is_name):
        joined = len(first) > 1 and first in below
        return joined or not any(named and again for named, again in zip(is_name, comes_again, strict=True))
    if first == [str(number) for number in range(len(first))] and len(first) > 1:  # pandas numbers its columns
        return True
    if any(comes_again):
        return False
    for value, column in zip(first, columns, strict=True):
        if is_number(value) and sum(map(is_number, column)) > len(column) / 2:
            return False
    return len(first) != len(related)


def is_number(text: str) -> bool:
    return to_number(text) is not None


def to_number(text: str) -> float | None:
    """Return the number that a text is, with a decimal point; None for anything else, such as 1_2."""
    if "_" in text:  # which Python allows between digits
        return None
    try:
        return float(text)
    except ValueError:
        return None

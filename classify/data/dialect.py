"""How a text file divides its lines into columns: the delimiter, the quotes, whether the first row is a header."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

csv.field_size_limit((1 << 31) - 1)  # texts longer than the standard library's 128 Ki characters exist

_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
# What stands in names and texts without dividing them.
_WITHIN_NAMES = "\0 \r\n\"'._-?!()[]"
# Of the rows of a sample, the share that have the most frequent width, below which a dialect does not fit.
_UNIFORM = 0.9


@dataclass(frozen=True)
class Dialect:
    """`quote` is None where quotes are text like any other; `escape` is what stands before a quote inside a field."""

    delimiter: str
    quote: str | None = '"'
    escape: str | None = None

    @property
    def words(self) -> str:
        """For people: what stands between the columns, and quotes that are not the usual ones."""
        between = f"{_DELIMITERS.get(self.delimiter, repr(self.delimiter))} between columns"
        if self.quote is None:
            return f"{between}, quotes are text"
        if self.quote != '"':
            return f"{between}, fields in single quotes"
        return f"{between}, quotes escaped by a backslash" if self.escape else between

    def reader(self, lines: Iterable[str], *, strict: bool = True) -> Any:
        """The standard library's reader of this dialect."""
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
    """The dialects with a delimiter of which a sample shows a sign, the usual one first."""
    signs = [Dialect(delimiter)]
    if '\\"' in sample:
        signs.append(Dialect(delimiter, escape="\\"))
    if '"' in sample:
        signs.append(Dialect(delimiter, quote=None))
    if re.search(rf"(^|{re.escape(delimiter)})'", sample, re.MULTILINE):
        signs.append(Dialect(delimiter, quote="'"))
    return signs


def detect_dialect(sample: str, suffix: str) -> Dialect:
    """The dialect in which the rows of a sample have equally many columns, more than one where that can be.

    A name that ends in .tsv, or the comma, decides among equals. Other characters are looked at where none of the usual
    delimiters fits. The sample may end inside a row.
    """
    delimiters = sorted(_DELIMITERS, key=lambda one: (one == "\t") != (suffix == ".tsv"))
    best, best_share = Dialect(delimiters[0]), 0.0
    for delimiter in delimiters:
        for dialect in candidates(delimiter, sample):
            share = _uniformity(sample, dialect)
            if share > best_share + 0.01:
                best, best_share = dialect, share
    if best_share >= _UNIFORM:
        return best
    for delimiter in _unusual(sample):
        if _uniformity(sample, Dialect(delimiter)) >= _UNIFORM:
            return Dialect(delimiter)
    return Dialect(_most_frequent(sample, delimiters))


def _unusual(sample: str) -> list[str]:
    """Characters of the first line that may be a delimiter where the usual ones are none; most frequent ones first."""
    first = sample.lstrip("\r\n").partition("\n")[0]
    counts = Counter(one for one in first if one.isascii() and not one.isalnum() and one not in _WITHIN_NAMES)
    return [one for one, _ in counts.most_common()]


def _most_frequent(sample: str, delimiters: Sequence[str]) -> str:
    """Of rows that no dialect finds equally wide: the delimiter of the first line, which is the header mostly."""
    first = sample.lstrip("\r\n").partition("\n")[0]
    return max(delimiters, key=lambda one: (first.count(one), one == delimiters[0]))


def _uniformity(sample: str, dialect: Dialect) -> float:
    """The share of rows that have the most frequent width; 0 where that is one column, or the quotes do not close."""
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


def rows_of(lines: Iterable[str], dialect: Dialect, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """(first physical line, fields) of every row that is not an empty line. Raises csv.Error where it is `strict`."""
    reader = dialect.reader(lines, strict=strict)
    before = 0
    for row in reader:
        if row:
            yield before + 1, row
        before = reader.line_num


def has_header(rows: Sequence[Sequence[str]], usual: Sequence[str], known: Sequence[str] = ()) -> bool:
    """Return whether the first of some rows names the columns.

    It does where it holds a `usual` name, or one of the `known` columns of a table that this one goes with, unless that
    name comes again in its column: then it is a class. A first row that comes again as a whole is the header of files
    that were joined. A number over numbers, or any value that comes again, makes the row data. Where nothing tells, it
    is a header, unless the rows are as wide as the table with the known columns.
    """
    first, below = list(rows[0]), rows[1:]
    if len(first) > 1 and first in map(list, below):
        return True
    columns = [[row[place] for row in below if place < len(row) and row[place]] for place in range(len(first))]
    comes_again = [bool(value) and value in column for value, column in zip(first, columns, strict=True)]
    is_name = [value in known or value.strip().lower() in usual for value in first]
    if any(is_name):
        return not any(named and again for named, again in zip(is_name, comes_again, strict=True))
    if first == [str(number) for number in range(len(first))] and len(first) > 1:  # pandas numbers its columns
        return True
    if any(comes_again):
        return False
    for value, column in zip(first, columns, strict=True):
        if is_number(value) and sum(map(is_number, column)) > len(column) / 2:
            return False
    return len(first) != len(known)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True

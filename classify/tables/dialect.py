"""Choose how a text file separates columns: the delimiter, the quotes, and whether there is a header."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from classify.tables import rules
from classify.tables.decide import Answer, Candidate, Doubt, ask, choose
from classify.tables.names import SURVEY_NAMES
from classify.tables.profile import ColumnProfile

# Characters of a field; the standard library's limit of 128 Ki is below the longest texts.
_LONGEST_FIELD = (1 << 31) - 1
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
# A dialect fits where at least this share of a sample's rows has the most frequent width.
_UNIFORM = 0.9
# Excel's line that names the delimiter.
SEPARATOR = re.compile(r'\ufeff?"?sep=([!-~\t])"?[\r\n]', re.IGNORECASE)
# Rows of a sample by which a header is recognized, and the most lines above it.
_ROWS, _MOST_ABOVE = 2000, 10
# Rows that a header has at most, and points of a further one.
_MOST_NAMES, _NAMES_AGAIN = 3, 4.0


@dataclass(frozen=True)
class Dialect:
    """`quote` is None where quotes are text like any other; `escape` precedes a quote inside a field."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None

    @property
    def description(self) -> str:
        """Describe the delimiter, and quotes other than the usual ones."""
        between = f"{DELIMITERS.get(self.delimiter, repr(self.delimiter))} between columns"
        if self.quote is None:
            return f"{between}, quotes are text"
        if self.quote != '"':
            return f"{between}, fields in {self.quote}"
        return f"{between}, quotes escaped by a backslash" if self.escape else between

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

    def rows(self, lines: Iterable[str], *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yield (first physical line, fields) of each row that is not an empty line. Raises csv.Error if `strict`."""
        reader = self.reader(lines, strict=strict)
        before = 0
        for row in reader:
            if row:
                yield before + 1, row
            before = reader.line_num


def list_quotes(delimiter: str, sample: str) -> list[Dialect]:
    """Return the dialects with a delimiter that a sample shows signs of, the usual one first."""
    signs = [Dialect(delimiter)]
    if '\\"' in sample:
        signs.append(Dialect(delimiter, escape="\\"))
    if '"' in sample:
        signs.append(Dialect(delimiter, quote=None))
    if re.search(rf"(^|{re.escape(delimiter)})'", sample, re.MULTILINE):
        signs.append(Dialect(delimiter, quote="'"))
    return signs


def choose_dialect(sample: str, suffix: str) -> Answer[Dialect] | Doubt:
    """Choose the dialect in which the rows of a sample have equally many columns, if possible more than one.

    The sample may end inside a row.
    """
    separator = SEPARATOR.match(sample)
    if separator is not None:
        sample = sample[separator.end() :]
    first = sample.lstrip("\r\n").partition("\n")[0]
    fitting = []
    for delimiter in [separator[1]] if separator is not None else DELIMITERS:
        if is_quoted_column(sample, delimiter):
            continue
        # max takes the first of equal ones.
        quoted = max(list_quotes(delimiter, sample), key=lambda dialect: uniformity(sample, dialect))
        evidence = {
            "rows of one width": uniformity(sample, quoted),
            "in the first line": delimiter in first,
            "no space behind it": not is_prose(sample, delimiter),
            "the file's name": (delimiter == "\t") == (suffix == ".tsv"),
            "usual": delimiter == ",",
        }
        points = sum(rules.DELIMITER[reason] * weight for reason, weight in evidence.items())
        fitting.append(Candidate(quoted, points, DELIMITERS.get(delimiter, delimiter), f"--delimiter {delimiter!r}"))
    best = max(fitting, key=lambda candidate: candidate.points, default=None)
    if best is not None and best.points >= rules.DELIMITED and uniformity(sample, best.value) >= _UNIFORM:
        return choose("the delimiter", fitting, rules.DELIMITED)
    others = [sign for sign in find_unusual(sample) if uniformity(sample, Dialect(sign)) >= _UNIFORM]
    if others:
        return Doubt("the delimiter", tuple(map(repr, others)), f"--delimiter {others[0]!r}")
    return Answer(Dialect() if best is None else best.value, "no other fits", clear=True)


def is_quoted_column(sample: str, delimiter: str) -> bool:
    """Return whether each row is one field in quotes, with the delimiter inside some."""
    rows = [row for _, row in Dialect(delimiter).rows(io.StringIO(sample, newline=""), strict=False)]
    return all(len(row) == 1 for row in rows) and any(delimiter in row[0] for row in rows)


def find_unusual(sample: str) -> list[str]:
    """Return signs of the first line that may separate columns, most frequent first."""
    first = sample.lstrip("\r\n").partition("\n")[0]
    signs = Counter(
        sign for sign in first if sign.isascii() and not sign.isalnum() and sign not in "\0 \r\n\"'._-?!()[]"
    )
    return [sign for sign, _ in signs.most_common() if sign not in DELIMITERS]


def uniformity(sample: str, dialect: Dialect) -> float:
    """Return the share of rows with the most frequent width; 0 for one column, or where quotes do not close."""
    widths: list[int] = []
    reader = dialect.reader(io.StringIO(sample, newline=""))
    try:
        widths.extend(len(row) for row in reader if row)  # keeps the rows before an error, as a list would not
    except csv.Error:
        # An open quote at the sample's end may be the cut; anywhere else it is not of this dialect.
        if reader.line_num < sample.count("\n"):
            return 0.0
    if len(widths) > 1:
        widths.pop()  # perhaps cut
    width, count = Counter(widths).most_common(1)[0] if widths else (1, 0)
    return count / len(widths) if width > 1 else 0.0


def find_lines_above(sample: str, dialect: Dialect) -> int:
    """Return how many lines are above a table whose other rows are of one width; 0 without any."""
    rows = list(itertools.islice(dialect.rows(io.StringIO(sample, newline=""), strict=False), _ROWS))
    width, count = Counter(len(row) for _, row in rows).most_common(1)[0]
    filled = [sum(map(bool, map(str.strip, row))) for _, row in rows]
    usual = Counter(filled).most_common(1)[0][0]
    first = next((n for n, (_, row) in enumerate(rows) if len(row) == width and filled[n] >= usual), 0)
    narrow = all(count <= max(1, width // 2) for count in filled[:first])
    is_table = width > 1 and count >= _UNIFORM * (len(rows) - first)
    return rows[first][0] - 1 if is_table and 0 < first <= _MOST_ABOVE and narrow else 0


def is_table(sample: str, dialect: Dialect, related: Sequence[str] = ()) -> bool:
    """Return whether a text file without a table's suffix holds columns; prose has commas, too.

    It does if one of several names in its first line is usual or of a `related` table; or if its rows are equally wide,
    and the delimiter is not followed by a space or the values of a column recur, as classes do.
    """
    rows = [row for _, row in itertools.islice(dialect.rows(io.StringIO(sample, newline=""), strict=False), _ROWS)]
    if len(rows[0]) > 1 and any(rules.is_usual_header(name, related) for name in rows[0]):
        return True
    if uniformity(sample, dialect) < _UNIFORM:
        return False
    columns = [ColumnProfile("", len(rows), list(filter(None, cells))) for cells in itertools.zip_longest(*rows)]
    return not is_prose(sample, dialect.delimiter) or any(map(rules.recur_twice, columns))


def is_prose(sample: str, delimiter: str) -> bool:
    """Return whether a space follows most of the delimiters, as it does the commas of a sentence."""
    return sample.count(f"{delimiter} ") > sample.count(delimiter) / 2


def choose_header(rows: Sequence[Sequence[str]], related: Sequence[str] = ()) -> Answer[int] | Doubt:
    """Choose how many rows are a header: 0, 1, or more where rows below the names read like these, as in surveys.

    `related` are the columns of another table.
    """
    first, *below = rows
    points, reasons = rules.weigh_header(_profile_below(rows), related)
    shown = ", ".join(repr(name[:30]) for name in first[:3])
    names = Candidate(1, points, f"the names of the columns ({shown})", "--header", reasons)
    data = Candidate(0, 0.0, "a row like the others", "--no-header", ("it reads like the rows below",))
    question = "the first row"
    if len(first) > 1 and list(first) in map(list, below):  # as where files were joined
        return ask(question, [names, data])
    answer = choose(question, [names, data], fewest=-10.0)
    if isinstance(answer, Doubt) or not answer.value:
        return answer
    more = itertools.takewhile(lambda row: _names_again(first, rows[row:]), range(1, min(_MOST_NAMES, len(rows) - 1)))
    return replace(answer, value=1 + len(list(more)))


def _names_again(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first of the rows below a header clearly reads like another, as in exports of surveys."""
    cells = list(filter(None, map(str.strip, rows[0])))
    if cells and all(cell.lower() in SURVEY_NAMES or cell.startswith('{"ImportId"') for cell in cells):
        return True
    letters = [["".join(filter(str.isalnum, name.lower())) for name in row] for row in (header, rows[0])]
    is_same = any(name and name == again for name, again in zip(*letters, strict=False))
    return rules.weigh_header(_profile_below(rows), ())[0] + is_same * rules.NAMED_AGAIN >= _NAMES_AGAIN


def _profile_below(rows: Sequence[Sequence[str]]) -> list[ColumnProfile]:
    """Return the profile of each column below the first row, under its name there."""
    first, *below = rows
    cells = ([row[place].strip() for row in below if len(row) > place] for place in range(len(first)))
    return [
        ColumnProfile(name, len(below), list(filter(None, values))) for name, values in zip(first, cells, strict=True)
    ]

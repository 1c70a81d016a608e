"""Measure the columns of a table, from a sample of its rows: numbers without opinions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from classify.tables.names import is_split_word, normalize_name
from classify.tables.table import Table

# Rows of the sample, spread evenly: a table may be sorted.
SAMPLE = 5_000
# In scripts without spaces between words a word has about four letters.
_LETTERS_PER_WORD = 4
_EXAMPLE = 40
# Rows by which it is measured what texts tell, and standard deviations of chance that the share must be above it.
_PREDICTED_ROWS, _SURE = 400, 2.5
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff\uac00-\ud7af]")

MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T,].{{0,40}})?|\d{{1,2}}:\d{{2}}(:\d{{2}})?( ?[ap]m)?"
    rf"|((mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?(\d{{1,2}}[ /.-]{MONTH}[a-z]*|{MONTH}[a-z]* \d{{1,2}})"
    r"\b(?=.*\d).{0,40}|\d{4}年\d{1,2}月(\d{1,2}日)?",
    re.IGNORECASE,
)
_LINK = re.compile(r"\S+@\S+\.\w+|(https?://|www\.)\S+|([a-z]:)?[\w.%+ -]*([\\/][\w.%+ -]+)+", re.IGNORECASE)
_OBJECT = re.compile(r"(\[\s*)?\{\s*[\"'].*[\]}]|\{.*\}", re.DOTALL)
_CODE = re.compile(r"(?=\S*\d)[!-~]+")
# Not a text that begins and ends with a mark, as [CLS] and [SEP].
_LIST = re.compile(r"""\[([^\[\]]*|\s*["'\[{].*)\]""", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
# Usual spellings of a missing value.
MISSING = frozenset(
    {"nan", "nat", "null", "(null)", "\\n", "none", "n/a", "na", "#n/a", "<na>", "(blank)", "-", "--", "?"}
)
# Cells of a label's own column: whether the row has the label.
_NO = "0 0.0 false no falsch nein faux non falso não fałsz nie onwaar nee ложь нет 否"
_YES = "1 1.0 true yes x ✓ ✔ wahr ja vrai oui verdadero sí vero verdadeiro sim prawda tak waar да 是"
_MARKS = {**dict.fromkeys(_NO.split(), False), **dict.fromkeys(_YES.split(), True)}


@dataclass(frozen=True)
class ColumnProfile:
    """Measures of a column from the non-empty `values` of `rows` sampled rows; shares are from 0 to 1."""

    name: str
    rows: int
    values: Sequence[str] = field(repr=False)

    @cached_property
    def key(self) -> str:
        """Return the name as names of `classify.tables.names` are written."""
        return normalize_name(self.name)

    @property
    def filled(self) -> float:
        """Return the share of rows with a value."""
        return len(self.values) / max(1, self.rows)

    @cached_property
    def kinds(self) -> int:
        """Return the number of different values."""
        return len(set(self.values))

    @property
    def distinct(self) -> float:
        """Return the number of different values per value."""
        return self.kinds / max(1, len(self.values))

    @property
    def rows_per_value(self) -> float:
        return len(self.values) / max(1, self.kinds)

    @cached_property
    def characters(self) -> float:
        """Return the mean number of characters."""
        return sum(map(len, self.values)) / max(1, len(self.values))

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.values), default=0)

    @cached_property
    def words(self) -> float:
        """Return the mean number of words; in scripts without spaces, estimated from the letters."""
        count = sum(len(value.split()) for value in self.values) / max(1, len(self.values))
        return max(count, self.characters / _LETTERS_PER_WORD) if self.share(_UNSPACED.search) > 0.5 else count

    @cached_property
    def numeric(self) -> float:
        """Return the share of numbers, besides spellings of a missing one; decimal commas or points."""
        values = [value for value in self.values if value.lower() not in MISSING]
        points = _share(values, is_number)
        return max(points, self.share(_DECIMAL_COMMA.fullmatch))

    @cached_property
    def fractional(self) -> float:
        """Return the share of numbers with a fraction."""
        return self.share(lambda value: not (parse_number(value) or 0.0).is_integer())

    @cached_property
    def dates(self) -> float:
        """Return the share of dates and times."""
        return self.share(_DATE.fullmatch)

    @cached_property
    def links(self) -> float:
        """Return the share of addresses and paths."""
        return self.share(_LINK.fullmatch)

    @cached_property
    def objects(self) -> float:
        """Return the share of objects of JSON, and lists of them."""
        return self.share(_OBJECT.fullmatch)

    @cached_property
    def lists(self) -> float:
        """Return the share of lists in brackets."""
        return self.share(_LIST.fullmatch)

    @cached_property
    def codes(self) -> float:
        """Return the share of words with a digit."""
        return self.share(_CODE.fullmatch)

    @cached_property
    def marks(self) -> float:
        """Return the share of cells that say yes or no."""
        return self.share(lambda value: parse_mark(value) is not None)

    @cached_property
    def splits(self) -> float:
        """Return the share of names of splits, such as train."""
        return self.share(is_split_word)

    @property
    def example(self) -> str:
        """Return one value, shortened."""
        value = " ".join(self.values[0].split()) if self.values else ""
        return repr(value if len(value) <= _EXAMPLE else value[: _EXAMPLE - 3] + "...")

    def share(self, holds: Callable[[str], object]) -> float:
        """Return the share of values for which something holds."""
        return _share(self.values, holds)


def profile(table: Table, column: str, unlabelled: str | None = None) -> ColumnProfile:
    """Measure a column; cells that hold `unlabelled` count as empty."""
    rows = np.linspace(0, len(table) - 1, min(len(table), SAMPLE)).astype(np.int64)
    values = (value.strip() for value in table.take(column, rows))
    return ColumnProfile(column, len(rows), [value for value in values if value and value != unlabelled])


def measure_predictable(texts: Sequence[str], classes: Sequence[str]) -> float:
    """Return how well the words of the texts predict a column's classes: 0 by chance, 1 all of them.

    The share of rows that a naive Bayes of words gets right of those that the commonest class does not, each row kept
    out of its model (McCallum and Nigam, 1998, "A Comparison of Event Models for Naive Bayes Text Classification");
    0 where that may be chance.
    """
    rows = np.linspace(0, len(texts) - 1, min(len(texts), _PREDICTED_ROWS)).astype(int).tolist()
    number_of: dict[str, int] = {}
    words = [sorted({number_of.setdefault(word, len(number_of)) for word in _split_words(texts[row])}) for row in rows]
    has = np.zeros((len(rows), len(number_of) + 1), dtype=np.float32)
    for row, numbers in enumerate(words):
        has[row, numbers] = 1
    names, target = np.unique([classes[row] for row in rows], return_inverse=True)
    is_class = np.eye(len(names), dtype=np.float32)[target]
    others = is_class.sum(0) - is_class  # (rows, classes) rows of each class besides the row itself
    total = has.sum(0)
    points = np.log(np.maximum(others, 0.3))
    for number in range(len(names)):
        rows_with = is_class[:, number] @ has - has * is_class[:, [number]]
        common = (total - has) / max(1, len(rows) - 1)
        share = (rows_with + 0.3 * common + 0.02) / (others[:, [number]] + 0.34)
        points[:, number] += (np.log(share) * has).sum(1) / np.sqrt(np.maximum(1, has.sum(1)))
    usual = float(is_class.mean(0).max())
    gain = float((points.argmax(1) == target).mean()) - usual
    chance = math.sqrt(usual * (1 - usual) / len(rows))
    return gain / (1 - usual) if usual < 1 and gain > _SURE * chance else 0.0


def _split_words(text: str) -> list[str]:
    """Return a text's words; pairs of letters where the script has no spaces."""
    text = text.lower()
    if _UNSPACED.search(text):
        return [text[place : place + 2] for place in range(len(text) - 1)]
    return re.findall(r"\w+", text)


def parse_number(text: str) -> float | None:
    """Return the number that a text is, with a decimal point or comma; None for anything else, such as 1_2."""
    text = text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text
    if "_" in text:  # which Python allows between digits
        return None
    try:
        return float(text)
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Return whether a text is a number with a decimal point."""
    return "," not in text and parse_number(text) is not None


def are_thousands(values: Sequence[str]) -> bool:
    """Return whether values with a comma may all be thousands, as 1,234; they may be fractions as well."""
    with_comma = [value.strip() for value in values if "," in value]
    return bool(with_comma) and all(map(_THOUSANDS.fullmatch, with_comma))


def parse_mark(cell: str) -> bool | None:
    """Return whether a cell of a label's column says 1, true, yes or x; None where it holds something else."""
    return _MARKS.get(cell.strip().lower())


def _share(values: Sequence[str], holds: Callable[[str], object]) -> float:
    return sum(bool(holds(value)) for value in values) / len(values) if values else 0.0

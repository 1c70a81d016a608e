"""Classify the values of a column: texts, classes, scores, several labels, or something else."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from classify.tables.dialect import to_number
from classify.tables.label_lists import are_lists
from classify.tables.table import Table

# Rows of the sample, spread evenly: a table may be sorted.
SAMPLE = 5_000
# A class has a short name and several rows, in small tables at least two.
_LONGEST_CLASS, _ROWS_A_CLASS, _FEW_CLASSES = 60, 4, 10
# A sentence may be a class in a column named like a label, if it has this many rows on average.
_ROWS_A_LONG_CLASS = 20
_FEW_ROWS = 10
# A text has several words, or as many letters in scripts without spaces. Most texts differ, and of a column that is
# named like a text at least a quarter.
_WORDS, _LETTERS = 3.0, 12.0
_DIFFERENT, _DIFFERENT_IF_NAMED = 0.5, 0.25
# More texts than these, of more characters, need not differ in a column that is named like a text.
_FEW_TEXTS, _LONG_TEXT = 10, 30
# More distinct whole numbers are counts or ages rather than classes, unless the column is named like a label.
_MOST_NUMBERS = 20
# Share of a column's values that must look alike.
_MOST = 0.95
_EXAMPLE = 40

MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
# Year, time and time zone; a line of a log or a chat begins with a date, and is longer.
_REST_OF_DATE = ".{0,40}"
# Values that are neither texts nor, if all differ, classes; by display name.
_ODD_KINDS: dict[str, re.Pattern[str]] = {
    "dates or times": re.compile(
        rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T,]{_REST_OF_DATE})?|\d{{1,2}}:\d{{2}}(:\d{{2}})?( ?[ap]m)?"
        rf"|((mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?(\d{{1,2}}[ /.-]{MONTH}[a-z]*|{MONTH}[a-z]* \d{{1,2}})"
        rf"\b(?=.*\d){_REST_OF_DATE}",
        re.IGNORECASE,
    ),
    "email addresses": re.compile(r"\S+@\S+\.\w+"),
    "links": re.compile(r"(https?://|www\.)\S+", re.IGNORECASE),
    "paths": re.compile(r"([a-z]:)?[\w.%+ -]*([\\/][\w.%+ -]+)+", re.IGNORECASE),
    "objects": re.compile(r"\{.*\}", re.DOTALL),
    "codes": re.compile(r"(?=\S*\d)[!-~]+"),
}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
# Not a text that begins and ends with a mark, as [CLS] and [SEP].
_LIST = re.compile(r"""\[([^\[\]]*|\s*["'\[{].*)\]""", re.DOTALL)
_OBJECTS = re.compile(r"""(\[\s*)?\{\s*["'].*[\]}]""", re.DOTALL)
_LEADING_ZERO = re.compile(r"0\d.*")
_NO_CLASSES = ("dates or times", "objects")
# Usual spellings of a missing value.
MISSING = frozenset({"nan", "null", "none", "n/a", "na", "#n/a", "<na>", "-", "--", "?"})
# Cells of a label's own column: whether the row has the label.
_MARKS = {
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    **dict.fromkeys(("1", "1.0", "true", "yes", "x", "✓", "✔"), True),
}


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of a column, from a sample of its non-empty values."""

    values: Sequence[str]

    @functools.cached_property
    def distinct(self) -> int:
        """Return the number of distinct values."""
        return len(set(self.values))

    @functools.cached_property
    def is_numeric(self) -> bool:
        """Return whether nearly all values are numbers, besides spellings of a missing one."""
        values = [value for value in self.values if value.lower() not in MISSING]
        points = _share(values, lambda value: "," not in value and parse_number(value) is not None)
        return max(points, _share(self.values, _DECIMAL_COMMA.fullmatch)) >= _MOST

    @functools.cached_property
    def odd_kind(self) -> str | None:
        """Return the kind of nearly all values, e.g. "numbers", if they are neither texts nor names."""
        if self.is_numeric:
            return "numbers"
        kinds = (kind for kind, form in _ODD_KINDS.items() if _share(self.values, form.fullmatch) >= _MOST)
        return next(kinds, None)

    @functools.cached_property
    def words(self) -> float:
        """Return the mean number of words; in scripts without spaces, estimated from the letters."""
        count = sum(len(value.split()) for value in self.values) / max(1, len(self.values))
        wide = _share(self.values, lambda value: any(character > "\u2e80" for character in value))
        return max(count, _WORDS * self.length / _LETTERS) if wide > 0.5 else count

    @functools.cached_property
    def length(self) -> float:
        """Return the mean number of characters."""
        return sum(map(len, self.values)) / max(1, len(self.values))

    @property
    def is_text(self) -> bool:
        """Return whether the values are texts: several words each, mostly distinct, and no lists, as of tokens."""
        return self._holds_words and not self.holds_lists

    @property
    def is_text_in_lists(self) -> bool:
        """Return whether the values are lists that stand for texts, as of tokens."""
        return self._holds_words and self.holds_lists

    @property
    def _holds_words(self) -> bool:
        """Return whether the values have several words each, and are mostly distinct."""
        return self.could_be_text and self.words >= _WORDS and self.distinct >= _DIFFERENT * len(self.values)

    @property
    def could_be_text(self) -> bool:
        """Return whether the values may be texts in a column named like a text: short or repeated ones, too."""
        enough = self.distinct >= _DIFFERENT_IF_NAMED * len(self.values)
        # Texts that several annotators labelled repeat, and are longer than names of classes.
        enough |= self.words >= _WORDS and self.length > _LONG_TEXT and self.distinct > _FEW_TEXTS
        return bool(self.values) and self.odd_kind is None and enough

    @property
    def is_class(self) -> bool:
        """Return whether the values are classes: short, few, and repeated."""
        short = max(map(len, self.values), default=0) <= _LONGEST_CLASS
        return short and self.could_be_class and not (self.is_numeric and self.distinct > _MOST_NUMBERS)

    @property
    def could_be_class(self) -> bool:
        """Return whether the values may be classes in a column named like a label: many numbers, or sentences, too."""
        rows = len(self.values)
        most = max(rows / _ROWS_A_CLASS, min(rows / 2, _FEW_CLASSES)) if rows >= _FEW_ROWS else rows
        if not 2 <= self.distinct <= most or self.odd_kind in _NO_CLASSES or self.is_score:
            return False
        return not self.is_too_long

    @property
    def is_too_long(self) -> bool:
        """Return whether values are longer than names of classes, and not repeated in many rows each."""
        repeated = self.distinct * _ROWS_A_LONG_CLASS <= len(self.values)
        return max(map(len, self.values), default=0) > _LONGEST_CLASS and not repeated

    @property
    def why_no_class(self) -> str:
        """Describe the values of a column named like a label, where they are no classes."""
        if self.odd_kind in _NO_CLASSES:
            return f"are {self.odd_kind}, not classes"
        if self.is_too_long:
            return f"are longer than names of classes ({_LONGEST_CLASS} characters)"
        return "rarely repeat, unlike class labels"

    @property
    def repeats(self) -> bool:
        """Return whether the values may be classes with few rows each: short names, twice each on average."""
        if not 2 <= self.distinct <= len(self.values) / 2 or self.is_text:
            return False
        return self.odd_kind in (None, "codes") and max(map(len, self.values)) <= _LONGEST_CLASS

    @functools.cached_property
    def is_score(self) -> bool:
        """Return whether the values are numbers on a scale: with fractions, and many distinct ones.

        Numbers such as 038.9 are codes if they repeat.
        """
        is_code = 2 * self.distinct <= len(self.values) and any(map(_LEADING_ZERO.fullmatch, self.values))
        if not self.is_numeric or self.distinct <= 10 or is_code or are_thousands(self.values):
            return False
        return _share(self.values, lambda value: not (parse_number(value) or 0.0).is_integer()) > 0.1

    @property
    def holds_lists(self) -> bool:
        """Return whether the values are lists in brackets."""
        return _share(self.values, _LIST.fullmatch) >= _MOST

    @property
    def holds_objects(self) -> bool:
        """Return whether the values are objects of JSON, or lists of them."""
        return _share(self.values, _OBJECTS.fullmatch) >= _MOST

    @functools.cached_property
    def is_list(self) -> bool:
        """Return whether the values are lists of classes such as "a,b" or "a|b"; "3,1" in all rows is a number."""
        return not self.is_numeric and self.odd_kind not in _NO_CLASSES and are_lists(self.values)

    @property
    def is_numbers_or_lists(self) -> bool:
        """Return whether values such as "3" and "3,5" may be numbers with a decimal comma, or lists of numbers."""
        if not are_lists(self.values) or any(parse_number(value) is None for value in self.values):
            return False
        parts = (value.split(",") for value in self.values)
        return all(len(set(labels)) == len(labels) for labels in parts)  # no list has a label twice, as 3,3 would

    @property
    def example(self) -> str:
        """Return one value, shortened."""
        value = " ".join(self.values[0].split()) if self.values else ""
        return repr(value if len(value) <= _EXAMPLE else value[: _EXAMPLE - 3] + "...")


def parse_number(text: str) -> float | None:
    """Return the number that a text is, with a decimal point or comma; None for anything else."""
    return to_number(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text)


def are_thousands(values: Sequence[str]) -> bool:
    """Return whether values with a comma may all be thousands, as 1,234; they may be fractions as well."""
    with_comma = [value.strip() for value in values if "," in value]
    return bool(with_comma) and all(map(_THOUSANDS.fullmatch, with_comma))


def column_stats(table: Table, column: str, unlabelled: str | None = None) -> ColumnStats:
    """Look at a sample of a column; cells that hold `unlabelled` count as empty."""
    rows = np.linspace(0, len(table) - 1, min(len(table), SAMPLE)).astype(np.int64)
    values = (value.strip() for value in table.take(column, rows))
    return ColumnStats([value for value in values if value and value != unlabelled])


def parse_mark(cell: str) -> bool | None:
    """Return whether a cell of a label's column says 1, true, yes or x; None where it holds something else."""
    return _MARKS.get(cell.strip().lower())


def _share(values: Sequence[str], holds: Callable[[str], object]) -> float:
    return sum(bool(holds(value)) for value in values) / len(values) if values else 0.0

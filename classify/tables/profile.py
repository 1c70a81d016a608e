"""Measures of a column: what its cells look like, and what the texts tell of it. No names, no opinions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from classify.tables.rules import names_of
from classify.tables.table import Table, normalize_text

# Rows of the sample, spread evenly, since a table may be sorted.
SAMPLE = 2_000
# Share of cells that must look alike.
MOST = 0.95
# In scripts without spaces between words a word has about two letters to four.
_LETTERS_PER_WORD = 3
_EXAMPLE = 40
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff\uac00-\ud7af]")
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T,].{{0,40}})?|\d{{1,2}}:\d{{2}}(:\d{{2}})?( ?[ap]m)?"
    rf"|(\w{{3,9}},? )?(\d{{1,2}}[ /.-]{_MONTH}[a-z]*|{_MONTH}[a-z]* \d{{1,2}})\b(?=.*\d).{{0,40}}"
    r"|\d{4}年\d{1,2}月(\d{1,2}日)?",
    re.IGNORECASE,
)
_LINK = re.compile(r"\S+@\S+\.\w+|(https?://|www\.)\S+|([a-z]:)?[\w.%+ -]*([\\/][\w.%+-]+){2,}", re.IGNORECASE)
_MARKUP = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_OBJECT = re.compile(r"\{.*\}|\[\s*[\[{].*\]", re.DOTALL)
_LIST = re.compile(r"""\[\s*["'].*\]""", re.DOTALL)
_CODE = re.compile(r"(?=\S*\d)[!-~]+")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
# Different numbers up to which they are classes, and the share of fractions from which more are scores.
_FEWEST_SCORES = 10
_FRACTIONAL = 0.1
# Folds of the cross-validation, and what a class counts for: rows of a class below which chance decides.
_FOLDS = 5
_FEWEST_ROWS = 5
# Classes that are told apart, the most frequent ones.
_MOST_CLASSES = 50
# Standard errors by which texts must tell a column better than chance does.
SURE = 2.0


@dataclass(frozen=True)
class Profile:
    """A column by the non-empty cells, `values`, of `rows` sampled rows. Shares are from 0 to 1."""

    name: str
    rows: int
    values: Sequence[str] = field(repr=False)

    @property
    def filled(self) -> float:
        return len(self.values) / max(1, self.rows)

    @cached_property
    def kinds(self) -> int:
        return len(set(self.values))

    @property
    def distinct(self) -> float:
        return self.kinds / max(1, len(self.values))

    @cached_property
    def words(self) -> float:
        return sum(map(count_words, self.values)) / max(1, len(self.values))

    @cached_property
    def marks(self) -> float:
        return self.share(lambda value: parse_mark(value) is not None)

    @cached_property
    def unreadable(self) -> float:
        return max(self.share(pattern.fullmatch) for pattern in (_DATE, _LINK, _OBJECT))

    @cached_property
    def codes(self) -> float:
        return self.share(_CODE.fullmatch)

    @cached_property
    def markup(self) -> float:
        return self.share(_MARKUP.search)

    @cached_property
    def is_numeric(self) -> bool:
        return bool(self.values) and self.share(lambda value: parse_number(value) is not None) >= MOST

    @property
    def is_score(self) -> bool:
        """Whether values are numbers on a scale: many kinds, with fractions."""
        if not self.is_numeric or self.kinds <= _FEWEST_SCORES:
            return False
        return self.share(lambda value: not (parse_number(value) or 0.0).is_integer()) > _FRACTIONAL

    @property
    def could_be_text(self) -> bool:
        is_other = max(self.unreadable, self.codes, self.share(_LIST.fullmatch)) >= MOST
        return bool(self.values) and not self.is_numeric and not is_other

    @property
    def reads_like_text(self) -> bool:
        return self.could_be_text and self.words >= 3 and self.distinct >= 0.5

    @property
    def recurs(self) -> bool:
        """Whether values come again as classes do: at least two of them, each in two rows or more on average."""
        return 2 <= self.kinds <= len(self.values) / 2 and not self.is_score

    @property
    def example(self) -> str:
        if not self.values:
            return "empty"
        value = max(self.values, key=self.values.count) if self.kinds < 50 else self.values[0]
        return repr(value if len(value) <= _EXAMPLE else f"{value[: _EXAMPLE - 3]}...")

    def share(self, holds: Callable[[str], object]) -> float:
        return sum(bool(holds(value)) for value in self.values) / len(self.values) if self.values else 0.0


def sample_rows(count: int, limit: int = SAMPLE) -> npt.NDArray[np.int64]:
    return np.linspace(0, max(0, count - 1), min(count, limit)).astype(np.int64)


def profile(table: Table, column: str, missing: str | None = None) -> Profile:
    """Measure a column on a sample of its rows; cells equal to `missing` count as empty."""
    rows = sample_rows(len(table))
    values = (value.strip() for value in table.take(column, rows))
    return Profile(column, len(rows), [value for value in values if value and value != missing])


def measure_told(texts: Sequence[str], classes: Sequence[str]) -> float:
    """How far the texts tell a column's values better than chance does, in standard errors.

    A naive Bayes of words (McCallum and Nigam, 1998), cross-validated: the mean over classes of the share of their rows
    that it gets right, less the share that guessing would. Classes count alike, since most rows of one class can be
    right without reading a text. Copies of a text count once: they would tell anything.
    """
    first = {normalize_text(text): row for row, text in reversed(list(enumerate(texts)))}
    rows = np.array(sorted(first.values()), dtype=np.int64)
    names, target = np.unique([classes[row] for row in rows], return_inverse=True)
    counts = np.bincount(target, minlength=1)
    fewest = min(_FEWEST_ROWS, np.sort(counts)[-2]) if len(counts) > 1 else 0
    counted = [number for number in np.argsort(-counts, kind="stable")[:_MOST_CLASSES] if counts[number] >= fewest]
    if len(counted) < 2:
        return 0.0
    kept = np.isin(target, counted)
    names, target = np.unique(target[kept], return_inverse=True)
    number_of: dict[str, int] = {}
    words = [
        [number_of.setdefault(word, len(number_of)) for word in sorted(set(_split_words(texts[row])))]
        for row in rows[kept].tolist()
    ]
    row_of = np.repeat(np.arange(len(words)), list(map(len, words)))
    word_of = np.array([word for line in words for word in line], dtype=np.int64)
    fold_of = np.random.default_rng(0).permutation(len(words)) % _FOLDS  # rows may come in a pattern
    predicted = np.empty(len(words), dtype=np.int64)
    for fold in range(_FOLDS):
        inside = fold_of[row_of] != fold
        pairs = target[row_of[inside]] * len(number_of) + word_of[inside]
        has = np.bincount(pairs, minlength=len(names) * len(number_of)).reshape(len(names), -1)
        rows_of_class = np.bincount(target[fold_of != fold], minlength=len(names))[:, None]
        # Smoothed towards the share of all rows, so that a rare class does not win by words that it lacks.
        common = (has.sum(0) + 0.1) / len(words)
        weight = np.log((has + common) / (rows_of_class + 1))
        for row in np.flatnonzero(fold_of == fold).tolist():
            predicted[row] = weight[:, words[row]].sum(1).argmax()
    recalls = np.array([(predicted[target == number] == number).mean() for number in range(len(names))])
    chance = 1 / len(names)
    error = math.sqrt(float((chance * (1 - chance) / np.bincount(target)).sum())) / len(names)
    return float((recalls.mean() - chance) / error)


def _split_words(text: str) -> list[str]:
    """A text's words; pairs of letters where the script has no spaces."""
    text = text.lower()
    if _UNSPACED.search(text):
        return [text[place : place + 2] for place in range(len(text) - 1)]
    return re.findall(r"\w+", text)


def count_words(text: str) -> float:
    return max(len(text.split()), len(_UNSPACED.findall(text)) / _LETTERS_PER_WORD)


def parse_number(text: str) -> float | None:
    """The number that a text is, with a decimal point or comma; None for anything else, such as 1_2 or nan."""
    text = text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text
    try:
        number = float(text) if "_" not in text else math.nan  # which Python allows between digits
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse_mark(cell: str) -> bool | None:
    """Whether a cell says 1, true, yes or x; None where it says something else."""
    word = cell.strip().lower()
    return True if word in names_of("yes") else False if word in names_of("no") else None

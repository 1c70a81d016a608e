"""What a column's values look like: texts, classes, scores, several labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from classify.data.dialect import is_number
from classify.data.table import Table

# Rows that are looked at; what a column holds shows in fewer.
_SAMPLE = 5_000
# A class has a short name and several rows. A text has several words, or as many letters in scripts without spaces.
_LONGEST_CLASS, _ROWS_A_CLASS = 60, 4
_WORDS, _LETTERS = 3.0, 12.0
# Of the values of a column, the share that must look alike.
_MOST = 0.95


@dataclass(frozen=True)
class Looks:
    """What stands in a column, from a sample of its values that are not empty."""

    values: Sequence[str]

    @property
    def distinct(self) -> int:
        """Different values."""
        return len(set(self.values))

    @property
    def numbers(self) -> bool:
        """Whether nearly all values are numbers."""
        return _share(self.values, is_number) >= _MOST

    @property
    def is_text(self) -> bool:
        """Whether the values are texts: of several words, and hardly two alike."""
        if not self.values or self.numbers or self.distinct < len(self.values) / 2:
            return False
        words = sum(len(value.split()) for value in self.values) / len(self.values)
        letters = sum(map(len, self.values)) / len(self.values)
        wide = sum(any(character > "\u2e80" for character in value) for value in self.values) / len(self.values)
        return words >= _WORDS or (wide > 0.5 and letters >= _LETTERS)

    @property
    def is_class(self) -> bool:
        """Whether the values are classes: short, few, and each again and again."""
        if self.distinct < 2 or self.distinct > len(self.values) / _ROWS_A_CLASS:
            return False
        return max(map(len, self.values)) <= _LONGEST_CLASS and not self.is_score

    @property
    def is_score(self) -> bool:
        """Whether the values are numbers on a scale: with fractions, of more kinds than classes have."""
        fractions = _share(self.values, lambda value: is_number(value) and not float(value).is_integer())
        return self.numbers and fractions > 0.1 and self.distinct > 10

    @property
    def is_list(self) -> bool:
        """Whether the values are lists of classes, such as "a,b" or "a|b": the same parts in many rows, two in some."""
        parts = [re.split(r"[,|;] ?", value) for value in self.values]
        several = sum(len(one) > 1 for one in parts)
        counts = Counter(part for one in parts for part in one)
        return (
            several > len(parts) / 100
            and len(counts) <= len(parts) / _ROWS_A_CLASS
            and len(counts) < self.distinct
            and max(map(len, counts)) <= _LONGEST_CLASS
            and max(len(part.split()) for part in counts) <= 3
        )


def looks_of(table: Table, column: str) -> Looks:
    """What stands in a column of a table."""
    values = table.arrow.column(column).slice(0, _SAMPLE).to_pylist()
    return Looks([value.strip() for value in values if value.strip()])


def switches(table: Table) -> list[str]:
    """The columns that hold 0 and 1 alone: several of them are several labels a row."""
    return [name for name in table.columns if set(looks_of(table, name).values) == {"0", "1"}]


def _share(values: Sequence[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, values)) / len(values) if values else 0.0

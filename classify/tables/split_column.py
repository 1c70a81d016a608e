"""The column that names the split of each row, such as train and test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from classify.errors import InputError, list_some
from classify.tables import rules
from classify.tables.source import Question, QuestionError
from classify.tables.table import Table

# Value of --split-column by which no column names splits.
NO_COLUMN = "none"
# A column with more different values holds something else than splits.
_MOST = 10
_TRAIN = rules.SPLITS.index("train")


@dataclass(frozen=True)
class SplitColumn:
    """A column, and the split that each of its values means, as an index into `SPLITS`; None for no split."""

    name: str
    meaning: Mapping[str, int | None]

    @property
    def is_complete(self) -> bool:
        splits = set(self.meaning.values())
        return None not in splits and _TRAIN in splits and len(splits) > 1

    def values_of(self, split: int) -> list[str]:
        return [value for value, meant in self.meaning.items() if meant == split]


def require_splits(table: Table, column: str) -> SplitColumn:
    """The column of splits that a flag names. Raises InputError where it holds something else."""
    splits = _read(table, column)
    if not splits.is_complete:
        unknown = [value for value, meant in splits.meaning.items() if meant is None]
        expected = "rows to train on, and others to validate or test on"
        if unknown:
            expected = "names of splits such as train, validation, test in each row"
        shown = list_some(unknown or list(splits.meaning), show=repr)
        raise InputError(f"--split-column {column}: expected {expected} of {table.path}. Got {shown} instead.")
    return splits


def find_split_column(table: Table, taken: Collection[str | None]) -> SplitColumn | None:
    """The column whose values all are names of splits, beside at least two others; `taken` are named by flags.

    Raises QuestionError where only some values of a column called split are.
    """
    for column in table.columns if len(table.columns) > 2 else ():
        is_named = rules.is_named(column, "split")
        most = len(table) // 2 if is_named else _MOST
        if column not in taken and len(table.dictionary_encode(column)[0]) <= most:
            splits = _read(table, column)
            words = list(map(rules.is_split_word, splits.meaning))
            if splits.is_complete and all(words):
                return splits
            if is_named and any(words) and not all(words):
                others = tuple(repr(value) for value, meant in splits.meaning.items() if meant is None)
                flags = (f"--split-column {NO_COLUMN} to use none", "train, validation or test in all rows")
                raise QuestionError(table.path, [Question(f"which split is meant in column {column!r}", others, flags)])
    return None


def _read(table: Table, column: str) -> SplitColumn:
    return SplitColumn(column, {value: rules.find_split(value) for value in table.dictionary_encode(column)[0]})

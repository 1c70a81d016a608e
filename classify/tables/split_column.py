"""Find the column that names the split of each row, such as train and test."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from classify.errors import SHOWN, InputError, list_some
from classify.tables import names
from classify.tables.decide import Doubt, DoubtError
from classify.tables.names import SPLIT_NAMES, SPLITS, is_split_word, normalize_name, parse_split_name
from classify.tables.profile import parse_mark
from classify.tables.table import Table

# Value of --split-column by which no column names splits.
NO_COLUMN = "none"
# A column with more different values holds something else than splits.
_MOST = 10
_TRAIN, _TEST = SPLITS.index("train"), SPLITS.index("test")
# A column that says yes or no of a split.
_YES_NO = re.compile(r"(is|in)_?(?P<split>train|training|test|testing|holdout)", re.IGNORECASE)


@dataclass(frozen=True)
class SplitColumn:
    """A column, and the split that each of its values means, as an index into `SPLITS`; None for no split."""

    name: str
    meaning: Mapping[str, int | None]

    @property
    def is_complete(self) -> bool:
        """Return whether all values are splits, the training split and another one among them."""
        splits = set(self.meaning.values())
        return None not in splits and _TRAIN in splits and len(splits) > 1

    @property
    def unknown(self) -> list[str]:
        """Return the values that mean no split."""
        return [value for value, split in self.meaning.items() if split is None]

    def values_of(self, split: int) -> list[str]:
        """Return the values that mean a split."""
        return [value for value, meant in self.meaning.items() if meant == split]


def read_split_column(table: Table, column: str) -> SplitColumn:
    """Return what the values of a column mean as splits."""
    values = pc.unique(table.arrow.column(column)).to_pylist()
    says = _YES_NO.fullmatch(normalize_name(column))
    marks = {value: parse_mark(value) for value in values}
    if says is not None and None not in marks.values():
        named = parse_split_name(says["split"])
        other = _TEST if named == _TRAIN else _TRAIN
        return SplitColumn(column, {value: named if mark else other for value, mark in marks.items()})
    return SplitColumn(column, {value: parse_split_name(value) for value in values})


def require_splits(table: Table, column: str) -> SplitColumn:
    """Return a column of splits that a flag names. Raises InputError where it holds something else."""
    splits = read_split_column(table, column)
    if not splits.is_complete:
        expected = "names of splits such as train, validation, test in each row"
        if not splits.unknown:
            expected = "rows to train on, and others to validate or test on"
        shown = list_some(splits.unknown or list(splits.meaning), show=repr)
        raise InputError(f"--split-column {column}: expected {expected} of {table.path}. Got {shown} instead.")
    return splits


def find_splits(table: Table, taken: Collection[str | None]) -> list[SplitColumn]:
    """Return the columns of splits, those with a usual name first; `taken` are columns that flags name.

    Columns of texts and labels may hold such words, too, so one with such a name is none, nor is one of two columns.
    """
    found = []
    for column in table.columns if len(table.columns) > 2 else ():
        key = normalize_name(column)
        if column in taken or key in names.USUAL_NAMES:
            continue
        first = table.arrow.column(column).slice(0, SHOWN).to_pylist()
        if key in SPLIT_NAMES or _YES_NO.fullmatch(key) or all(map(is_split_word, first)):
            splits = read_split_column(table, column)
            if splits.is_complete and (key in SPLIT_NAMES or _YES_NO.fullmatch(key) or are_words(splits)):
                found.append(splits)
    return sorted(found, key=lambda splits: normalize_name(splits.name) not in SPLIT_NAMES)


def are_words(splits: SplitColumn) -> bool:
    return all(map(is_split_word, splits.meaning))


def ask_about_splits(table: Table, taken: Collection[str | None]) -> None:
    """Raise DoubtError where a column named split, or one of a few values with train, holds other values, too."""
    for column in table.columns if len(table.columns) > 2 else ():
        key = normalize_name(column)
        few = pc.count_distinct(table.arrow.column(column)).as_py() <= _MOST
        if column in taken or key in names.USUAL_NAMES or not (few or key in SPLIT_NAMES):
            continue
        splits = read_split_column(table, column)
        says_train = not {value.strip().lower() for value in splits.meaning}.isdisjoint(names.SPLIT_WORDS[_TRAIN])
        says_train = says_train and (few or len(set(splits.meaning.values())) > 2)
        if splits.unknown and len(splits.meaning) > 1 and ((few and key == SPLIT_NAMES[0]) or says_train):
            question = f"the split of rows with {list_some(splits.unknown, show=repr)} in {column!r}"
            way = f"--split-column {column} once they are train, validation or test, or --split-column {NO_COLUMN}"
            raise DoubtError(table.path, [Doubt(question, ("none of train, validation and test",), way)])

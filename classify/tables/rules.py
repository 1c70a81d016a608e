"""What names of columns and splits say. The names are data, in names.toml; what cells say is measured in `profile`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from classify.errors import InputError, list_some
from classify.tables.source import Question, QuestionError
from classify.tables.table import Table, normalize_text

SPLITS = ("train", "eval", "test")
# Value of --split-column by which no column names splits.
NO_COLUMN = "none"
# A column with more different values holds something else than splits.
_MOST_SPLITS = 10
# Rows by which a column of texts is told from one of names.
_FIRST_ROWS = 1_000
_TRAIN = SPLITS.index("train")
# Spaces and invisible characters around a name, as web pages and spreadsheets leave them.
_INVISIBLE = " \t\r\n\u00a0\u200b\ufeff"
_HEADER_ROLES = ("text", "title", "label", "group", "id", "split")


@cache
def _roles() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("classify.tables").joinpath("names.toml").read_text(encoding="utf-8"))


@cache
def names_of(role: str) -> frozenset[str]:
    return frozenset(name for names in _roles()[role].values() for name in names.split())


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    both = _roles()["pairs"]
    return tuple(zip(both["first"].split(), both["second"].split(), strict=True))


def normalize_name(name: str) -> str:
    """A column's name in lower case, without spaces around it, with _ between its words; also of CamelCase."""
    apart = re.sub(r"(?<=[a-zß-ÿ])(?=[A-Z])", "_", name.strip(_INVISIBLE))
    return re.sub(r"[\s_\-\u200b\ufeff]+", "_", normalize_text(apart))


def is_named(name: str, role: str) -> bool:
    return normalize_name(name) in names_of(role)


def is_header_name(name: str) -> bool:
    return any(is_named(name, role) for role in _HEADER_ROLES)


def find_split(name: str) -> int | None:
    """The split that a name such as train, dev or oos_test means, as an index into `SPLITS`.

    None where it means none, or several, as `dev-test` does: validation in one data set, the test in another.
    """
    words = re.findall(r"[a-z]+|[^\W\d_]+", re.sub(r"h[oe]ld[ _-]out", "holdout", name.lower()))
    splits = {number for number, split in enumerate(SPLITS) if not names_of(split).isdisjoint(words)}
    return splits.pop() if len(splits) == 1 else None


def is_split_word(value: str) -> bool:
    """Whether a value is the name of a split, of two words at most, such as private_test."""
    return 0 < len(re.findall(r"[^\W_]+", value)) <= 2 and find_split(value) is not None


@dataclass(frozen=True)
class SplitColumn:
    """A column, and the split that each of its values means, as an index into `SPLITS`; None for no split."""

    name: str
    meaning: Mapping[str, int | None]

    @property
    def is_complete(self) -> bool:
        splits = set(self.meaning.values())
        return None not in splits and _TRAIN in splits and len(splits) > 1

    def parts(self, table: Table) -> npt.NDArray[np.int8]:
        """(rows,) the split of each row."""
        values, numbers = table.dictionary_encode(self.name)
        return np.array([self.meaning[value] for value in values], dtype=np.int8)[numbers]


def require_splits(table: Table, column: str) -> SplitColumn:
    """The column of splits that a flag names. Raises InputError where it holds something else."""
    splits = _read_splits(table, column)
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
        says_split = is_named(column, "split")
        most = len(table) // 2 if says_split else _MOST_SPLITS
        # The first rows tell texts from names; encoding a column of texts would cost their memory again.
        first = () if column in taken else table.take(column, np.arange(min(len(table), _FIRST_ROWS)))
        if first and len({*first}) <= most and len(table.dictionary_encode(column)[0]) <= most:
            splits = _read_splits(table, column)
            words = list(map(is_split_word, splits.meaning))
            if splits.is_complete and all(words):
                return splits
            if says_split and any(words) and not all(words):
                others = tuple(repr(value) for value, meant in splits.meaning.items() if meant is None)
                flags = (f"--split-column {NO_COLUMN} to use none", "train, validation or test in all rows")
                raise QuestionError(table.path, [Question(f"which split is meant in column {column!r}", others, flags)])
    return None


def _read_splits(table: Table, column: str) -> SplitColumn:
    return SplitColumn(column, {value: find_split(value) for value in table.dictionary_encode(column)[0]})

"""Find groups of rows on which a model is worse than on the others, by more than chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import fisher_exact

from classify.data.languages import UNKNOWN, detect_languages
from classify.evaluation.metrics import holm, wilson_interval
from classify.tables.profile import parse_number

# Rows that a slice and the rest have at least: fewer show nothing.
_FEWEST = 20
# Parts of an ordered column.
_PARTS = 5
# Values of a column up to which each is a slice.
_VALUES = 50
# Share of wrong conclusions, over all slices together.
_LEVEL = 0.05
_DATE = re.compile(r"\d{4}-\d\d-\d\d")

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


class Slice(NamedTuple):
    """Rows that share a property: `kind` is the property, `value` its value."""

    kind: str
    value: str
    rows: Rows


@dataclass(frozen=True)
class WeakSlice:
    """A slice, its rows, their mean score with its 95 % interval, the mean of the others, and a corrected p-value."""

    kind: str
    value: str
    rows: int
    score: float
    interval: tuple[float, float]
    rest: float
    p: float


def list_slices(texts: Sequence[str], columns: Mapping[str, Sequence[str]], *, several_languages: bool) -> list[Slice]:
    """The slices of rows by text length, language, and the values of `columns`.

    Columns of numbers or ISO 8601 dates with more than 50 values are cut into fifths; empty cells are in none.
    """
    found = list(_cut("characters", np.array([len(text) for text in texts], dtype=np.float64), None))
    if several_languages:
        found += _group("language", [next(iter(detect_languages([text]).shares), UNKNOWN) for text in texts])
    for name, cells in columns.items():
        filled = list(filter(None, cells))
        if len(set(cells)) <= _VALUES:
            found += _group(name, cells)
        elif None not in map(parse_number, filled):
            numbers = [parse_number(cell) if cell else np.nan for cell in cells]
            found += _cut(name, np.array(numbers, dtype=np.float64), cells)
        elif all(map(_DATE.match, filled)):
            order = {cell: float(place) for place, cell in enumerate(sorted(set(filled)))}
            found += _cut(name, np.array([order.get(cell, np.nan) for cell in cells]), cells)
    return found


def _group(kind: str, cells: Sequence[str]) -> Iterator[Slice]:
    values, places = np.unique(np.array(cells, dtype=object).astype(str), return_inverse=True)
    for number, value in enumerate(values.tolist()):
        yield Slice(kind, value or "empty", np.flatnonzero(places == number))


def _cut(kind: str, numbers: npt.NDArray[np.float64], cells: Sequence[str] | None) -> Iterator[Slice]:
    """Yield fifths by rising number; equal numbers may be in two of them."""
    order = np.argsort(numbers, kind="stable")[: len(numbers) - int(np.isnan(numbers).sum())]
    for part in np.array_split(order, _PARTS):
        if len(part):
            ends = [f"{numbers[row]:g}" if cells is None else cells[row] for row in (part[0], part[-1])]
            yield Slice(kind, " to ".join(ends), part)


def find_weak(slices: Sequence[Slice], scores: Scores, independent: Rows) -> tuple[list[WeakSlice], int]:
    """The slices whose `scores` (rows,) are lower than the others', the worst first, and how many were tested.

    Only `independent` rows count, one of each text: copies are right or wrong together.

    Fisher's exact test, one-sided, of right and wrong; of other scores, of those above the median. Corrected for the
    number of slices (Holm, 1979).
    """
    scores = scores[independent]
    is_binary = bool(np.isin(scores, (0, 1)).all())
    good = scores == 1 if is_binary else scores > np.median(scores)
    tested, p = [], []
    for one in slices:
        inside = np.isin(independent, one.rows)
        if _FEWEST <= inside.sum() <= len(scores) - _FEWEST:
            table = [[(part & good).sum(), (part & ~good).sum()] for part in (inside, ~inside)]
            tested.append((one, inside))
            p.append(float(fisher_exact(table, alternative="less").pvalue))
    weak = []
    for ((kind, value, _), inside), corrected in zip(tested, holm(np.array(p)).tolist(), strict=True):
        if corrected < _LEVEL:
            own, rest = scores[inside], float(scores[~inside].mean())
            interval = _interval(own, is_binary=is_binary)
            weak.append(WeakSlice(kind, value, len(own), float(own.mean()), interval, rest, corrected))
    return sorted(weak, key=lambda one: one.score - one.rest), len(tested)


def _interval(scores: Scores, *, is_binary: bool) -> tuple[float, float]:
    if is_binary:
        low, high = wilson_interval(scores.sum(), len(scores))
        return float(low), float(high)
    mean, error = float(scores.mean()), float(scores.std(ddof=1)) / len(scores) ** 0.5
    low, high = mean - 1.96 * error, mean + 1.96 * error
    return (max(0.0, low), min(1.0, high)) if scores.min() >= 0 and scores.max() <= 1 else (low, high)

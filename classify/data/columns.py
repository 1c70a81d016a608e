"""Detect the text and label columns from names and values, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from classify.data.content import ColumnStats, binary_columns, column_stats
from classify.data.names import GROUP_NAMES, LABEL_NAMES, PAIRED_NAMES, TEXT_NAMES
from classify.data.table import Table
from classify.data.text_hashes import EMPTY
from classify.decision import Decision
from classify.errors import InputError

# Candidates and columns that a refusal names, and how much longer the texts of another column must be to count.
_SHOWN, _LISTED = 5, 20
_LONGER = 1.5


@dataclass(frozen=True)
class Columns:
    """The text and label columns, and the decisions behind them."""

    text: str
    label: str
    decisions: tuple[Decision, ...]


def find_columns(table: Table, text_column: str | None, label_column: str | None) -> Columns:
    """Return the columns that are named by a flag, or those whose names and values leave no doubt.

    Raises InputError with every fault, and with the candidates where there is doubt.
    """
    faults: list[str] = []
    text = _named(table, text_column, "--text-column", faults)
    label = _named(table, label_column, "--label-column", faults)
    if text_column is not None and text_column == label_column:
        faults.append(f"--text-column and --label-column both name {text_column!r}; give two columns of {table.path}.")
    if len(table.columns) < 2 and not faults:
        got = f"the one column {table.columns[0]!r}" if table.columns else "no column with values"
        faults.append(
            f"{table.path}: expected a column with texts and one with labels. Got {got} instead; give labels in a "
            "separate file with --labels."
        )
    if faults:
        raise InputError(*faults)
    search = _Search(table, {name: column_stats(table, name) for name in table.columns})
    decisions: list[Decision] = []
    for names in PAIRED_NAMES:
        if text is None and label is None and set(names) <= set(table.columns):
            text, label = names
            decisions += [
                Decision(f"{what} column", name, "matched by both column names", f"--{what}-column")
                for what, name in (("text", text), ("label", label))
            ]
    doubts: list[_Doubt] = []
    for what, find in (("text", search.find_text), ("label", search.find_label)):
        if (text if what == "text" else label) is not None:
            continue
        result = find(label if what == "text" else text)
        if isinstance(result, _Doubt):
            doubts.append(result)
            continue
        decisions.append(Decision(f"{what} column", result.column, result.why, f"--{what}-column"))
        if what == "text":
            text = result.column
        else:
            label = result.column
    if doubts:
        line = " ".join(f"--{doubt.what}-column {doubt.proposed!r}".replace("'", '"') for doubt in doubts)
        raise InputError(
            f"{table.path}: {' and '.join(doubt.words for doubt in doubts)}; the columns are: {_listed(table)}. "
            f"Name {'it' if len(doubts) == 1 else 'them'}, e.g. {line}"
            f"{'' if table.has_names else ' (there is no header)'}."
        )
    assert text is not None
    assert label is not None
    return Columns(text, label, tuple(decisions))


@dataclass(frozen=True)
class _Found:
    """A column and the reason it was taken."""

    column: str
    why: str


@dataclass(frozen=True)
class _Doubt:
    """Why no column was taken for a text or a label, and the one to propose."""

    what: str
    words: str
    proposed: str


@dataclass(frozen=True)
class _Search:
    """The columns of a table, and their statistics."""

    table: Table
    stats: dict[str, ColumnStats]

    def find_text(self, taken: str | None) -> _Found | _Doubt:
        """Find the text column: a usual name counts where it holds texts, and no other column longer ones."""
        free = [name for name in self.stats if name != taken]
        texts = [name for name in free if self.stats[name].is_text]
        named = [name for name in free if _key(name) in TEXT_NAMES]
        fitting = [name for name in named if self.stats[name].could_be_text]
        first = [name for name in fitting if _key(name) == TEXT_NAMES[0]]
        fitting = first or fitting
        if len(fitting) == 1:
            length = self.stats[fitting[0]].length
            clear = bool(first) and self.stats[first[0]].is_text
            longer = [name for name in texts if name not in fitting and self.stats[name].length > _LONGER * length]
            if clear or not longer:
                return _Found(fitting[0], "matched by column name")
            return self._doubt("text", [*fitting, *longer], "another column holds longer texts")
        if fitting:
            return self._doubt("text", fitting, "several columns could hold the text")
        if len(texts) == 1:
            return _Found(texts[0], f"the only column of texts{self._why_not(named)}")
        if not texts and len(free) == 2 and taken is None and not named:
            short = [name for name in free if self.stats[name].could_be_text]
            other = [name for name in free if self.stats[name].could_be_class]
            if len(short) == 1 and other == [name for name in free if name not in short]:
                return _Found(short[0], "it has more different values than the other column")
        if taken is not None and len(free) == 1 and not named and self.stats[free[0]].could_be_text:
            return _Found(free[0], "it is the other column")
        if len(texts) == 2:
            return self._doubt("text", texts, "two columns hold texts (text pairs are not supported)")
        if texts:
            return self._doubt("text", texts, "several columns could hold the text")
        return self._doubt("text", named or free, f"no column looks like a text{self._why_not(named)}")

    def find_label(self, taken: str | None) -> _Found | _Doubt:
        """Find the label column: a usual name counts where values repeat, as classes do."""
        free = [name for name in self.stats if name != taken]
        likely = [name for name in free if self._is_label(name)]
        for names in (LABEL_NAMES, GROUP_NAMES):
            named = [name for name in free if _key(name) in names and not self.stats[name].is_text]
            fitting = [name for name in named if self._is_label(name, named=True)]
            first = [name for name in fitting if _key(name) == names[0]]
            if len(first or fitting) == 1:
                return _Found((first or fitting)[0], "matched by column name")
            if fitting:
                return self._doubt("label", fitting, "several columns could hold the label")
            single = [name for name in named if self.stats[name].distinct < 2]
            if single and len(named) == 1:  # refused later, with its value
                return _Found(single[0], "matched by column name")
            if named:
                others = [name for name in likely if name not in named]
                why = f"the values of {named[0]!r} rarely repeat, unlike class labels"
                return self._doubt("label", [named[0], *others], why)
        if len(free) == 1 and not self.stats[free[0]].is_text:
            only = self.stats[free[0]]
            if self._is_label(free[0], named=True) or only.distinct < 2:
                return _Found(free[0], "it is the other column")
        scores = [name for name in free if self.stats[name].is_score]
        if len(likely) == 1 and not scores:
            return _Found(likely[0], "the only column whose values repeat, as class labels do")
        regression = f"; {', '.join(scores)} holds numbers on a scale (regression is not supported)"
        regression = regression if scores else ""
        marks = binary_columns(self.table)
        if len(marks) > 2:
            why = f"{len(marks)} columns hold only 0 and 1: several labels a row (multi-label is not supported)"
            return self._doubt("label", marks, why)
        if likely:
            several = "several columns could hold the label" if len(likely) > 1 else "one column could hold the label"
            return self._doubt("label", likely, several + regression)
        words = f"no column looks like a label{regression}"
        return self._doubt("label", scores or [name for name in free if not self.stats[name].is_text] or free, words)

    def _is_label(self, name: str, *, named: bool = False) -> bool:
        stats = self.stats[name]
        return (stats.could_be_class or stats.is_score if named else stats.is_class) or stats.is_list

    def _why_not(self, named: Sequence[str]) -> str:
        """Describe the values of a usual name that was not taken."""
        if not named:
            return ""
        stats = self.stats[named[0]]
        if not stats.values:
            held = "nothing"
        elif stats.odd_kind is not None:
            held = stats.odd_kind
        else:
            held = f"{stats.distinct} different values in {len(stats.values)} rows"
        return f"; {named[0]!r} holds {held}, e.g. {stats.example}" if stats.values else f"; {named[0]!r} holds nothing"

    def _doubt(self, what: str, candidates: Sequence[str], why: str) -> _Doubt:
        shown = [f"{name} ({self._describe(what, name)})" for name in candidates[:_SHOWN]]
        more = f" and {len(candidates) - _SHOWN} more" if len(candidates) > _SHOWN else ""
        return _Doubt(what, f"{why}: {', '.join(shown)}{more}", candidates[0])

    def _describe(self, what: str, name: str) -> str:
        stats = self.stats[name]
        if not stats.values:
            return "empty"
        count = f"{stats.distinct} value{'s' if stats.distinct != 1 else ''}, " if what == "label" else ""
        return f"{count}e.g. {stats.example}"


def find_text_column(table: Table, text_column: str | None, trained_on: str) -> str:
    """Return the text column of a table to predict: the one named by a flag, the one trained on, or the only one.

    Raises InputError with the candidates.
    """
    faults: list[str] = []
    text = _named(table, text_column, "--text-column", faults)
    if faults:
        raise InputError(*faults)
    if text is not None:
        return text
    if trained_on in table.columns and table.has_names:
        return trained_on
    alike = [name for name in table.columns if _key(name) == _key(trained_on)]
    if len(alike) == 1 and table.has_names:
        return alike[0]
    stats = {name: column_stats(table, name) for name in table.columns}
    if len(stats) == 1 and stats[table.columns[0]].odd_kind is None:
        return table.columns[0]
    texts = [name for name in table.columns if stats[name].is_text] or table.columns
    shown = ", ".join(f"{name} (e.g. {stats[name].example})" for name in texts[:_SHOWN])
    first = " If the first row is data, add --no-header." if table.has_names else ""
    raise InputError(
        f"{table.path}: no column {trained_on!r}, which the model was trained on. It could be {shown}; name it, e.g. "
        f'--text-column "{texts[0]}".{first}'
    )


def require_column(table: Table, name: str, flag: str) -> None:
    """Raise InputError where a further table lacks a column of the first."""
    if name not in table.columns:
        raise InputError(f"{table.path}: no column {name!r}, which --data has; it has: {_listed(table)}. See {flag}.")


def require_named_column(table: Table, name: str | None, flag: str) -> None:
    """Raise InputError where a flag names a column that the table lacks."""
    faults: list[str] = []
    _named(table, name, flag, faults)
    if faults:
        raise InputError(*faults)


def empty_texts(table: Table, text_column: str) -> str | None:
    """Return a note with the lines of empty texts; None without any."""
    empty = np.flatnonzero(table.text_hashes(text_column) == EMPTY).tolist()
    return f"{table.where(empty)}: the text is empty" if empty else None


def _named(table: Table, name: str | None, flag: str, faults: list[str]) -> str | None:
    if name is not None and name not in table.columns:
        faults.append(f"{flag} {name}: {table.path} has no such column; it has: {_listed(table)}.")
        return None
    return name


def _listed(table: Table) -> str:
    names = [name or "(unnamed)" for name in table.columns]
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _key(name: str) -> str:
    """Normalize a column name: case, and the separators of its words."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())

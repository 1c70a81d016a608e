"""Which column is the text and which the label: guessed from names and values, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from classify.data.content import looks_of, switches
from classify.data.copies import EMPTY
from classify.data.names import LABEL_NAMES, PAIRED_NAMES, TEXT_NAMES
from classify.data.table import Table
from classify.errors import InputError


@dataclass(frozen=True)
class Guess:
    """One thing the program decided by itself, and the flag that overrides it."""

    what: str
    value: str
    why: str
    flag: str

    def line(self) -> str:
        """As printed: what was chosen, why, and how to choose otherwise."""
        how = f" ({self.flag} to change)" if self.flag else ""
        return f"{self.what}: {self.value} - {self.why}{how}"


@dataclass(frozen=True)
class Columns:
    """The two columns that matter, and the guesses that led to them."""

    text: str
    label: str
    guesses: tuple[Guess, ...]


def find_columns(table: Table, text_column: str | None, label_column: str | None) -> Columns:
    """The columns asked for, or those found by name, or by content where one alone looks like it.

    Raises InputError with every fault, listing the columns there are.
    """
    faults: list[str] = []
    text = _named(table, text_column, "--text-column", faults)
    label = _named(table, label_column, "--label-column", faults)
    if text_column is not None and text_column == label_column:
        faults.append(f"--text-column and --label-column both name {text_column!r}; give two columns of {table.path}.")
    if len(table.columns) < 2 and not faults:
        got = f"the one column {table.columns[0]!r}" if table.columns else "no column that holds anything"
        faults.append(
            f"{table.path}: expected a column with texts and one with labels. Got {got} instead; labels in a file of "
            "their own go with --labels."
        )
    if faults:
        raise InputError(*faults)
    guesses: list[Guess] = []
    unclear: dict[str, str] = {}
    for names in PAIRED_NAMES:
        if text is None and label is None and set(names) <= set(table.columns):
            text, label = names
            guesses += [
                Guess(f"{what} column", name, "both names say so", f"--{what}-column")
                for what, name in (("text", text), ("label", label))
            ]
    if text is None:
        text = _guess(table, "text", TEXT_NAMES, label, guesses, unclear)
    if label is None:
        label = _guess(table, "label", LABEL_NAMES, text, guesses, unclear)
    _raise_unclear(table, unclear)
    assert text is not None
    assert label is not None
    return Columns(text, label, tuple(guesses))


def find_text_column(table: Table, text_column: str | None, trained_on: str) -> str:
    """The text column of a table to predict: the one asked for, the one trained on, or one with a usual name."""
    faults: list[str] = []
    text = _named(table, text_column, "--text-column", faults)
    if text is None and not faults:
        if trained_on in table.columns:
            return trained_on
        if len(table.columns) == 1:
            return table.columns[0]
        unclear: dict[str, str] = {}
        text = _guess(table, "text", TEXT_NAMES, None, [], unclear)
        _raise_unclear(table, unclear)
    if faults:
        raise InputError(*faults)
    assert text is not None
    return text


def require_column(table: Table, name: str, flag: str) -> None:
    """Raise InputError where a further table lacks a column of the first."""
    if name not in table.columns:
        raise InputError(f"{table.path}: no column {name!r}, which --data has; it has: {_listed(table)}. See {flag}.")


def require_asked_column(table: Table, name: str | None, flag: str) -> None:
    """Raise InputError where a flag names a column that the table lacks."""
    faults: list[str] = []
    _named(table, name, flag, faults)
    if faults:
        raise InputError(*faults)


def empty_texts(table: Table, text_column: str) -> str | None:
    """The lines on which the text is empty, in words; None where there is none."""
    empty = np.flatnonzero(table.copies(text_column) == EMPTY).tolist()
    return f"{table.where(empty)}: the text is empty" if empty else None


def _named(table: Table, name: str | None, flag: str, faults: list[str]) -> str | None:
    if name is not None and name not in table.columns:
        faults.append(f"{flag} {name}: {table.path} has no such column; it has: {_listed(table)}.")
        return None
    return name


def _listed(table: Table) -> str:
    return ", ".join(name or "(unnamed)" for name in table.columns)


def _guess(
    table: Table,
    what: str,
    usual: tuple[str, ...],
    taken: str | None,
    guesses: list[Guess],
    unclear: dict[str, str],
) -> str | None:
    """A column by its name, else by its content; notes the guess, or what is unclear."""
    flag = f"--{what}-column"
    free = [name for name in table.columns if name != taken]
    named = [name for name in free if name.strip().lower() in usual]
    if len(named) > 1:
        # "text" beats "title", "label" beats "topic": the list is in order of preference for its first entry only.
        first = [name for name in named if name.strip().lower() == usual[0]]
        named = first or named
    if len(named) == 1:
        guesses.append(Guess(f"{what} column", named[0], "the name says so", flag))
        return named[0]
    if not named and len(table.columns) == 2:
        by_content = _by_content(table, what, free)
        if by_content is not None:
            more = "more" if what == "text" else "fewer"
            why = f"it has {more} different values than the other column" if len(free) > 1 else "it is the other column"
            guesses.append(Guess(f"{what} column", by_content, why, flag))
            return by_content
    if named:
        unclear[flag] = f"several columns could hold the {what} ({', '.join(named)})"
        return None
    alike = [name for name in free if (looks_of(table, name).is_text if what == "text" else _is_class(table, name))]
    if len(alike) == 1:
        why = f"it alone holds {'texts' if what == 'text' else 'values that come again, as classes do'}"
        guesses.append(Guess(f"{what} column", alike[0], why, flag))
        return alike[0]
    unclear[flag] = _several(table, what, alike) if alike else f"no column is named, or looks, like a {what}"
    scores = [name for name in free if what == "label" and looks_of(table, name).is_score]
    if scores:
        unclear[flag] += f"; {', '.join(scores)} holds numbers on a scale (regression), a task that is not supported"
    return None


def _is_class(table: Table, name: str) -> bool:
    looks = looks_of(table, name)
    return looks.is_class or looks.is_list


def _several(table: Table, what: str, alike: list[str]) -> str:
    """What is unclear where several columns look alike, with what they may be together."""
    listed = ", ".join(alike)
    if what == "text" and len(alike) == 2:
        return f"two columns hold texts ({listed}), which are a pair, a task that is not supported, or one of them"
    marks = switches(table)
    if what == "label" and len(marks) > 2:
        return (
            f"{len(marks)} columns hold 0 and 1 alone ({', '.join(marks)}), which are several labels a row, a task "
            "that is not supported, or one of them"
        )
    return f"several columns could hold the {what} ({listed})"


def _raise_unclear(table: Table, unclear: dict[str, str]) -> None:
    if unclear:
        raise InputError(
            f"{table.path}: {' and '.join(unclear.values())}; the columns are: {_listed(table)}. "
            f"Name {'it' if len(unclear) == 1 else 'them'} with {' and '.join(unclear)}."
        )


def _by_content(table: Table, what: str, free: list[str]) -> str | None:
    """Of two columns, the label has fewer different values than the text."""
    if len(free) == 1:
        return free[0]
    counts = [(pc.count_distinct(table.arrow.column(name)).as_py(), name) for name in free]
    if counts[0][0] == counts[1][0]:
        return None
    return max(counts)[1] if what == "text" else min(counts)[1]

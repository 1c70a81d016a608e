"""Which column holds the texts and which the labels: by a flag, a known name, or what the columns measure.

A column of texts has several words a cell, and the cells mostly differ. A column of labels recurs, and the texts tell
its values better than chance does. Between two that fit, or where none does, the answer is a question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from classify.errors import ErrorList, InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables import rules
from classify.tables.profile import MOST, SURE, Profile, measure_told, parse_number, profile, sample_rows
from classify.tables.rules import SplitColumn, normalize_name
from classify.tables.source import Question, QuestionError
from classify.tables.table import EMPTY, Table, TextHashes

_LISTED = 20
# Columns of 0 and 1 from which they may be one label each.
_FEWEST_MARKS = 3
# Rows below which the texts can hardly tell any column.
_FEWEST_ROWS = 50
# Rows of a label below which it is too rare for that.
_TOLD_ROWS = 20
# Share of filled cells from which a column may be a text.
_FEWEST_FILLED = 0.5
# Why a column was taken that has a known name.
_NAMED = "named so"
# Joins the two texts of a pair where they count as one text: duplicates, language, the baseline.
PAIR_SEPARATOR = "\n"


@dataclass(frozen=True)
class TextColumns:
    """`fields` are joined by `delimiter` to a row's first text; `pair` is the column of the second one, if any."""

    fields: tuple[str, ...]
    pair: str | None = None
    delimiter: str = " "

    @property
    def named(self) -> tuple[str, ...]:
        return self.fields if self.pair is None else (*self.fields, self.pair)

    @property
    def inputs(self) -> tuple[str, ...]:
        first = " + ".join(self.fields)
        return (first,) if self.pair is None else (first, self.pair)

    @property
    def whole(self) -> str:
        return self.inputs[0] if self.pair is None else " + ".join(self.named)

    def hash_rows(self, table: Table) -> TextHashes:
        """Numbers (rows,), equal for rows of the same text, or of the same two texts in either order."""
        if self.pair is None:
            return table.text_hashes(self.whole)
        first, second = map(table.text_hashes, self.inputs)
        return first + second

    def derive(self, table: Table) -> Table:
        """Add the columns that are not in the file. Raises InputError where one text of a pair is empty."""
        if len(self.fields) > 1:
            table = _join(table, self.inputs[0], self.fields, self.delimiter)
        if self.pair is None:
            return table
        first, second = (table.text_hashes(name) == EMPTY for name in self.inputs)
        for name, rows in ((self.inputs[0], first & ~second), (self.pair, second & ~first)):
            if rows.any():
                where = table.describe_rows(np.flatnonzero(rows).tolist())
                raise InputError(
                    f"{where}: column {name!r} is empty; expected two texts in each row. Fill it in, or leave such "
                    "rows out."
                )
        return _join(table, self.whole, self.inputs, PAIR_SEPARATOR)

    def as_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"text_column": ",".join(self.fields)}
        if len(self.fields) > 1:
            settings |= {"text_fields": list(self.fields), "text_column_delimiter": self.delimiter}
        return settings if self.pair is None else {**settings, "text_pair_column": self.pair}


def _join(table: Table, name: str, sources: Sequence[str], delimiter: str) -> Table:
    if table.has_column(name):
        raise InputError(f"{table.path}: column {name!r} has the name of the joined text columns; rename that column.")
    cells = zip(*map(table.column, sources), strict=True)
    return table.with_derived(name, (delimiter.join(filter(None, texts)) for texts in cells))


@dataclass(frozen=True)
class Columns:
    """The columns with a meaning, and why they were taken.

    `labels` is one column, or several: of 0 and 1, each for a label, or, where they `are_separate`, each with labels of
    its own. `split` is the column of `--data` with the split of each row, if any.
    """

    texts: TextColumns
    labels: tuple[str, ...]
    findings: tuple[Finding, ...]
    split: SplitColumn | None = None
    are_separate: bool = False

    @property
    def text(self) -> str:
        return self.texts.whole

    @property
    def label(self) -> str:
        return ",".join(self.labels)


@dataclass(frozen=True)
class _Choice:
    """Columns that were taken for a role, and why; `pair` is the column of a row's second text."""

    names: tuple[str, ...]
    why: str = ""
    pair: str | None = None


def find_columns(
    table: Table,
    text_column: str | None = None,
    label_column: str | None = None,
    pair_column: str | None = None,
    delimiter: str = " ",
    unlabelled: str | None = None,
) -> Columns:
    """The columns that flags name, or that names and values leave no doubt about.

    `text_column` and `label_column` may name several, separated by commas; cells equal to `unlabelled` are no labels.
    Raises InputError with every fault of a flag, QuestionError with the candidates.
    """
    faults, found = ErrorList(), list[list[str]]()
    flags = {"--text-column": text_column, "--text-pair-column": pair_column, "--label-column": label_column}
    for flag, given in flags.items():
        with faults.collect():
            found.append(named_columns(table, given, flag))
    faults.raise_if_any()
    fields, pair, labels = found
    named = [*fields, *pair, *labels]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise InputError(f"flags name the column {twice!r} of {table.path} twice; give different columns.")
    if len(table.columns) < 2:
        raise InputError(
            f"{table.path}: expected a column with texts and one with labels. Got the one column {table.columns[0]!r}."
        )
    search = _Search(table, frozenset(named), pair[0] if pair else None, unlabelled)
    text = _Choice(tuple(fields)) if fields else search.find_texts()
    chosen = TextColumns((), None, delimiter)
    if isinstance(text, _Choice):
        chosen = TextColumns(text.names, pair[0] if pair else text.pair, delimiter)
    label = _Choice(tuple(labels)) if labels else search.find_labels(chosen.named)
    if isinstance(text, Question) or isinstance(label, Question):
        hint = "" if table.has_names else "There is no header: columns are numbered."
        raise QuestionError(table.path, [one for one in (text, label) if isinstance(one, Question)], hint)
    findings = [] if fields else search.note_unread({*chosen.named, *label.names}, chosen)
    if label.why:
        what = "label columns" if len(label.names) > 1 else "label column"
        is_printed = label.why != _NAMED
        findings.insert(0, decided(what, ", ".join(label.names), label.why, "--label-column", is_printed))
    if text.why:
        findings.insert(0, decided("text column", text.names[0], text.why, "--text-column"))
    return Columns(chosen, label.names, tuple(findings))


@dataclass(frozen=True)
class _Search:
    """The columns of a table, some of which flags name."""

    table: Table
    taken: frozenset[str]
    given_pair: str | None
    unlabelled: str | None

    @cached_property
    def free(self) -> dict[str, Profile]:
        names = [name for name in self.table.columns if name not in self.taken]
        return {name: profile(self.table, name, self.unlabelled) for name in names}

    @cached_property
    def long_texts(self) -> list[str]:
        columns = self.free.items()
        texts = [name for name, column in columns if column.reads_like_text and column.filled >= _FEWEST_FILLED]
        return [name for name in texts if self.free[name].markup < 0.5] or texts

    def find_texts(self) -> _Choice | Question:
        """The text column, or the two of a pair."""
        usable = {name: column for name, column in self.free.items() if column.could_be_text and column.kinds > 1}
        by_key = {normalize_name(name): name for name in (*usable, *filter(None, [self.given_pair]))}
        for first, second in rules.pairs():
            if first in by_key and second in by_key and self.given_pair in (None, by_key[second]):
                return _Choice((by_key[first],), "named as a pair", by_key[second])
        named = [name for name in usable if rules.is_named(name, "text")]
        if names := named or self.long_texts:
            why = _NAMED if named else "the only column that reads like texts"
            return _Choice((names[0],), why) if len(names) == 1 else self._ask_texts(names)
        return self._ask_texts([name for name, column in self.free.items() if not column.recurs] or list(self.free))

    def _ask_texts(self, names: Sequence[str]) -> Question:
        if not names:
            raise InputError(
                f"{self.table.path}: no column of texts is left beside the others; it has {_list(self.table)}."
            )
        ordered = sorted(names, key=lambda name: -self.free[name].words)
        flags = [f"--text-column {_quote(ordered[0])}"]
        if len(ordered) > 1 and self.free[ordered[1]].could_be_text:
            flags.append(f"both as {_quote(','.join(ordered[:2]))}")
            flags.append(f"--text-column {_quote(ordered[0])} --text-pair-column {_quote(ordered[1])} for a pair")
        shown = tuple(f"{_quote(name)} (e.g. {self.free[name].example})" for name in ordered)
        return Question("which column has the texts", shown, tuple(flags))

    def find_labels(self, texts: Sequence[str]) -> _Choice | Question:
        """The label column, or several of 0 and 1, beside these texts."""
        free = {name: column for name, column in self.free.items() if name not in texts and _could_be_label(column)}
        named = [name for name, column in free.items() if rules.is_named(name, "label") and not column.reads_like_text]
        named += [name for one in named for name in self.free if re.fullmatch(rf"{re.escape(one)}\.\d+", name)]
        if len(named) == 1:
            return _Choice((named[0],), _NAMED)
        fitting = [name for name, column in free.items() if column.recurs or column.is_score]
        texts_by_name = [name for name in fitting if rules.is_named(name, "text") or rules.is_named(name, "title")]
        fitting = [name for name in fitting if not free[name].reads_like_text and name not in texts_by_name]
        # Predictions are labels only once somebody has corrected them.
        predicted = [name for name in self.free if normalize_name(name).startswith("predicted")]
        if named or predicted or not fitting:
            return self._ask_labels(named or [*predicted, *fitting] or list(free))
        if len(free) == 1:
            return _Choice((fitting[0],), "the only column that is left")
        told = fitting
        if texts and len(self.table) >= _FEWEST_ROWS:
            told = [name for name in fitting if self._measure_told(name, texts) >= SURE]
        marks = [name for name in fitting if free[name].marks == 1]
        if len(marks) >= _FEWEST_MARKS and set(told) <= set(marks):
            common = [name for name in marks if self._rarer_rows(name) >= _TOLD_ROWS]
            if len(common) > 1 and set(common) <= set(told):
                return _Choice(tuple(marks), f"{len(marks)} columns of 0 and 1 that the texts tell")
            return self._ask_labels(told or marks, marks)
        if len(told) == 1:
            return _Choice((told[0],), "the only column that the texts tell")
        return self._ask_labels(told or fitting)

    def _rarer_rows(self, name: str) -> int:
        values = self.free[name].values
        return min(len(values) - values.count(values[0]), values.count(values[0]))

    def _measure_told(self, name: str, texts: Sequence[str]) -> float:
        """How surely the texts tell a column's values; of scores, which half they are in."""
        rows = sample_rows(len(self.table))
        cells = [cell.strip() for cell in self.table.take(name, rows)]
        if self.free[name].is_score:
            numbers = [parse_number(cell) for cell in cells]
            middle = np.median([number for number in numbers if number is not None])
            cells = ["" if number is None else str(number > middle) for number in numbers]
        kept = [place for place, cell in enumerate(cells) if cell and cell != self.unlabelled]
        columns = [self.table.take(text, rows) for text in texts]
        return measure_told(
            [" ".join(column[place] for column in columns) for place in kept], [cells[place] for place in kept]
        )

    def _ask_labels(self, names: Sequence[str], marks: Sequence[str] = ()) -> Question:
        if not names:
            listed = list_some([f"{name!r} ({column.kinds} different)" for name, column in self.free.items()])
            raise InputError(
                f"{self.table.path}: expected a column of labels, at least two different ones that recur. Got the "
                f"columns {listed or 'of texts alone'}; name it with --label-column."
            )
        shown = [f"{_quote(name)} ({self.free[name].kinds} values, e.g. {self.free[name].example})" for name in names]
        flags = [f"--label-column {_quote(names[0])}"]
        if marks:
            flags.append(f"--label-column {_quote(','.join(marks))} for a label each")
        elif len(names) > 1:
            flags.append(f"--label-column {_quote(','.join(names[:2]))} for a task each")
        if sum(name.startswith("prob_") for name in self.free) > 1:
            flags.append("--soft-labels for the probabilities in prob_*")
        return Question("which column has the labels", tuple(shown), tuple(flags))

    def note_unread(self, used: Collection[str], texts: TextColumns) -> list[Finding]:
        """Name the columns of texts that are not read, with the flags that would read them."""
        unread = [name for name in self.long_texts if name not in used]
        if not unread:
            return []
        way = f"--text-column {_quote(','.join((*texts.fields, unread[0])))} joins them"
        if texts.pair is None:
            way += f", --text-pair-column {_quote(unread[0])} reads it as the second text of a pair"
        text = f"column{'s' * (len(unread) > 1)} {list_some(unread, show=repr)} not read; {way}"
        return [note(text, self.table.path)]


def _could_be_label(column: Profile) -> bool:
    """Whether a column is neither dates or links, nor the numbers of the rows, nor what this program predicted."""
    numbers = column.distinct > 0.9 and len(column.values) > 10 and not column.is_score and column.words < 2
    predicted = rules.is_named(column.name, "prediction") or normalize_name(column.name).startswith("prob_")
    if numbers or predicted or column.unreadable >= MOST:
        return False
    return column.kinds > 1 or rules.is_named(column.name, "label")


def find_first_texts(table: Table, text_column: str | None) -> TextColumns:
    """The text columns of a table before there is a model: those that --text-column names, text, or the only one."""
    fields = named_columns(table, text_column, "--text-column") or filter(None, [find_column(table, "text")])
    if not (names := tuple(fields) or tuple(table.columns if len(table.columns) == 1 else ())):
        raise InputError(f"{table.path}: which column has the texts? It has: {_list(table)}. Give --text-column.")
    return TextColumns(names)


def find_text_columns(table: Table, trained: TextColumns, text_column: str | None, pair: str | None) -> TextColumns:
    """The text columns of a table to predict: those that flags name, those trained on, or the only one.

    Raises InputError with the columns that are not there.
    """
    if pair is not None and trained.pair is None:
        raise InputError("--text-pair-column: the model was trained on one text per row; drop the flag.")
    fields = named_columns(table, text_column, "--text-column")
    if not fields and len(trained.named) == 1 and len(table.columns) == 1:
        fields = table.columns
    fields = fields or [find_trained(table, name, "--text-column") for name in trained.fields]
    second = named_columns(table, pair, "--text-pair-column")
    if trained.pair is not None and not second:
        second = [find_trained(table, trained.pair, "--text-pair-column")]
    return TextColumns(tuple(fields), second[0] if second else None, trained.delimiter)


def find_trained(table: Table, name: str, flag: str) -> str:
    """The column that a model was trained on, and that `flag` names otherwise. Raises InputError without one."""
    found = find_column(table, name)
    if found is None:
        header = " If the first row is data, add --no-header." if table.has_names else ""
        raise InputError(
            f"{table.path}: no column {name!r}, which the model was trained on; it has: {_list(table)}. Name it with "
            f"{flag}.{header}"
        )
    return found


def find_column(table: Table, name: str) -> str | None:
    """The column of that name, else the only one that differs in case, spaces or word separators alone."""
    if name in table.columns:
        return name
    alike = [column for column in table.columns if normalize_name(column) == normalize_name(name)]
    return alike[0] if len(alike) == 1 else None


def rename_alike(table: Table, columns: Sequence[str]) -> Table:
    new = {found: name for name in columns if (found := find_column(table, name)) is not None and found != name}
    if not new or not table.has_names:
        return table
    names = [new.get(column, column) for column in table.arrow.column_names]
    return table.with_arrow(table.arrow.rename_columns(names))


def require_columns(table: Table, flags: dict[str, str]) -> None:
    """Raise InputError with each column that a further table lacks; `flags` name it."""
    faults = [
        f"{table.path}: expected the column {name!r}, as in --data. Got {_list(table)} instead; rename a column, or "
        f"choose one that both tables have with {flag}."
        for name, flag in flags.items()
        if not table.has_column(name)
    ]
    if faults:
        raise InputError(*faults)


def require_named_column(table: Table, name: str | None, flag: str) -> str | None:
    return next(iter(named_columns(table, name, flag, several=False)), None)


def find_id_column(table: Table) -> str | None:
    """The first column with the name of an ID whose cells are filled and all different."""
    for name in table.columns:
        if rules.is_named(name, "id") or normalize_name(name).endswith(("_id", "_key")):
            values, _ = table.dictionary_encode(name)
            if len(values) == len(table) and not table.is_blank(name).any():
                return name
    return None


def note_empty_texts(table: Table, texts: TextColumns) -> list[Finding]:
    empty = np.flatnonzero(table.text_hashes(texts.whole) == EMPTY).tolist()
    return [note("the text is empty", table.describe_rows(empty))] if empty else []


def named_columns(table: Table, given: str | None, flag: str, *, several: bool = True) -> list[str]:
    """The columns that a flag names, separated by commas unless one column has the whole as its name.

    Raises InputError with those that the table lacks.
    """
    if given is None:
        return []
    is_whole = not several or find_column(table, given) is not None
    found = {part: find_column(table, part) for part in ([given] if is_whole else map(str.strip, given.split(",")))}
    if None in found.values():
        lacked = [part for part, name in found.items() if name is None]
        raise InputError(
            *(f"{flag} {part}: {table.path} has no such column; it has: {_list(table)}." for part in lacked)
        )
    return [name for name in found.values() if name is not None]


def _list(table: Table) -> str:
    return list_some(table.columns, show=repr, most=_LISTED)


def _quote(name: str) -> str:
    return f'"{name}"'

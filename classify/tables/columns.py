"""Detect the text and label columns from names and values, with the reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from classify.decision import Decision
from classify.errors import ErrorList, InputError, list_some
from classify.tables.content import MISSING, SAMPLE, ColumnStats, column_stats, parse_mark
from classify.tables.derived import TextColumns
from classify.tables.names import (
    CATEGORY_NAMES,
    GROUP_NAMES,
    LABEL_NAMES,
    METADATA_NAMES,
    PAIRED_NAMES,
    RATING_NAMES,
    TEXT_NAMES,
    TEXT_PAIR_NAMES,
)
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY

# Candidates, and columns, that a refusal lists.
_SHOWN, _LISTED = 5, 20
# Spellings of a missing text; marks alone, such as ?, are messages of a chat.
_MISSING_TEXTS = frozenset(text for text in MISSING if any(map(str.isalnum, text)))
# Names of columns that identify a row.
_ID = re.compile(r"(^|_)(id|uuid|guid|key)$")
# Rows in which one value may repeat by chance.
_FEW = 10
# A column whose texts are longer by this ratio makes a text column with a usual name doubtful.
_LONGER = 1.5


@dataclass(frozen=True)
class Columns:
    """The columns with a meaning, and the decisions behind them.

    `labels` is one column, or several of 0 and 1; `split` is the column of `--data` with the split of each row, if any.
    """

    texts: TextColumns
    labels: tuple[str, ...]
    decisions: tuple[Decision, ...]
    split: str | None = None

    @property
    def text(self) -> str:
        """Return the column that holds all of a row's text."""
        return self.texts.whole

    @property
    def label(self) -> str:
        """Return the column that holds all of a row's labels."""
        return ",".join(self.labels)


def find_columns(
    table: Table,
    text_column: str | None,
    label_column: str | None,
    pair_column: str | None = None,
    delimiter: str = " ",
    unlabelled: str | None = None,
) -> Columns:
    """Return the columns that are named by a flag, or those whose names and values leave no doubt.

    `text_column` and `label_column` may name several, separated by commas; cells equal to `unlabelled` are no labels.
    Raises InputError with every fault, and with the candidates where there is doubt.
    """
    fields, labels, pair = _check_flags(table, text_column, label_column, pair_column)
    text = fields[0] if fields else None
    label = labels[0] if labels else None
    search = _Search(table, {name: column_stats(table, name, unlabelled) for name in table.columns})
    decisions: list[Decision] = []
    doubts: list[_Doubt] = []
    if text is None:
        is_named = pair is not None
        text, pair = search.find_pair(pair, label) or (None, pair)
        if text is not None and pair is not None and not is_named:
            doubts += search.find_rivals(text, pair, label)
        if text is not None and pair is not None:
            flags_of_pair = "--text-column, --text-pair-column"
            decisions.append(Decision("text pair", f"{text}, {pair}", "matched by both column names", flags_of_pair))
    for usual in PAIRED_NAMES:
        if text is None and label is None and pair is None and set(usual) <= set(table.columns):
            text, label = usual
            decisions += [
                Decision(f"{what} column", name, "matched by both column names", f"--{what}-column")
                for what, name in (("text", text), ("label", label))
            ]
    for what, find in (("text", search.find_text), ("label", search.find_label)):
        if (text if what == "text" else label) is not None:
            continue
        result = find({*labels, label, pair} if what == "text" else {*fields, text, pair})
        if isinstance(result, _Doubt):
            doubts.append(result)
            continue
        shown = ", ".join(result.columns)
        decisions.append(
            Decision(
                f"{what} column{'s' * (len(result.columns) > 1)}",
                shown,
                result.why,
                f"--{what}-column",
                not result.by_name,
            )
        )
        if what == "text":
            (text,) = result.columns
        else:
            labels, label = list(result.columns), result.columns[0]
    if doubts:
        raise _ask(table, doubts)
    assert text is not None
    assert label is not None
    texts = TextColumns(tuple(fields) or (text,), pair, delimiter)
    return Columns(texts, tuple(labels) or (label,), tuple(decisions))


def _check_flags(
    table: Table, text_column: str | None, label_column: str | None, pair_column: str | None
) -> tuple[list[str], list[str], str | None]:
    """Return the text columns, the label columns and the second text that flags name. Raises InputError."""
    faults = ErrorList()
    fields = _parse_columns(table, text_column, "--text-column", faults)
    labels = _parse_columns(table, label_column, "--label-column", faults)
    pair = _check_column(table, pair_column, "--text-pair-column", faults)
    taken: dict[str, str] = {}
    flags = [("--text-column", fields), ("--text-pair-column", [pair] if pair else []), ("--label-column", labels)]
    for flag, names in flags:
        for name in names:
            if name in taken:
                both = f"{taken[name]} and {flag} both name" if taken[name] != flag else f"{flag} names twice"
                faults.append(f"{both} {name!r}; give different columns of {table.path}.")
            taken[name] = flag
    if len(table.columns) < 2 and not faults:
        got = f"the one column {table.columns[0]!r}" if table.columns else "no column with values"
        way = _describe_objects(table) or "give labels in a separate file with --labels."
        faults.append(f"{table.path}: expected a column with texts and one with labels. Got {got} instead; {way}")
    faults.raise_if_any()
    return fields, labels, pair


@dataclass(frozen=True)
class _Found:
    """A column, or several of 0 and 1, and the reason for it."""

    columns: tuple[str, ...]
    why: str
    by_name: bool = False


@dataclass(frozen=True)
class _Doubt:
    """An ambiguous column: the reason, and the candidates, best first."""

    what: str
    reason: str
    candidates: Sequence[str]


def _ask(table: Table, doubts: Sequence[_Doubt]) -> InputError:
    """Return the refusal that names the candidates and the flags to type."""
    proposed: list[str] = []
    for doubt in doubts:  # another column for each, where there is one
        proposed.append(next((name for name in doubt.candidates if name not in proposed), doubt.candidates[0]))
    flags = (f'--{doubt.what}-column "{name}"' for doubt, name in zip(doubts, proposed, strict=True))
    return InputError(
        f"{table.path}: {'; '.join(doubt.reason for doubt in doubts)}; the columns are: {_list_columns(table)}. "
        f"Name {'it' if len(doubts) == 1 else 'them'}, e.g. {' '.join(flags)}"
        f"{'' if table.has_names else ' (there is no header)'}."
        + (f" {objects}" if (objects := _describe_objects(table)) else "")
    )


def _describe_objects(table: Table) -> str:
    """Name the columns of nested JSON, and what to do; "" without any."""
    names = [name for name in table.columns if column_stats(table, name).holds_objects]
    listed = list_some(list(map(repr, names[:_SHOWN])), len(names))
    holds = f"{listed} hold{'s' * (len(names) == 1)} objects"
    return f"{holds}; write their values as columns, e.g. with pandas.json_normalize." if names else ""


@dataclass(frozen=True)
class _Search:
    """The columns of a table, and their statistics."""

    table: Table
    stats: dict[str, ColumnStats]

    def find_pair(self, second: str | None, label: str | None) -> tuple[str, str] | None:
        """Return the two columns of text pairs by their usual names, where both hold texts; `second` may be given."""
        names = {_key(name): name for name in self.stats}
        for keys in TEXT_PAIR_NAMES:
            first, last = (names.get(key) for key in keys)
            if first is None or last is None or label in (first, last) or second not in (None, last):
                continue
            if self.stats[first].could_be_text and self.stats[last].could_be_text:
                return first, last
        return None

    def find_rivals(self, first: str, last: str, label: str | None) -> list[_Doubt]:
        """Return a doubt where another column of texts has a usual name, too.

        Names such as sentence1 are those of a pair, unless there is a column named text; question and sentence may each
        be the text. The title of SQuAD's articles is neither.
        """
        clear = {_key(first), _key(last)}.isdisjoint(TEXT_NAMES)
        names = {*(TEXT_NAMES[:1] if clear else TEXT_NAMES)} - {"title"}
        others = [name for name in self.stats if name not in (first, last, label) and _key(name) in names]
        rivals = [name for name in others if self.stats[name].is_text]
        why = f"the text may be in one column, or in {first!r} and {last!r} (for a pair give --text-pair-column, too)"
        return [self._doubt("text", [*rivals, first, last], why)] if rivals else []

    def find_text(self, taken: Collection[str | None]) -> _Found | _Doubt:
        """Find the text column: one with a usual name, if it holds texts and no other column holds longer ones."""
        free = [name for name in self.stats if name not in taken]
        texts = [name for name in free if self.stats[name].is_text]
        texts = texts or [name for name in free if self.stats[name].is_text_in_lists]
        named = [name for name in free if _key(name) in TEXT_NAMES]
        fitting = [name for name in named if self.stats[name].could_be_text]
        first = [name for name in fitting if _key(name) == TEXT_NAMES[0]]
        fitting = first or fitting
        if len(fitting) == 1:
            length = self.stats[fitting[0]].length
            clear = bool(first) and self.stats[first[0]].is_text
            longer = [name for name in texts if name not in fitting and self.stats[name].length > _LONGER * length]
            if clear or not longer:
                return self._by_name(
                    fitting[0], [name for name in texts if name != fitting[0]], "other columns of texts"
                )
            return self._doubt("text", [*fitting, *longer], "another column holds longer texts")
        if fitting:
            return self._doubt("text", fitting, "several columns could hold the text")
        if len(texts) == 1:
            return _Found((texts[0],), f"the only column of texts{self._why_not(named)}")
        if not texts and len(free) == 2 and len(free) == len(self.stats) and not named:
            short = [name for name in free if self.stats[name].could_be_text]
            classes = [name for name in free if self.stats[name].could_be_class]
            if len(short) == 1 and classes == [name for name in free if name not in short]:
                return _Found((short[0],), "it has more different values than the other column")
        if len(free) == 1 < len(self.stats) and not named and self.stats[free[0]].could_be_text:
            return _Found((free[0],), "the only remaining column")
        if len(texts) == 2:
            why = "two columns hold texts (for pairs of texts give --text-pair-column, too)"
            return self._doubt("text", texts, why)
        if texts:
            return self._doubt("text", texts, "several columns could hold the text")
        return self._doubt("text", named or free, f"no column looks like a text{self._why_not(named)}")

    def find_label(self, taken: Collection[str | None]) -> _Found | _Doubt:
        """Find the label column: one with a usual name, if its values repeat, as classes do."""
        free = [name for name in self.stats if name not in taken]
        if not free:
            raise InputError(
                f"{self.table.path}: no column is left for the labels beside {_list_columns(self.table)}; give a table "
                "with labels, or a file of them with --labels."
            )
        return (
            self._label_by_name(free, LABEL_NAMES)
            or self._label_by_name(free, GROUP_NAMES)
            or self._only_remaining_label(free)
            or self._label_by_content(free)
        )

    def _label_by_name(self, free: Sequence[str], names: Collection[str]) -> _Found | _Doubt | None:
        """Return the column with one of these names, if its values may be labels; None if no column has one."""
        named = [name for name in free if _key(name) in names and not self.stats[name].is_text]
        # Few rows per class are enough for a column with a label name.
        few = names is LABEL_NAMES
        fitting = [name for name in named if self._is_label(name, named=True) or (few and self.stats[name].repeats)]
        first = [name for name in fitting if _key(name) == LABEL_NAMES[0]]
        if len(first or fitting) == 1:
            return self._named_label((first or fitting)[0], free)
        if fitting:
            return self._doubt("label", fitting, "several columns could hold the label")
        if len(named) == 1 and self.stats[named[0]].distinct < 2:  # refused later, with its value
            return self._by_name(named[0])
        if named:
            others = [name for name in free if self._is_label(name) and name not in named]
            why = f"the values of {named[0]!r} {self.stats[named[0]].why_no_class}"
            return self._doubt("label", [named[0], *others], why)
        return None

    def _named_label(self, column: str, free: Sequence[str]) -> _Found | _Doubt:
        """Return a column with a label name; one that may also name a topic, only if no column holds ratings."""
        others = [name for name in free if name != column and self._is_label(name, named=True)]
        if _key(column) in LABEL_NAMES and _key(column) not in CATEGORY_NAMES:
            alike = [name for name in others if _sounds_like_label(name) and not self.stats[name].is_score]
            return self._by_name(column, alike, "other possible labels")
        rated = [name for name in others if _key(name) in RATING_NAMES and self._is_filled_class(name)]
        if rated:
            return self._doubt("label", [column, *rated], "several columns could hold the label")
        return self._by_name(column, [name for name in others if self._is_label(name)], "other possible labels")

    def _only_remaining_label(self, free: Sequence[str]) -> _Found | None:
        """Return the only column beside the text, unless it holds texts, too."""
        only = self.stats[free[0]]
        if len(free) > 1 or only.is_text or not (self._is_label(free[0], named=True) or only.distinct < 2):
            return None
        return _Found((free[0],), "the only remaining column")

    def _label_by_content(self, free: Sequence[str]) -> _Found | _Doubt:
        """Return the only column whose values are classes, or columns of 0 and 1; a score column makes it doubtful."""
        likely = [name for name in free if self._is_label(name)]
        scores = [name for name in free if self.stats[name].is_score]
        if len(likely) == 1 and not scores:
            named = [name for name in free if name not in likely and _sounds_like_label(name)]
            rivals = [name for name in named if self.stats[name].repeats or self.stats[name].could_be_class]
            if rivals:
                return self._doubt("label", [*likely, *rivals], "several columns could hold the label")
        if len(likely) == 1 and _is_metadata(likely[0]) and not _sounds_like_label(likely[0]):
            return self._doubt("label", likely, "one column could hold the label, but its name is unusual for labels")
        if len(likely) == 1 and not scores:
            return _Found((likely[0],), "the only column of few different values, as class labels are")
        marks = self._find_marks(free)
        if marks and set(likely) <= set(marks) and not scores:
            cells = sorted({cell for name in marks for cell in self.stats[name].values})
            why = f"{len(marks)} columns hold only {' and '.join(cells)}: each is a possible label"
            return _Found(tuple(marks), why)
        regression = f"; {', '.join(scores)} hold{'s' * (len(scores) == 1)} numbers on a scale" if scores else ""
        if likely:
            several = "several columns could hold the label" if len(likely) > 1 else "one column could hold the label"
            return self._doubt("label", [*likely, *scores], several + regression)
        numbers = [name for name in free if self.stats[name].is_numeric and name not in scores]
        checked = [name for name in free if set(map(parse_mark, self.stats[name].values)) == {True}]
        hint = f" (if {numbers[0]!r} is a score, add --task regression)" if numbers and not scores else ""
        if len(checked) > 1:  # cells checked or empty
            hint = f" (if each of several columns is a label, name all: --label-column {','.join(checked)})"
        words = f"no column looks like a label{regression}{hint}"
        return self._doubt("label", scores or [name for name in free if not self.stats[name].is_text] or free, words)

    def _find_marks(self, free: Sequence[str]) -> list[str]:
        """Return the columns of 0 and 1 (or no and yes), if at least three hold both; some may hold only one of them.

        Returns [] if their names are not those of labels.
        """
        # Unlike `stats`, count cells of --unlabelled-value: they are neither 0 nor 1.
        few = [name for name in free if self.stats[name].distinct <= 2]
        kinds = {name: set(map(parse_mark, column_stats(self.table, name).values)) for name in few}
        varying = [name for name in few if kinds[name] == {False, True}]
        if len(varying) <= 2 or not _are_labels_by_name(varying):
            return []
        alike = [name for name in few if kinds[name] in ({False}, {True}) and _are_labels_by_name([*varying, name])]
        return [name for name in few if name in varying or name in alike]

    def _is_filled_class(self, name: str) -> bool:
        """Return whether a column holds classes in most rows."""
        return self.stats[name].is_class and 2 * len(self.stats[name].values) > min(len(self.table), SAMPLE)

    def _by_name(self, name: str, others: Sequence[str] = (), what: str = "") -> _Found:
        """Return a column with a usual name; the decision is printed if `others` would fit, too."""
        listed = list_some(list(map(repr, others[:_SHOWN])), len(others))
        why = "matched by column name" + (f"; {what}: {listed}" if others else "")
        return _Found((name,), why, by_name=not others)

    def _is_label(self, name: str, *, named: bool = False) -> bool:
        stats = self.stats[name]
        return (stats.could_be_class or stats.is_score if named else stats.is_class) or stats.is_list

    def _why_not(self, named: Sequence[str]) -> str:
        """Describe the values of a usual name that was not taken."""
        if not named:
            return ""
        stats = self.stats[named[0]]
        if not stats.values:
            return f"; {named[0]!r} is empty"
        held = stats.odd_kind or f"{stats.distinct} different values in {len(stats.values)} rows"
        return f"; {named[0]!r} holds {held}, e.g. {stats.example}"

    def _doubt(self, what: str, candidates: Sequence[str], why: str) -> _Doubt:
        if what == "label":
            candidates = sorted(candidates, key=lambda name: (not _sounds_like_label(name), _is_metadata(name)))
        shown = [f"{name} ({self._describe(what, name)})" for name in candidates[:_SHOWN]]
        return _Doubt(what, f"{why}: {list_some(shown, len(candidates))}", (*candidates, *self.stats))

    def _describe(self, what: str, name: str) -> str:
        stats = self.stats[name]
        if not stats.values:
            return "empty"
        count = f"{stats.distinct} value{'s' if stats.distinct != 1 else ''}, " if what == "label" else ""
        return f"{count}e.g. {stats.example}"


def find_text_columns(table: Table, trained: TextColumns, text_column: str | None, pair: str | None) -> TextColumns:
    """Return the text columns of a table to predict: those named by flags, those trained on, or the only one.

    Raises InputError with the candidates.
    """
    faults = ErrorList()
    fields = _parse_columns(table, text_column, "--text-column", faults)
    pair = _check_column(table, pair, "--text-pair-column", faults)
    if pair is not None and trained.pair is None:
        faults.append("--text-pair-column: the model was trained on one text per row; drop the flag.")
    faults.raise_if_any()
    if not fields and len(trained.named) == 1:
        fields = [_find_text_column(table, trained.fields[0])]
    for name in [] if fields else trained.fields:
        fields.append(_like_trained(table, name, "--text-column", faults))
    if trained.pair is not None and pair is None:
        pair = _like_trained(table, trained.pair, "--text-pair-column", faults)
    faults.raise_if_any()
    if text_column is None:
        require_texts(table, fields)
    return TextColumns(tuple(fields), pair, trained.delimiter)


def require_texts(table: Table, names: Sequence[str]) -> None:
    """Raise InputError where a text column of another table holds no texts, and one of its other columns does."""
    for name in names:
        stats = column_stats(table, name)
        is_constant = stats.distinct == 1 and len(stats.values) >= _FEW
        if stats.odd_kind is None and not is_constant:
            continue
        others = [other for other in table.columns if other not in names and column_stats(table, other).is_text]
        if others:
            raise InputError(
                f"{table.path}: column {name!r} holds {stats.odd_kind or 'one value'}, e.g. {stats.example}, but the "
                f'model was trained on texts; name the text column, e.g. --text-column "{others[0]}".'
            )


def rename_alike(table: Table, names: Sequence[str]) -> Table:
    """Rename columns of another table that differ from `names` only in case or word separators."""
    if not table.has_names:
        return table
    new = {alike[0]: name for name in names if name not in (alike := _find_alike(table, name)) and len(alike) == 1}
    return table.rename([new.get(column, column) for column in table.columns]) if new else table


def _find_alike(table: Table, name: str) -> list[str]:
    """Return the column of that name, else all whose names differ only in case or word separators."""
    return [name] if name in table.columns else [column for column in table.columns if _key(column) == _key(name)]


def _like_trained(table: Table, name: str, flag: str, faults: list[str]) -> str:
    """Return the column of that name, up to case and word separators; add a fault without exactly one."""
    alike = _find_alike(table, name)
    if len(alike) != 1:
        faults.append(
            f"{table.path}: no column {name!r}, which the model was trained on; it has: {_list_columns(table)}. Name "
            f"it with {flag}."
        )
    return alike[0] if alike else name


def _find_text_column(table: Table, trained_on: str) -> str:
    """Return the column trained on, or the only one. Raises InputError with the candidates."""
    alike = _find_alike(table, trained_on)
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


def require_column(table: Table, name: str, flag: str, way: str = "") -> None:
    """Raise InputError where a further table lacks a column of the first; `way` is another fix to suggest."""
    if name not in table.columns:
        raise InputError(
            f"{table.path}: expected the column {name!r}, as in --data. Got {_list_columns(table)} instead; rename a "
            f"column, or choose one that both tables have with {flag}{way}."
        )


def require_named_column(table: Table, name: str | None, flag: str) -> None:
    """Raise InputError where a flag names a column that the table lacks."""
    faults = ErrorList()
    _check_column(table, name, flag, faults)
    faults.raise_if_any()


def find_id_column(table: Table) -> str | None:
    """Return the first column named like an ID whose cells are filled and all different; None without one."""
    for name in table.columns:
        differ = _ID.search(_key(name)) and pc.count_distinct(table.arrow.column(name)).as_py() == len(table)
        if differ and not table.is_blank(name).any():
            return name
    return None


def note_empty_texts(table: Table, text_column: str) -> str | None:
    """Return a note with the lines of empty texts; None without any."""
    empty = np.flatnonzero(table.text_hashes(text_column) == EMPTY).tolist()
    return f"{table.describe_rows(empty)}: the text is empty" if empty else None


def note_missing_texts(table: Table, text_columns: Sequence[str]) -> list[str]:
    """Return a note for each text column of which several cells hold nothing but nan, None or the like."""
    notes = []
    for name in text_columns:
        short = np.flatnonzero(table.lengths(name) <= max(map(len, _MISSING_TEXTS)))
        cells = dict(zip(short.tolist(), table.take(name, short), strict=True))
        rows = [row for row, cell in cells.items() if cell.lower() in _MISSING_TEXTS]
        if len(rows) > 1:
            where = table.describe_rows(rows)
            notes.append(
                f"{where}: column {name!r} holds {cells[rows[0]]!r}, a usual spelling of a missing text; empty such "
                "cells, or leave the rows out"
            )
    return notes


def _check_column(table: Table, name: str | None, flag: str, faults: list[str]) -> str | None:
    if name is not None and name not in table.columns:
        faults.append(f"{flag} {name}: {table.path} has no such column; it has: {_list_columns(table)}.")
        return None
    return name


def _parse_columns(table: Table, names: str | None, flag: str, faults: list[str]) -> list[str]:
    """Return the columns that a flag names, separated by commas unless one column has the whole as its name."""
    if names is None:
        return []
    parts = [names] if names in table.columns else [part.strip() for part in names.split(",")]
    return [name for part in parts if (name := _check_column(table, part, flag, faults)) is not None]


def _list_columns(table: Table) -> str:
    names = [name or "(unnamed)" for name in table.columns]
    return list_some(names[:_LISTED], len(names))


def _sounds_like_label(name: str) -> bool:
    """Return whether a name, or one word of it as in intent_name, is a usual name of labels."""
    return not {_key(name), *_key(name).split("_")}.isdisjoint((*LABEL_NAMES, *GROUP_NAMES, *RATING_NAMES))


def _are_labels_by_name(columns: Sequence[str]) -> bool:
    """Return whether the names of 0/1 columns may be labels: no raters, and is_... not mixed with other names."""
    verbs = [_key(name).startswith(("is_", "has_", "from_")) for name in columns]
    return any(verbs) == all(verbs) and not any(map(_is_metadata, columns))


def _is_metadata(name: str) -> bool:
    """Return whether a word of the name marks the column as something other than a label, as in user_id."""
    return not METADATA_NAMES.isdisjoint(_key(name).split("_"))


def _key(name: str) -> str:
    """Normalize a column name: case, and the separators of its words."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())

"""Find the columns of texts and labels: those that flags name, else those that names and values speak for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from classify.errors import ErrorList, InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables import names, rules
from classify.tables.decide import Answer, Candidate, Doubt, DoubtError, T, ask, choose
from classify.tables.derived import TextColumns
from classify.tables.label_lists import choose_separator
from classify.tables.names import normalize_name
from classify.tables.profile import (
    MISSING,
    SAMPLE,
    ColumnProfile,
    measure_predictable,
    parse_mark,
    parse_number,
    profile,
)
from classify.tables.split_column import SplitColumn
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY

# Columns that a refusal lists.
_LISTED = 20
# Spellings of a missing text; marks alone, such as ?, are messages of a chat.
_MISSING_TEXTS = frozenset(text for text in MISSING if any(map(str.isalnum, text)))
_ID = re.compile(r"(^|_)(id|uuid|guid|key)$")
# Times as long as any other column's texts that the longest ones are.
_LONGER = 1.5
# Points of one column of classes beside several of 0 and 1 from which the two are a question.
_RIVAL = 3.5
# Share of rows that are filled in a second column of labels with the same name.
_TWIN = 0.2
# Fewest points of the text column and the label column, and fewest columns of 0 and 1 that are labels.
_FEWEST_TEXT, _FEWEST_LABEL, _FEWEST_MARKS = 0.5, 2.5, 3


@dataclass(frozen=True)
class Columns:
    """The columns with a meaning, and why they were taken.

    `labels` is one column, or several of 0 and 1; `split` is the column of `--data` with the split of each row, if any.
    """

    texts: TextColumns
    labels: tuple[str, ...]
    findings: tuple[Finding, ...]
    split: SplitColumn | None = None

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
    text_column: str | None = None,
    label_column: str | None = None,
    pair_column: str | None = None,
    delimiter: str = " ",
    unlabelled: str | None = None,
) -> Columns:
    """Return the columns that flags name, or that names and values leave no doubt about.

    `text_column` and `label_column` may name several, separated by commas; cells equal to `unlabelled` are no labels.
    Raises InputError with every fault of a flag, or DoubtError with the candidates.
    """
    faults = ErrorList()
    fields = _parse_columns(table, text_column, "--text-column", faults)
    labels = _parse_columns(table, label_column, "--label-column", faults)
    pair = _parse_columns(table, pair_column, "--text-pair-column", faults)
    named = [*fields, *pair, *labels]
    faults += [
        f"flags name the column {name!r} of {table.path} twice; give different columns."
        for name in dict.fromkeys(named)
        if named.count(name) > 1
    ]
    if len(table.columns) < 2 and not faults:
        got = f"the one column {table.columns[0]!r}" if table.columns else "no column with values"
        faults.append(
            f"{table.path}: expected a column with texts and one with labels. Got {got} instead; give labels in a "
            "separate file with --labels."
        )
    faults.raise_if_any()
    if len(labels) == 1:
        labels += _find_twins(table, labels[0])
    given_texts = TextColumns(tuple(fields), pair[0] if pair else None, delimiter)
    return _Search(table, given_texts, tuple(labels), unlabelled).choose()


@dataclass(frozen=True)
class _Search:
    """The columns of a table, some of which flags name."""

    table: Table
    given_texts: TextColumns
    given_labels: tuple[str, ...]
    unlabelled: str | None

    @cached_property
    def free(self) -> dict[str, ColumnProfile]:
        """Return the profiles of the columns that no flag names."""
        taken = (*self.given_texts.named, *self.given_labels)
        return {name: profile(self.table, name, self.unlabelled) for name in self.table.columns if name not in taken}

    def choose(self) -> Columns:
        """Choose both roles together: a column cannot have both. Raises DoubtError."""
        texts = [] if self.given_texts.fields else self._text_candidates()
        labels = [] if self.given_labels else self._label_candidates()
        text = choose("the text column", _without_rivals(texts, labels), _FEWEST_TEXT) if texts else None
        columns = text.value if isinstance(text, Answer) else self.given_texts
        labels = [candidate for candidate in labels if {*candidate.value}.isdisjoint(columns.named)]
        if not (self.given_labels or labels):
            raise InputError(
                f"{self.table.path}: no column is left for the labels beside {_list_columns(self.table)}; give a table "
                "with labels, or a file of them with --labels."
            )
        label = self._choose_label(labels, columns) if labels else None
        if doubts := [answer for answer in (text, label) if isinstance(answer, Doubt)]:
            hint = "" if self.table.has_names else "There is no header: columns are numbered."
            raise DoubtError(self.table.path, doubts, hint)
        findings = []
        for what, answer in (("text", text), ("label", label)):
            if isinstance(answer, Answer):
                value = answer.value.named if isinstance(answer.value, TextColumns) else answer.value
                plural = f"{what} columns" if len(value) > 1 else f"{what} column"
                findings.append(decided(plural, ", ".join(value), answer.why, f"--{what}-column", not answer.clear))
        labels_found = label.value if isinstance(label, Answer) else self.given_labels
        if isinstance(text, Answer):
            findings += self._note_titles({*columns.named, *labels_found}, columns)
        return Columns(columns, labels_found, tuple(findings))

    def _note_titles(self, used: set[str], texts: TextColumns) -> list[Finding]:
        """Note a column of titles or subjects that is not read beside the one text column."""
        titles = [
            name
            for name, column in self.free.items()
            if name not in used and column.key in names.TITLE_NAMES and rules.reads_like_text(column)
        ]
        if not titles or len(texts.named) > 1:
            return []
        both = _quote(",".join([*titles, *texts.fields]))
        return [note(f"column {titles[0]!r} is not read; --text-column {both} joins them", self.table.path)]

    def _text_candidates(self) -> list[Candidate[TextColumns]]:
        """Weigh each free column as the text, and the columns of each usual pair."""
        pair, delimiter = self.given_texts.pair, self.given_texts.delimiter
        points = {name: rules.weigh(column, rules.TEXT) for name, column in self.free.items()}
        texts = [column for column in self.free.values() if rules.reads_like_text(column)]
        pairs = self._pairs()
        candidates = []
        for first, last in pairs:
            flag = f"--text-column {_quote(first)} --text-pair-column {_quote(last)}"
            least = min(points[name][0] for name in (first, last) if name in points)
            value = TextColumns((first,), last, delimiter)
            candidates.append(
                _support(Candidate(value, least, f"{first} and {last} as a pair", flag), "names of a pair")
            )
        for name, column in self.free.items():
            weight, reasons = points[name]
            longer = all(column.characters > _LONGER * text.characters for text in texts if text is not column)
            if not any(name in both for both in pairs) or column.key == names.TEXT:
                value = TextColumns((name,), pair, delimiter)
                shown = f"{_quote(name)} (e.g. {column.example})"
                candidate = Candidate(value, weight, shown, f"--text-column {_quote(name)}", reasons)
                is_longest = column in texts and longer and len(texts) > 1
                candidates.append(_support(candidate, "the longest texts") if is_longest else candidate)
        return candidates

    def _pairs(self) -> list[tuple[str, str]]:
        """Return the columns of texts that have the names of a pair; a flag may name the second."""
        by_key = {normalize_name(name): name for name in (*self.free, *filter(None, [self.given_texts.pair]))}
        pairs = [
            (by_key[first], by_key[last]) for first, last in names.TEXT_PAIR_NAMES if {first, last} <= by_key.keys()
        ]
        fits = [
            pair for pair in pairs if all(rules.could_be_text(self.free[name]) for name in pair if name in self.free)
        ]
        return [pair for pair in fits if self.given_texts.pair in (None, pair[1])]

    def _label_candidates(self) -> list[Candidate[tuple[str, ...]]]:
        """Weigh each free column as the label, and all columns of 0 and 1 together."""
        marks = self._find_marks()
        has_pair = any(rules.is_score(column) for column in self.free.values()) and self._pairs()
        candidates: list[Candidate[tuple[str, ...]]] = []
        for name, column in self.free.items():
            if name in marks:
                continue
            weight, reasons = rules.weigh(column, rules.LABEL)
            shown = f"{_quote(name)} ({column.kinds} value{'s' * (column.kinds != 1)}, e.g. {column.example})"
            candidate = Candidate[tuple[str, ...]]((name,), weight, shown, f"--label-column {_quote(name)}", reasons)
            if column.distinct > 0.25 and not rules.reads_like_text(column) and self._holds_lists(column):
                candidate = _support(candidate, "parts of its cells recur")
            if has_pair and rules.is_score(column):
                candidate = _support(candidate, "numbers with fractions beside a pair of texts")
            candidates.append(candidate)
        if marks:
            flag = f"--label-column {_quote(','.join(marks))}"
            why = f"{len(marks)} columns of yes and no"
            rivals = [c.points for c in candidates if self.free[c.value[0]].key not in names.LABEL_NAMES]
            best = max(rivals, default=0.0)
            points = best if best >= _RIVAL else rules.ROLES["several columns of yes and no"]
            candidates.append(Candidate(tuple(marks), points, why, flag, (why,)))
        return candidates

    def _holds_lists(self, column: ColumnProfile) -> bool:
        if rules.is_numeric(column) or rules.is_nothing_to_read(column):
            return False
        answer = choose_separator(Counter(column.values))
        return isinstance(answer, Answer) and answer.value is not None

    def _find_marks(self) -> list[str]:
        """Return the columns of 0 and 1 (or no and yes) that may each be a label; some may hold only one of them."""
        fitting = {
            name: frozenset(value.lower() for value in column.values)
            for name, column in self.free.items()
            if column.marks == 1 and column.key not in names.LABEL_NAMES | names.CATEGORY_NAMES
        }
        fitting = {name: cells for name, cells in fitting.items() if not names.has_word(name, names.FLAG_WORDS)}
        varying = [cells for name, cells in fitting.items() if self._varies(name, cells)]
        usual = max(varying, key=varying.count, default=frozenset())
        alike = [name for name, cells in fitting.items() if cells <= usual]
        verbs = [normalize_name(name).startswith(("is_", "has_", "from_")) for name in alike]
        enough = sum(self._varies(name, fitting[name]) for name in alike) >= _FEWEST_MARKS
        return alike if enough and any(verbs) == all(verbs) else []

    def _varies(self, name: str, cells: frozenset[str]) -> bool:
        """Return whether a column says yes in some rows and no in others, be it by an empty cell."""
        marks = set(map(parse_mark, cells))
        return marks == {True, False} or (marks == {True} and self.free[name].filled < 1)

    def _weigh_told(
        self, candidates: list[Candidate[tuple[str, ...]]], texts: TextColumns
    ) -> list[Candidate[tuple[str, ...]]]:
        """Add what the texts tell about each candidate's classes, where there are several candidates."""
        if len(candidates) == 1:
            only = candidates[0]
            return [_support(only, "the only column that is left")]
        likely = [
            candidate
            for candidate in candidates
            if candidate.points > 0 and self.free[candidate.value[0]].key not in rules.LABEL_NAMES
        ]
        if not likely or not texts.fields:
            return candidates
        rows = np.linspace(0, len(self.table) - 1, min(len(self.table), SAMPLE)).astype(np.int64)
        text = self.table.take(texts.fields[0], rows)
        weighed = []
        for candidate in candidates:
            if candidate in likely:
                cells = self.table.take(candidate.value[0], rows)
                if rules.is_score(self.free[candidate.value[0]]):
                    numbers = [parse_number(cell.strip()) for cell in cells]
                    middle = np.median([number for number in numbers if number is not None])
                    cells = ["" if number is None else str(number > middle) for number in numbers]
                filled = [row for row, cell in enumerate(cells) if cell.strip()]
                share = measure_predictable([text[row] for row in filled], [cells[row] for row in filled])
                candidate = _support(candidate, "the words of the texts predict it", share)
            weighed.append(candidate)
        return weighed

    def _choose_label(
        self, candidates: list[Candidate[tuple[str, ...]]], texts: TextColumns
    ) -> Answer[tuple[str, ...]] | Doubt:
        """Choose the label; where a column named label could be it, no other is taken."""
        candidates = self._weigh_told(candidates, texts)
        answer = choose("the label column", candidates, _FEWEST_LABEL)
        if isinstance(answer, Doubt):
            if texts.fields and all(self.free[candidate.value[0]].kinds < 2 for candidate in candidates):
                name = max(candidates, key=lambda candidate: candidate.points).value[0]
                raise InputError(
                    f"{self.table.path}: expected at least two classes in column {name!r}. Got {self.free[name].kinds} "
                    "instead; name another column with --label-column."
                )
            return answer
        twins = _find_twins(self.table, answer.value[0])
        if any(self.free[name].filled > _TWIN for name in twins if name in self.free):
            shown = tuple(map(_quote, (*answer.value, *twins)))
            return Doubt(
                "the label column, of several with one name", shown, f"--label-column {_quote(answer.value[0])}"
            )
        taken = next(candidate for candidate in candidates if candidate.value == answer.value)
        named = [candidate for candidate in candidates if self._is_named_label(candidate.value)]
        verdicts = [candidate for candidate in candidates if self._rejects(candidate.value)]
        if taken not in verdicts and verdicts:  # some of its labels are rejected
            return ask("the label column", [taken, *verdicts])
        if self.free[taken.value[0]].key not in rules.LABEL_NAMES:  # what a reviewer marked beside the predictions
            named += [candidate for candidate in candidates if self._is_prediction(candidate.value)]
        return answer if not named or taken in named else ask("the label column", [*named, taken])

    def _rejects(self, columns: tuple[str, ...]) -> bool:
        """Return whether a column says which labels a reviewer accepted, and not all are."""
        cells = {value.lower() for value in self.free[columns[0]].values}
        return len(cells) > 1 and cells <= names.VERDICTS

    def _is_prediction(self, columns: tuple[str, ...]) -> bool:
        column = self.free[columns[0]]
        return column.key == names.PREDICTED and column.kinds > 1

    def _is_named_label(self, columns: tuple[str, ...]) -> bool:
        column = self.free[columns[0]]
        return len(columns) == 1 and column.key in names.LABELS and column.kinds > 1 and column.filled > 0.5


def _support(candidate: Candidate[T], reason: str, share: float = 1.0) -> Candidate[T]:
    """Return a candidate with a share of the points of a reason."""
    return candidate.add(share * rules.ROLES[reason], reason)


def _find_twins(table: Table, name: str) -> list[str]:
    """Return the further columns that have the name in the file, as they were numbered."""
    alike = re.compile(rf"{re.escape(name)}\.\d+")
    return [column for column in table.columns if alike.fullmatch(column)]


def _without_rivals(
    texts: Sequence[Candidate[TextColumns]], labels: Sequence[Candidate[tuple[str, ...]]]
) -> list[Candidate[TextColumns]]:
    """Return the text candidates, less what each takes from the best label by taking its column."""
    if not labels:
        return list(texts)
    best = max(candidate.points for candidate in labels)
    result = []
    for text in texts:
        left = [label.points for label in labels if not {*label.value} & {*text.value.named}]
        result.append(text.add(max(left, default=best) - best, ""))
    return result


def find_text_columns(table: Table, trained: TextColumns, text_column: str | None, pair: str | None) -> TextColumns:
    """Return the text columns of a table to predict: those named by flags, those trained on, or the only one.

    Raises InputError with the candidates.
    """
    faults = ErrorList()
    fields = _parse_columns(table, text_column, "--text-column", faults)
    second = _parse_columns(table, pair, "--text-pair-column", faults)
    if pair is not None and trained.pair is None:
        faults.append("--text-pair-column: the model was trained on one text per row; drop the flag.")
    faults.raise_if_any()
    wanted = [] if fields else list(trained.fields)
    wanted += [trained.pair] if trained.pair is not None and not second else []
    matches = {name: find_column(table, name) for name in wanted}
    missing = [name for name, match in matches.items() if match is None]
    if len(wanted) == 1 and wanted[0] in trained.fields and (missing or not table.has_names):
        columns = [profile(table, name) for name in table.columns]
        texts = [column for column in columns if rules.reads_like_text(column)] or columns
        if len(columns) > 1 or not rules.could_be_text(columns[0]):
            first = " If the first row is data, add --no-header." if table.has_names else ""
            shown = tuple(f"{_quote(column.name)} (e.g. {column.example})" for column in texts)
            doubt = Doubt(f"the text column {wanted[0]!r}", shown, f"--text-column {_quote(texts[0].name)}")
            raise DoubtError(table.path, [doubt], f"The model was trained on {wanted[0]!r}.{first}")
        matches, missing = {wanted[0]: table.columns[0]}, []
    faults += [
        f"{table.path}: no column {name!r}, which the model was trained on; it has: {_list_columns(table)}. Name it "
        f"with {'--text-pair-column' if name == trained.pair else '--text-column'}."
        for name in missing
    ]
    faults.raise_if_any()
    found = [name for name in matches.values() if name is not None]
    texts_found = tuple(fields) or tuple(found[: len(trained.fields)])
    last = second[0] if second else found[-1] if trained.pair is not None else None
    if text_column is None:
        require_texts(table, texts_found)
    return TextColumns(texts_found, last, trained.delimiter)


def require_texts(table: Table, columns: Sequence[str]) -> None:
    """Raise InputError where a text column of another table holds no texts, and one of its other columns does."""
    for name in columns:
        column = profile(table, name)
        if not column.values or (rules.could_be_text(column) and (column.kinds > 1 or len(column.values) < 10)):
            continue
        others = [other for other in table.columns if other not in columns]
        texts = [other for other in others if rules.reads_like_text(profile(table, other))]
        if texts:
            raise InputError(
                f"{table.path}: column {name!r} holds no texts, e.g. {column.example}, but the model was trained on "
                f"texts; name the text column, e.g. --text-column {_quote(texts[0])}."
            )


def find_column(table: Table, name: str) -> str | None:
    """Return the column of that name, else the only one that differs in case, spaces or word separators alone."""
    if name in table.columns:
        return name
    alike = [column for column in table.columns if normalize_name(column) == normalize_name(name)]
    return alike[0] if len(alike) == 1 else None


def rename_alike(table: Table, columns: Sequence[str]) -> Table:
    """Rename columns of another table that differ from `columns` only in case or word separators."""
    if not table.has_names:
        return table
    new = {found: name for name in columns if (found := find_column(table, name)) is not None and found != name}
    return table.rename([new.get(column, column) for column in table.columns]) if new else table


def require_column(table: Table, name: str, flag: str, way: str = "") -> None:
    """Raise InputError where a further table lacks a column of the first; `way` is another fix to suggest."""
    if name not in table.columns:
        raise InputError(
            f"{table.path}: expected the column {name!r}, as in --data. Got {_list_columns(table)} instead; rename a "
            f"column, or choose one that both tables have with {flag}{way}."
        )


def require_named_column(table: Table, name: str | None, flag: str) -> str | None:
    """Return the column that a flag names. Raises InputError where the table lacks it."""
    faults = ErrorList()
    found = _parse_columns(table, name, flag, faults, several=False)
    faults.raise_if_any()
    return found[0] if found else None


def find_id_column(table: Table) -> str | None:
    """Return the first column named like an ID whose cells are filled and all different; None without one."""
    for name in table.columns:
        differ = _ID.search(normalize_name(name))
        if (
            differ
            and pc.count_distinct(table.arrow.column(name)).as_py() == len(table) > table.is_blank(name).sum() == 0
        ):
            return name
    return None


def note_empty_texts(table: Table, texts: TextColumns) -> list[Finding]:
    """Note the lines of empty texts, and each column of which several cells hold nothing but nan, None or the like."""
    empty = np.flatnonzero(table.text_hashes(texts.whole) == EMPTY).tolist()
    notes = [note("the text is empty", table.describe_rows(empty))] if empty else []
    for name in texts.named:
        short = np.flatnonzero(table.lengths(name) <= max(map(len, _MISSING_TEXTS)))
        cells = dict(zip(short.tolist(), table.take(name, short), strict=True))
        rows = [row for row, cell in cells.items() if cell.lower() in _MISSING_TEXTS]
        if len(rows) > 1:
            text = (
                f"column {name!r} holds {cells[rows[0]]!r}, a usual spelling of a missing text; empty such cells, or "
                "leave the rows out"
            )
            notes.append(note(text, table.describe_rows(rows)))
    return notes


def _parse_columns(
    table: Table, names_given: str | None, flag: str, faults: list[str], *, several: bool = True
) -> list[str]:
    """Return the columns that a flag names, separated by commas unless one column has the whole as its name."""
    if names_given is None:
        return []
    whole = find_column(table, names_given)
    parts = [names_given] if whole or not several else [part.strip() for part in names_given.split(",")]
    found = {part: find_column(table, part) for part in parts}
    faults += [
        f"{flag} {part}: {table.path} has no such column; it has: {_list_columns(table)}."
        for part, name in found.items()
        if name is None
    ]
    return [name for name in found.values() if name is not None]


def _list_columns(table: Table) -> str:
    return list_some(table.columns, show=repr, most=_LISTED)


def _quote(name: str) -> str:
    return f'"{name}"'

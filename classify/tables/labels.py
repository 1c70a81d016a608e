"""Map a column of labels to classes, and rows to class numbers."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from classify.errors import EXCERPT, SHOWN, InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.label_lists import is_empty_list, unwrap
from classify.tables.profile import MISSING, MONTH
from classify.tables.table import Table
from classify.tables.text_hashes import normalize_text

MIN_ROWS = 10
# Usual spellings of a missing value that are hardly the names of classes.
_MISSING = MISSING - {"none", "-", "--", "?"}
# Label values that people write into unlabelled rows.
_PLACEHOLDERS = frozenset(
    {"none", "?", "??", "unlabeled", "unlabelled", "not labeled", "not labelled", "todo", "tbd", "未标注"}
)
# Names of classes whose texts may be alike in nothing but belonging to no other class.
_OUTSIDE = frozenset({"oos", "out_of_scope", "out of scope", "out-of-scope", "other"})
_SPREADSHEET_ERROR = re.compile(r"#(REF|VALUE|NAME|DIV/0|NULL|NUM)[!?]")
# Dates that spreadsheets make of labels such as 5-1 or 1-2024.
_DATE = re.compile(rf"\d{{1,2}}-{MONTH}|{MONTH}-\d{{2,4}}|\d{{4}}-\d\d-\d\d( 00:00:00)?", re.IGNORECASE)
# Spaces, zero-width ones, byte-order marks, and marks of the writing direction around a label.
_INVISIBLE = re.compile(r"\A[\s\u200b\u200e\u200f\u2060\ufeff]+|[\s\u200b\u200e\u200f\u2060\ufeff]+\Z")
_LISTED = 10
# Letters from which a difference of one is a typing error.
_FEWEST_LETTERS = 4
# How often more frequent a label is than a mistyped one of fewer letters than this: card and cart are two words.
_TIMES = 10
_LONG = 6
# Letters of a label that somebody has typed, and labels of which each is compared with each.
_LONGEST_TYPED = 60
_MOST_COMPARED = 300


@dataclass(frozen=True)
class ClassNames:
    """Class names: `names` maps labels of the table to their class where its name differs.

    `unlabelled` are labels that count as missing, as empty cells do; so does `outside`, which means none of the
    classes, in any of its spellings; `rows` counts the rows of each label, `missing`
    those of spellings of a missing value.
    `normalized`: labels that differ in case, spaces or Unicode form alone are one class.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    unlabelled: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    normalized: bool = True
    outside: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the class names of a trained model, from its classify.json."""
        stored = settings["label_spelling"]
        normalized, outside = stored["normalized"], stored.get("outside")
        return cls(stored["names"], frozenset(stored["unlabelled"]), normalized=normalized, outside=outside)

    def as_settings(self) -> dict[str, Any]:
        """Return the entry of classify.json."""
        names = {label: name for label, name in self.names.items() if label != name}
        stored = {"names": names, "unlabelled": sorted(self.unlabelled), "normalized": self.normalized}
        return {"label_spelling": stored | ({} if self.outside is None else {"outside": self.outside})}

    def spell(self, written: Iterable[str], classes: Sequence[str]) -> Self:
        """Return the names with further labels `written`, where each differs in spelling alone from one of `classes`.

        The classes themselves keep their names.
        """
        exact, alike = set(classes), dict[str, set[str]]()
        for label in (*classes, *self.names):
            key = _spelling_key(label, normalized=self.normalized)
            alike.setdefault(key, set()).add(label if label in exact else self.names[label])
        names = {label: name for label, name in self.names.items() if label not in exact}
        for label in written:
            if label not in exact and label not in names:
                matches = alike.get(_spelling_key(label, normalized=self.normalized), set())
                if len(matches) == 1:
                    (names[label],) = matches
        return dataclasses.replace(self, names=names)

    def of(self, label: str) -> str | None:
        """Return the class of a label value; None where it means unlabelled."""
        if label in self.unlabelled or self.is_outside(label):
            return None
        return self.names.get(label) or (None if is_no_label(label) else label)

    def is_outside(self, label: str) -> bool:
        """Return whether a label means none of the classes."""
        if self.outside is None:
            return False
        return label == self.outside or (self.normalized and _normalize(label) == _normalize(self.outside))

    def list_merged(self, *, normalized: bool) -> list[str]:
        """List each class with its labels and their rows where there are several.

        Either where they differ in case, spaces or Unicode form alone (`normalized`), or the others.
        """
        ways: dict[str, list[str]] = {}
        for label, name in self.names.items():
            ways.setdefault(name, []).append(label)
        return [
            " = ".join(f"{label!r} ({self.rows.get(label, 0)})" for label in sorted(same, key=self._most_rows_first))
            for same in ways.values()
            if len(same) > 1 and normalized == (len(set(map(_normalize, same))) == 1)
        ]

    def findings(self) -> list[Finding]:
        """List the labels that are one class, written differently, and note what may be wrong with labels."""
        return [*self._describe_merged(), *map(note, self._notes()), *self._describe_typos()]

    def _describe_merged(self) -> list[Finding]:
        merged = self.list_merged(normalized=True)
        if not merged:
            return []
        shown = list_some(merged)
        why = "merged, since they differ only in case, (invisible) spaces or Unicode form; row counts in parentheses"
        return [decided("labels", shown, why, "--normalize-labels none", True)]

    def _notes(self) -> list[str]:
        """Note merged labels, and label values that may mean unlabelled or were changed by a spreadsheet."""
        lists = [label for label, name in self.names.items() if label in unwrap([label]) and label != name]
        dates = [label for label in self.rows if _DATE.fullmatch(label)]
        return [
            *([f"lists of one label, such as {lists[0]}, are read as that label"] if lists else []),
            *(
                f"the labels {list_some(same, show=repr)} are the same number, yet different "
                "classes; write them alike if they are one"
                for same in self._list_equal_numbers()
            ),
            *(
                f"the label {label!r} ({rows}) is read as no label; if it is one, give --label-names "
                f"{shlex.quote(f'{label}={label}')}"
                for label, rows in self.missing.items()
                if rows
            ),
            *(f"the labels {labels} are one class" for labels in self.list_merged(normalized=False)),
            *(
                f"the label {label!r} of {rows} row{'s' * (rows > 1)} may mean no label; if so, give "
                f"--unlabelled-value={shlex.quote(label)}"
                for label, rows in self.rows.items()
                if rows and self._may_mean_none(label)
            ),
            *(
                f"the label {label!r} ({rows}) may mean none of the other classes; if so, give --out-of-scope-label "
                f"{shlex.quote(label)}"
                for label, rows in self.rows.items()
                if rows and not self.is_outside(label) and normalize_text(label) in _OUTSIDE
            ),
            *(
                [f"the label {dates[0]!r} looks like a date, others do not: a spreadsheet may have changed it"]
                if 0 < len(dates) < len(self.rows)
                else []
            ),
        ]

    def _describe_typos(self) -> list[Finding]:
        """Note the labels that are spelled like a more frequent one, with the flag that merges all of them."""
        typos = self._find_typos()
        if not typos:
            return []
        shown = (f"{typed!r} ({self.rows[typed]}) of {meant!r} ({self.rows[meant]})" for typed, meant in typos.items())
        pairs = ",".join(f"{typed}={meant}" for typed, meant in typos.items())
        flag = f"--label-names {shlex.quote(pairs)}"
        text = f"labels that may be typing errors: {list_some(list(shown))}; if they are, give {flag}"
        return [Finding("note", "", text, flag)]

    def _find_typos(self) -> dict[str, str]:
        """Return labels that are spelled like one of more rows, with that one."""
        rows = {
            name: count
            for name, count in self.rows.items()
            if count and self.of(name) == name and len(name) <= _LONGEST_TYPED and not set(name) & set(",=")
        }
        if len(rows) > _MOST_COMPARED:
            return {}
        by_rows = sorted(rows, key=lambda name: (-rows[name], name))
        return {
            typed: meant
            for place, typed in enumerate(by_rows)
            for meant in reversed(by_rows[:place])  # the most frequent of several is taken
            if (rows[meant] >= _TIMES * rows[typed] or min(len(typed), len(meant)) >= _LONG) and is_typo(typed, meant)
        }

    def _list_equal_numbers(self) -> list[list[str]]:
        """List classes that are the same number, such as 1 and 01."""
        numbers: dict[int, list[str]] = {}
        for name in sorted({name for label in self.rows if (name := self.of(label)) is not None}):
            if re.fullmatch(r"[+-]?\d{1,60}", name):
                numbers.setdefault(int(name), []).append(name)
        return [same for same in numbers.values() if len(same) > 1]

    def _may_mean_none(self, label: str) -> bool:
        """Return whether a label value usually means unlabelled, as -1 in most rows beside 0 and 1."""
        if label == "-1":
            return set(self.rows) == {"-1", "0", "1"} and self.rows["-1"] > self.rows["0"] + self.rows["1"]
        return normalize_text(label) in _PLACEHOLDERS or _SPREADSHEET_ERROR.fullmatch(label) is not None

    def _most_rows_first(self, label: str) -> tuple[int, str]:
        return (-self.rows.get(label, 0), label)


def find_missing(labels: Collection[str]) -> list[str]:
    """Return the labels that are usual spellings of a missing value, such as NA; a dash where others are words."""
    words = any(any(map(str.isalnum, label)) for label in labels) and "+" not in labels  # - may be negative
    dashes = [
        label
        for label in labels
        if words and label and all(unicodedata.category(sign) == "Pd" for sign in label.strip())
    ]
    return [*dashes, *(label for label in labels if normalize_text(label) in _MISSING)]


def is_typo(typed: str, meant: str) -> bool:
    """Return whether a name may be mistyped: one letter is wrong, missing, added or swapped, two of long names.

    Names that differ in digits or by a beginning, as satisfied and unsatisfied, mean different things.
    """
    short, long = sorted((typed.lower(), meant.lower()), key=len)
    if len(long) - len(short) > 2 or len(short) < _FEWEST_LETTERS or long.endswith(short):
        return False
    if re.sub(r"\d", "", short) == re.sub(r"\d", "", long):
        return False
    if (Counter(short) - Counter(long)).total() > 2:  # far faster than to count edits
        return False
    return _count_edits(short, long) <= (2 if len(short) >= 2 * _FEWEST_LETTERS else 1)


def _count_edits(one: str, other: str) -> int:
    """Return the optimal string alignment distance: the edits, and swaps of neighbours, between two strings."""
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        above, before, row = before, row, [i]
        for j, opposite in enumerate(other, start=1):
            edits = [before[j] + 1, row[-1] + 1, before[j - 1] + (letter != opposite)]
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == opposite:
                edits.append(above[j - 2] + 1)
            row.append(min(edits))
    return row[-1]


def is_no_label(cell: str) -> bool:
    """Return whether a cell shows no label: it is empty, an empty list, or holds only invisible characters."""
    return not _INVISIBLE.sub("", cell) or is_empty_list(cell.strip())


def _normalize(label: str) -> str:
    """Normalize a label as texts are, without the invisible characters that web pages and editors leave around it."""
    return normalize_text(_strip(label))


def _strip(label: str) -> str:
    """Remove spaces and invisible characters around a label, unless it holds no others."""
    return _INVISIBLE.sub("", label) or label.strip()


def _spelling_key(label: str, *, normalized: bool) -> str:
    """Return the key by which equal labels match: 1 and 1.0 are equal, and with `normalized` Card and card."""
    plain = _normalize(label) if normalized else label
    whole = re.fullmatch(r"([+-]?\d+)(\.0+)?", plain)
    return whole[1] if whole else plain


def no_such_label(value: str) -> str:
    """Return the message for an --unlabelled-value that does not occur."""
    return (
        f"--unlabelled-value {value}: no row has it as its label; give a value of the label column, or drop the flag."
    )


def name_classes(
    counts: Mapping[str, int],
    *,
    normalize: bool = True,
    requested: str | None = None,
    unlabelled: frozenset[str] = frozenset(),
) -> ClassNames:
    """Name the classes of labels, from the rows of each.

    1.0 and 1 are one class where both occur, as programs write numbers differently; ["a"] is a, unless some list has
    several labels. With `normalize` labels that differ in case, spaces or Unicode form, or in invisible characters
    around them, are one class, named as in most rows. `requested` renames: "0=negative,1=positive". Raises InputError
    where it names a label that does not occur, or a class twice.
    """
    class_of = {label: label for label in counts} | unwrap(counts)
    for label in counts:
        whole = label.partition(".")[0]
        if re.fullmatch(r"[+-]?\d+\.0+", label) and whole in counts:
            class_of[label] = whole
    if normalize:
        ways: dict[str, list[str]] = {}
        for label in counts:
            ways.setdefault(_normalize(class_of[label]), []).append(label)
        for same in ways.values():
            best = max(same, key=lambda label: (counts[label], label))
            class_of |= dict.fromkeys(same, _strip(class_of[best]))
    renamed: dict[str, str] = {}
    if requested is not None:
        renamed = _parse_renames(requested)
        unknown = sorted(set(renamed) - set(class_of.values()) - set(counts))
        if unknown:
            raise InputError(
                f"--label-names: not a label in --data: {', '.join(map(repr, unknown))}; expected some of "
                f"{', '.join(map(repr, sorted(set(class_of.values()))[:10]))}."
            )
    new: dict[str, str] = {}
    for old, name in renamed.items():
        if new.setdefault(class_of.get(old, old), name) != name:
            raise InputError(
                f"--label-names gives {old!r} the name {name!r}, and another name to a label of the same class; give "
                "both the same name, or add --normalize-labels none."
            )
    names = {label: new.get(name, name) for label, name in class_of.items()}
    return ClassNames(names, unlabelled, dict(counts), normalized=normalize)


def _parse_renames(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(old.strip() and sign and new.strip() for old, sign, new in pairs):
        raise InputError(f"--label-names must be pairs such as 0=negative,1=positive. Got {text!r} instead.")
    names = {old.strip(): new.strip() for old, _, new in pairs}
    if len(names) < len(pairs):
        raise InputError(f"--label-names names a label twice: {text!r}; give each one name.")
    return names


def find_labels(
    table: Table, label_column: str, more: Table | None = None, classes: ClassNames | None = None
) -> list[str]:
    """Return class names from all rows of `--data` and `--eval-data`, numbers first, in order.

    Raises InputError for too few rows with a label, a single class, or a different value in every row.
    """
    classes = classes or ClassNames()
    counts = class_counts(table, label_column, classes)
    names = set(counts) if more is None else {*counts, *class_counts(more, label_column, classes)}
    rows = sum(counts.values())
    if rows < MIN_ROWS:
        labelled = "rows" if rows == len(table) else "rows with a label"
        raise InputError(f"{table.path}: expected at least {MIN_ROWS} {labelled}. Got {rows} instead.")
    if len(names) == 1:
        raise InputError(
            f"{table.path}: expected at least two classes in column {label_column!r}. "
            f"Got only {next(iter(names))!r} in {rows} of {len(table)} rows instead; name another column with "
            "--label-column, or write a class into empty cells."
        )
    if max(counts.values()) < 2:
        raise InputError(
            f"{table.path}: expected classes that occur in at least 2 rows. Got {rows} rows with {rows} different "
            f"values in column {label_column!r} instead; name another column with --label-column."
        )
    return sorted(names, key=label_sort_key)


def class_counts(table: Table, column: str, classes: ClassNames) -> dict[str, int]:
    """Count the rows of each class."""
    counts: Counter[str] = Counter()
    for value, count in value_counts(table, column).items():
        name = classes.of(value)
        if name is not None:
            counts[name] += count
    return dict(counts)


def list_counts(labels: Sequence[str], counts: npt.NDArray[np.int64]) -> str:
    """List the labels with most rows, and their rows."""
    order = np.argsort(-counts, kind="stable").tolist()
    return list_some([f"{labels[number]!r} {counts[number]}" for number in order[:_LISTED]], len(order), most=_LISTED)


def value_counts(table: Table, column: str) -> dict[str, int]:
    """Count the rows of each value of a column."""
    pairs = pc.value_counts(table.arrow.column(column)).to_pylist()
    return {pair["values"]: pair["counts"] for pair in pairs}


def refuse_unknown(
    places: Mapping[str, list[int]],
    numbers: npt.NDArray[np.int64],
    table: Table,
    labels: Sequence[str],
    known_from: str,
) -> None:
    """Raise InputError naming labels that `known_from` does not have, with their rows.

    `places` are those of each label among the column's distinct cells, `numbers` (rows,) the place of each row's cell.
    """
    # Of the labels that are shown: each is a pass over the rows.
    rows_of = {name: np.flatnonzero(np.isin(numbers, places[name])).tolist() for name in list(places)[:SHOWN]}
    expected = f"expected one of {list_some(labels, show=repr, most=_LISTED)}"
    if len(places) > SHOWN:
        where = table.describe_row_groups([rows[:1] for rows in rows_of.values()])
        listed = [f"{name[:EXCERPT]!r} ({place})" for name, place in zip(rows_of, where, strict=True)]
        hint = " Do its columns differ from those of the training table?" if len(places) > len(labels) else ""
        raise InputError(
            f"{table.path}: {len(places)} labels are in no row of {known_from}: {list_some(listed, len(places))}; "
            f"{expected}.{hint}"
        )
    if rows_of:
        raise InputError(
            *(
                f"{table.describe_rows(rows)}: the label {name!r} is in no row of {known_from}; {expected}."
                for name, rows in rows_of.items()
            )
        )


def case_variants(labels: list[str]) -> list[tuple[str, str]]:
    """Return pairs of class names that differ only in case, spaces or Unicode form, as typing errors do."""
    seen: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for name in labels:
        first = seen.setdefault(normalize_text(name), name)
        if first != name:
            pairs.append((first, name))
    return pairs


def label_sort_key(name: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers first, by value, then names."""
    try:
        number = float(name)
    except ValueError:
        return (1, 0.0, name)
    # "nan" compares with nothing, so the order would depend on that of the input.
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)

"""The labels of a column: missing values, spellings of one class, cells with several labels."""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.errors import EXCERPT, SHOWN, InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.profile import parse_mark, parse_number
from classify.tables.source import Question
from classify.tables.table import Table, normalize_text

MIN_ROWS = 10
# Labels that a message lists.
_LISTED = 10
# Spellings of a missing value that are hardly names of classes, as programs write them.
_MISSING = frozenset(
    {"nan", "nat", "null", "(null)", "[null]", "\\n", "n/a", "n.a.", "na", "#n/a", "<na>", "(blank)", "undefined"}
)
# Spaces, zero-width ones, byte-order marks, and marks of the writing direction around a label.
_INVISIBLE = re.compile(r"\A[\s\u200b\u200e\u200f\u2060\ufeff]+|[\s\u200b\u200e\u200f\u2060\ufeff]+\Z")
_WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")
# Signs between the labels of a cell.
SEPARATORS = ("|", ";", ",", "#")
BRACKETS = "[]"
# What stands between the labels that --label-names divides one into.
PART_OF = "|"
_LONGEST_LABEL = 60
# Share of a separator's parts that recur, and from which that is a question if a part stands alone elsewhere.
_RECUR = 0.8
_MAY_RECUR = 0.5
# What else may stand between labels, though it is no more than asked about: signs, or a short word such as "and".
_BETWEEN = re.compile(r"[^\w\s]+|\s\w{1,3}\s")
# The commonest of these that are tried.
_MOST_SIGNS = 20
# Strings that NumPy prints beside each other, without a comma, which Python would read as one.
_NUMPY = re.compile(r"""['"]\s+['"]""")
# Similarity (difflib's ratio) from which a label may be a mistyped one.
_ALIKE = 0.85
# Rows that may all be typing errors; of more, the label that is meant has many times as many.
_FEW_ERRORS = 5
_TIMES_MEANT = 10
# Share of the filled cells of a column that are 0 and 1 from which it is one of them: a few may be typing errors.
_MARKED = 0.9
# Names that may be mistyped: of four characters or more, and such as --label-names can hold.
_MISTYPED = re.compile(r"[^,=]{4,60}")
_DIGITS = re.compile(r"\d")
# Labels, the most frequent ones, among which typing errors are looked for.
_MOST_COMPARED = 300
# A row with fewer characters holds hardly a text: a share of the median, and at most.
_HARDLY = 0.4
_LONGEST_UNIT = 30
# Rows at each end of a table that may be units or a total.
_ENDS = 5


@dataclass(frozen=True)
class ClassNames:
    """The class of each label that is written in a table.

    `names` maps labels to their class, `rows` counts the rows of each label. `unlabelled` are
    labels that count as missing, as empty cells do, of which `missing` are usual spellings of that; so does `outside`,
    which means none of the classes. `normalized`: labels that differ in case, spaces or Unicode form are one class.
    `divided` are labels whose rows are to be labelled again, as one of several classes.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    unlabelled: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    normalized: bool = True
    outside: str | None = None
    divided: frozenset[str] = frozenset()

    @classmethod
    def from_settings(cls, labels: Iterable[str], settings: Mapping[str, Any]) -> Self:
        stored = settings["label_spelling"]
        names = {**{label: label for label in labels}, **stored["names"]}
        return cls(
            names, frozenset(stored["unlabelled"]), normalized=stored["normalized"], outside=stored.get("outside")
        )

    def as_settings(self) -> dict[str, Any]:
        names = {label: name for label, name in self.names.items() if label != name}
        stored = {"names": names, "unlabelled": sorted(self.unlabelled), "normalized": self.normalized}
        return {"label_spelling": stored | ({} if self.outside is None else {"outside": self.outside})}

    @functools.cached_property
    def _by_key(self) -> dict[str, str]:
        """The class of each spelling that only one class has."""
        classes: dict[str, set[str]] = {}
        for label, name in self.names.items():
            classes.setdefault(_spelling_key(label, normalized=self.normalized), set()).add(name)
        return {key: min(names) for key, names in classes.items() if len(names) == 1}

    def knows(self, label: str) -> bool:
        is_written = label in self.names or label in self.unlabelled
        return is_written or _spelling_key(label, normalized=self.normalized) in self._by_key

    def of(self, label: str) -> str | None:
        """The class of a label, also of one that differs from it in spelling alone; None where it means unlabelled."""
        if label in self.unlabelled or self.is_outside(label):
            return None
        if label in self.names:
            return self.names[label]
        return None if is_no_label(label) else self._by_key.get(_spelling_key(label, normalized=self.normalized), label)

    def is_outside(self, label: str) -> bool:
        key = None if self.outside is None else _spelling_key(self.outside, normalized=self.normalized)
        return key is not None and key == _spelling_key(label, normalized=self.normalized)

    def findings(self) -> list[Finding]:
        """The labels that are one class, written differently, those read as missing, and those that may be mistyped."""
        ways: dict[str, list[str]] = {}
        for label in sorted(self.names, key=lambda label: (-self.rows.get(label, 0), label)):
            ways.setdefault(self.names[label], []).append(label)
        merged = [same for same in ways.values() if len(same) > 1]
        shown = [" = ".join(f"{label!r} ({self.rows.get(label, 0)})" for label in same) for same in merged]
        why = "merged: they differ only in case, (invisible) spaces or Unicode form, or --label-names says so"
        found = [decided("labels", list_some(shown), why, "--normalize-labels none", True)] if merged else []
        for label, rows in self.missing.items():
            if rows:
                keep = f"to keep it as a class: --label-names {shlex.quote(f'{label}={label}')}"
                found.append(note(f"{rows} rows have the label {label!r}, which is read as missing; {keep}"))
        rows_of = {name: count for name, count in self.rows.items() if count and self.of(name) == name}
        if typos := find_typos(rows_of):
            listed = list_some([f"{typed!r} ({self.rows[typed]}) of {meant!r}" for typed, meant in typos.items()])
            flag = f"--label-names {shlex.quote(','.join(f'{typed}={meant}' for typed, meant in typos.items()))}"
            text = f"labels that may be typing errors: {listed}; if they are, give {flag}"
            found.append(Finding("note", "", text, flag))
        return found


def find_typos(rows: Mapping[str, int]) -> dict[str, str]:
    """The names that may be mistyped, from the rows of each, and what may be meant: nearly that, and more frequent.

    Names that differ in digits, or by a beginning as `legal` and `illegal` do, are no typing errors.
    """
    typos: dict[str, str] = {}
    names = sorted(rows, key=lambda name: (-rows[name], name))[:_MOST_COMPARED]
    for typed in filter(_MISTYPED.fullmatch, names):
        word, letters = typed.lower(), _DIGITS.sub("", typed.lower())
        least = rows[typed] if rows[typed] <= _FEW_ERRORS else _TIMES_MEANT * rows[typed]
        others = {name.lower(): name for name in names if rows[name] > least and _MISTYPED.fullmatch(name)}
        near = difflib.get_close_matches(
            word, [other for other in others if _DIGITS.sub("", other) != letters], 1, _ALIKE
        )
        if near and not word.endswith(near[0]) and not near[0].endswith(word):
            typos[typed] = others[near[0]]
    return typos


def _spelling_key(label: str, *, normalized: bool) -> str:
    """What the labels of one class have in common: 1 and 1.0, a and ["a"], and, normalized, Card and card."""
    plain = _unlist(label)
    plain = normalize_text(strip(plain)) if normalized else plain
    whole = _WHOLE.fullmatch(plain)
    return whole[1] if whole else plain


def _unlist(label: str) -> str:
    listed = parse_list(label) if label[:1] == "[" else None
    return listed[0] if listed and len(listed) == 1 else label


def find_missing(labels: Collection[str]) -> list[str]:
    return [label for label in labels if normalize_text(label) in _MISSING]


def is_no_label(cell: str) -> bool:
    """Whether a cell shows no label: it is empty, an empty list, or holds only invisible characters."""
    return not _INVISIBLE.sub("", cell) or (cell.strip()[:1] == "[" and parse_list(cell) == [])


def strip(label: str) -> str:
    return _INVISIBLE.sub("", label) or label.strip()


def name_classes(
    counts: Mapping[str, int],
    *,
    normalize: bool = True,
    requested: str | None = None,
    unlabelled: frozenset[str] = frozenset(),
    divided: frozenset[str] = frozenset(),
) -> ClassNames:
    """Name the classes of labels, from the rows of each.

    1.0 and 1 are one class where both occur; ["a"] is a. With `normalize` labels that differ in case, spaces or Unicode
    form are one class, named as in most rows. `requested` renames and merges: "0=negative,1=positive". Raises
    InputError where it names a label that does not occur, or a class twice.
    """
    ways: dict[str, list[str]] = {}
    for label in counts:
        ways.setdefault(_spelling_key(label, normalized=normalize), []).append(label)
    class_of: dict[str, str] = {}
    for key, same in ways.items():
        best = max(same, key=lambda label: (counts[label], label))
        best = key if _WHOLE.fullmatch(key) and key in same else _unlist(best)
        class_of |= dict.fromkeys(same, strip(best) if normalize else best)
    renamed = _parse_renames(requested) if requested is not None else {}
    keys = {_spelling_key(label, normalized=normalize) for label in divided}
    renamed = {old: new for old, new in renamed.items() if _spelling_key(old, normalized=normalize) not in keys}
    unknown = sorted(set(renamed) - set(class_of.values()) - set(counts))
    if unknown:
        raise InputError(
            f"--label-names: not a label in --data: {list_some(unknown, show=repr)}; expected some of "
            f"{list_some(sorted(set(class_of.values())), show=repr, most=_LISTED)}."
        )
    new: dict[str, str] = {}
    for old, name in renamed.items():
        if new.setdefault(class_of.get(old, old), name) != name:
            raise InputError(
                f"--label-names gives {old!r} the name {name!r}, and another name to a label of the same class; give "
                "both the same name, or add --normalize-labels none."
            )
    names = {label: new.get(name, name) for label, name in class_of.items()}
    return ClassNames(names, unlabelled, dict(counts), normalized=normalize, divided=divided)


def find_divided(requested: str | None, labels: Collection[str], *, normalize: bool) -> frozenset[str]:
    """The labels that --label-names gives several names, as in billing=refund|late, in each of their spellings.

    Raises InputError where one of these is no label yet.
    """
    keys = {label: _spelling_key(label, normalized=normalize) for label in labels}
    divided = set[str]()
    for old, name in (_parse_renames(requested) if requested is not None else {}).items():
        parts = [part.strip() for part in name.split(PART_OF)]
        same = {label for label, key in keys.items() if key == _spelling_key(old, normalized=normalize)}
        if len(parts) > 1 and same:
            known = {*keys.values()}
            if missing := [part for part in parts if _spelling_key(part, normalized=normalize) not in known]:
                raise InputError(f"--label-names {old}={name}: no row has the label {missing[0]!r}; label some first.")
            divided |= same
    return frozenset(divided)


def _parse_renames(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(old.strip() and sign and new.strip() for old, sign, new in pairs):
        raise InputError(f"--label-names must be pairs such as 0=negative,1=positive. Got {text!r} instead.")
    names = {old.strip(): new.strip() for old, _, new in pairs}
    if len(names) < len(pairs):
        raise InputError(f"--label-names names a label twice: {text!r}; give each one name.")
    return names


def find_separator(cells: Mapping[str, int]) -> str | Question | None:
    """What separates the labels of a column's cells, given with their rows; None where each is one label.

    Lists are told by their brackets. Else the parts of cells with several labels recur in other cells. The same number
    of parts in every cell is a question, since that may be a record; so are two separators that fit, and other signs
    than `SEPARATORS`.
    """
    cells = {cell: rows for cell, rows in cells.items() if cell}
    lists = [parsed for cell in cells if cell[0] == "[" and (parsed := parse_list(cell)) is not None]
    if any(len(parsed) > 1 for parsed in lists):
        is_record = len(lists) == len(cells) > 1 and len(set(map(len, lists))) == 1
        return _ask(cells, []) if is_record else BRACKETS
    verdicts = {sign: verdict for sign in SEPARATORS if (verdict := _is_separator(cells, sign)) is not False}
    if not verdicts:
        signs = Counter(sign for cell in cells for sign in set(_BETWEEN.findall(cell)))
        other = next(
            (sign for sign, _ in signs.most_common(_MOST_SIGNS) if _is_separator(cells, sign) is not False), None
        )
        return None if other is None else _ask(cells, [other])
    (sign, is_sure), *rivals = verdicts.items()
    return sign if is_sure and not rivals else _ask(cells, list(verdicts))


def _ask(cells: Iterable[str], separators: Sequence[str]) -> Question:
    example = next(cell for cell in cells if not separators or any(sign in cell for sign in separators))
    flags = [f"--label-separator {shlex.quote(sign)}" for sign in separators] or ["--task multi"]
    return Question(f"is {example[:EXCERPT]!r} one label or several", (), ("--task single", *flags))


def _is_separator(cells: Collection[str], separator: str) -> bool | None:
    """Whether a separator divides cells into sets of labels; None where that is a question."""
    parts_of = {cell: split_cell(cell, separator) for cell in cells}
    inside = {part for parts in parts_of.values() if len(parts) > 1 for part in parts}
    if not inside or max(map(len, inside)) > _LONGEST_LABEL:
        return False
    counts = Counter(part for parts in parts_of.values() for part in set(parts))
    recur = sum(counts[part] > 1 for part in inside) / len(inside)
    if recur < _RECUR:
        return None if recur >= _MAY_RECUR and any(part in cells for part in inside) else False
    pairs = Counter(pair for parts in parts_of.values() for pair in itertools.pairwise(parts))
    # Parts that always come together may be one label with a sign in it.
    is_doubtful = any(1 < count == counts[one] == counts[other] for (one, other), count in pairs.items())
    if is_doubtful or len(set(map(len, parts_of.values()))) > 1:
        return None if is_doubtful else True
    # The same number of parts in every cell: a name such as "Billing::Refund", whose first part never comes second and
    # which has few of all pairs, else perhaps a record.
    first, *others = (set(parts) for parts in zip(*parts_of.values(), strict=True))
    size = math.prod(map(len, (first, *others)))
    return False if first.isdisjoint(set().union(*others)) and 2 * len(parts_of) <= size else None


def refuse_objects(cells: Iterable[str], where: str) -> None:
    """Raise InputError where a cell is written as an object, or as a list that is none of names."""
    for cell in cells:
        if (cell[:1], cell[-1:]) in (("{", "}"), ("[", "]")) and parse_list(cell) is None:
            raise InputError(
                f'{where} holds {cell[:EXCERPT]!r}; expected a label, or a list of labels such as ["a", "b"]. Write it '
                "so, name another column with --label-column, or give --task single if it is one label."
            )


def find_odd_row(table: Table, texts: str, label: str, classes: ClassNames, kept: Collection[str]) -> Question | None:
    """A first or last row that may be none, such as a total or units: a class of its own beside hardly a text.

    `kept` are labels that --label-names keeps.
    """
    counts = class_counts(table, label, classes)
    least = min(_HARDLY * float(np.median(table.lengths(texts))), _LONGEST_UNIT)
    rows = np.unique([*range(len(table))[:_ENDS], *range(len(table))[-_ENDS:]])
    for row, cell, text in zip(rows.tolist(), table.take(label, rows), table.take(texts, rows), strict=True):
        name = classes.of(cell)
        if name is not None and counts[name] == 1 and name not in kept and len(text) < least:
            shown = f"{text[:EXCERPT]!r} with the label {cell[:EXCERPT]!r} ({table.unit} {table.places[row]})"
            keep = f"--label-names {shlex.quote(f'{cell}={cell}')} to keep it"
            drop = f"--unlabelled-value={shlex.quote(cell)} to leave it out"
            return Question(f"is {shown} a row of the table", (), (drop, keep))
    return None


def split_cell(cell: str, separator: str | None) -> list[str]:
    """The labels of a cell, without empty ones; a list in brackets is parsed as JSON first."""
    cell = cell.strip()
    if cell[:1] == "[" and separator is not None and (parsed := parse_list(cell)) is not None:
        return [label for label in map(str.strip, parsed) if label]
    if separator in (None, BRACKETS) or not cell:
        return [cell] if cell else []
    return [label for part in cell.split(separator) if (label := part.strip())]


def parse_list(cell: str) -> list[str] | None:
    """The values of a list as JSON or Python writes it; None for anything else, such as a list of objects."""
    if _NUMPY.search(cell):  # which Python reads as one string
        return None
    try:
        parsed = json.loads(cell)
    except (ValueError, RecursionError):
        try:
            parsed = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    if not isinstance(parsed, list) or not all(isinstance(value, str | int | float) for value in parsed):
        return None
    return [str(value) for value in parsed]


def find_labels(
    table: Table, label_column: str, more: Table | None, classes: ClassNames, known: Iterable[str] = ()
) -> list[str]:
    """Class names from all rows of `--data` and `--eval-data` and those `known`, numbers first, in order.

    Raises InputError for too few rows or classes.
    """
    counts = class_counts(table, label_column, classes)
    names = {*counts, *(() if more is None else class_counts(more, label_column, classes)), *known}
    labels = sort_labels(table, label_column, names, sum(counts.values()), recur=max(counts.values(), default=0) > 1)
    if len(names) > 2 and all(parse_mark(name) is not None for name in names):
        same = ",".join(f"{name}={'yes' if parse_mark(name) else 'no'}" for name in sorted(names))
        raise InputError(
            f"{table.path}: column {label_column!r} says yes or no in several ways. Give --label-names "
            f"{shlex.quote(same)}."
        )
    return labels


def sort_labels(table: Table, column: str, names: Collection[str], rows: int, *, recur: bool) -> list[str]:
    """The names in order, numbers first. Raises InputError for too few `rows` or names, or where none `recur`."""
    where, ways = f"{table.path}: column {column!r}", "name another column with --label-column"
    if rows < MIN_ROWS:
        labelled = "rows" if rows == len(table) else "rows with a label"
        raise InputError(f"{table.path}: expected at least {MIN_ROWS} {labelled}. Got {rows} instead.")
    if len(names) < 2:
        raise InputError(
            f"{where}: expected at least two classes. Got {list_some(list(names), show=repr) or 'none'} in {rows} of "
            f"{len(table)} rows instead; {ways}, or write a class into empty cells."
        )
    if not recur:
        raise InputError(
            f"{where}: expected labels that occur in several rows. Got {len(names)} different ones in {rows} rows "
            f"instead; {ways}, or give another --task."
        )
    return sorted(names, key=sort_key)


def class_counts(table: Table, column: str, classes: ClassNames) -> Counter[str]:
    counts: Counter[str] = Counter()
    for value, count in value_counts(table, column).items():
        if name := classes.of(value):
            counts[name] += count
    return counts


def value_counts(table: Table, column: str) -> dict[str, int]:
    values, numbers = table.dictionary_encode(column)
    return dict(zip(values, np.bincount(numbers, minlength=len(values)).tolist(), strict=True))


def list_counts(labels: Sequence[str], counts: npt.NDArray[np.int64]) -> str:
    order = np.argsort(-counts, kind="stable").tolist()
    return list_some([f"{labels[number]!r} {counts[number]}" for number in order[:_LISTED]], len(order), most=_LISTED)


def refuse_unknown(
    cells: Iterable[Iterable[str]], numbers: npt.NDArray[np.int64], table: Table, labels: Sequence[str], known_from: str
) -> None:
    """Raise InputError naming labels that `known_from` does not have, with their rows.

    `cells` has the labels of each distinct cell, `numbers` (rows,) each row's cell.
    """
    known, places = set(labels), dict[str, list[int]]()
    for number, cell in enumerate(cells):
        for label in cell:
            if label not in known:
                places.setdefault(label, []).append(number)
    # Each example costs a pass over the rows, so only shown labels get one.
    faults = [
        f"{table.describe_rows(np.flatnonzero(np.isin(numbers, places[name])).tolist())}: the label "
        f"{name[:EXCERPT]!r} is in no row of {known_from}; expected one of "
        f"{list_some(labels, show=repr, most=_LISTED)}."
        for name in list(places)[:SHOWN]
    ]
    if len(places) > SHOWN:
        faults.append(f"{table.path}: {len(places)} labels in all are in no row of {known_from}.")
    if faults:
        raise InputError(*faults)


def no_such_label(value: str) -> str:
    return (
        f"--unlabelled-value {value}: no row has it as its label; give a value of the label column, or drop the flag."
    )


def sort_key(name: str) -> tuple[int, float, str]:
    number = parse_number(name)
    return (1, 0.0, name) if number is None else (0, number, name)


def are_marks(table: Table, names: Sequence[str]) -> bool:
    """Whether each of some columns holds 0 and 1, or no and yes, in nearly all filled cells, as those of a label do."""
    for name in names:
        counts = {cell: rows for cell, rows in value_counts(table, name).items() if cell.strip()}
        marks = sum(rows for cell, rows in counts.items() if parse_mark(cell) is not None)
        if marks < _MARKED * sum(counts.values()):
            return False
    return True


def list_cells(table: Table, names: Sequence[str], name: str) -> Table:
    """Add a column with the cells of several in a row, as a JSON list; empty where all of them are, or not there."""
    columns = [table.column(one) if table.has_column(one) else [""] * len(table) for one in names]
    cells = (
        json.dumps(row, ensure_ascii=False) if any(map(str.strip, row)) else "" for row in zip(*columns, strict=True)
    )
    return table.with_derived(name, cells)


def join_labels(table: Table, names: Sequence[str], name: str) -> Table:
    """Add a column with the names of those columns that hold 1 in a row, as a JSON list.

    Where the columns hold a 1, but no 0, an empty cell is one, and the table notes it. Raises InputError for other
    cells.
    """
    encoded = [table.dictionary_encode(source) for source in names]
    empty_is_no = not any(parse_mark(value) is False for values, _ in encoded for value in values)
    marks = []
    for source, (values, numbers) in zip(names, encoded, strict=True):
        parsed = [False if empty_is_no and not value.strip() else parse_mark(value) for value in values]
        wrong = [place for place, mark in enumerate(parsed) if mark is None]
        if wrong:
            where = table.describe_rows(np.flatnonzero(np.isin(numbers, wrong)).tolist())
            raise InputError(
                f"{where}: column {source!r} holds {values[wrong[0]]!r}; expected 0 or 1, or no and yes, as in "
                "each of several label columns."
            )
        marks.append(np.array(parsed, dtype=bool)[numbers])
    of_row = np.stack(marks, axis=1) if marks else np.zeros((len(table), 0), dtype=bool)
    sets, number = np.unique(of_row, axis=0, return_inverse=True)
    cells = [
        json.dumps([label for label, has in zip(names, row, strict=True) if has], ensure_ascii=False)
        for row in sets.tolist()
    ]
    if empty_is_no and not of_row.all():
        table = table.add_note(
            f"no 0 or 'no' in {', '.join(names)}: an empty cell means that a text does not have the label"
        )
    return table.with_derived(name, (cells[place] for place in number.ravel().tolist()))

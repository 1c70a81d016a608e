"""The labels of a column: missing values, spellings of one class, cells with several labels."""

from __future__ import annotations

import ast
import dataclasses
import difflib
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
from classify.tables.decide import Question
from classify.tables.profile import parse_mark
from classify.tables.table import Table
from classify.tables.text_hashes import normalize_text

MIN_ROWS = 10
# Labels that a message lists.
_LISTED = 10
# Spellings of a missing value that are hardly names of classes, as programs write them.
_MISSING = frozenset(
    {"nan", "nat", "null", "(null)", "[null]", "\\n", "n/a", "n.a.", "na", "#n/a", "<na>", "(blank)", "undefined"}
)
# Names of classes whose texts may be alike in nothing but belonging to no other class.
_OUTSIDE = frozenset({"oos", "out_of_scope", "out of scope", "out-of-scope", "other"})
# Spaces, zero-width ones, byte-order marks, and marks of the writing direction around a label.
_INVISIBLE = re.compile(r"\A[\s\u200b\u200e\u200f\u2060\ufeff]+|[\s\u200b\u200e\u200f\u2060\ufeff]+\Z")
# Signs between the labels of a cell.
SEPARATORS = ("|", ";", ",", "#")
BRACKETS = "[]"
# What --label-separator calls characters that a shell hides.
_NAMES = {"tab": "\t", "newline": "\n", "space": " ", r"\t": "\t"}
_LONGEST_LABEL = 60
# Share of a separator's parts that recur, and from which that is a question if a part stands alone elsewhere.
_RECUR = 0.8
_MAY_RECUR = 0.5
# What else may stand between labels, though it is no more than asked about: signs, or a short word such as "and".
_BETWEEN = re.compile(r"[^\w\s]+|\s\w{1,3}\s")
_MOST_SIGNS = 20
# Strings that NumPy prints beside each other, without a comma.
_NUMPY = re.compile(r"""['"]\s+['"]""")
# Similarity (difflib's ratio) from which a label may be a mistyped one, and labels of which each is compared.
_ALIKE = 0.85
_FEWEST_LETTERS = 4
# A row with fewer characters, as a share of those of most rows and at most, holds hardly a text.
_HARDLY = 0.4
_LONGEST_UNIT = 30
_MOST_COMPARED = 300


@dataclass(frozen=True)
class ClassNames:
    """The class of each label that is written in a table.

    `names` maps labels to their class where its name differs, `rows` counts the rows of each label. `unlabelled` are
    labels that count as missing, as empty cells do, of which `missing` are usual spellings of that; so does `outside`,
    which means none of the classes. `normalized`: labels that differ in case, spaces or Unicode form are one class.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    unlabelled: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    normalized: bool = True
    outside: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The class names of a trained model, from its classify.json."""
        stored = settings["label_spelling"]
        normalized, outside = stored["normalized"], stored.get("outside")
        return cls(stored["names"], frozenset(stored["unlabelled"]), normalized=normalized, outside=outside)

    def as_settings(self) -> dict[str, Any]:
        """The entry of classify.json."""
        names = {label: name for label, name in self.names.items() if label != name}
        stored = {"names": names, "unlabelled": sorted(self.unlabelled), "normalized": self.normalized}
        return {"label_spelling": stored | ({} if self.outside is None else {"outside": self.outside})}

    def spell(self, written: Iterable[str], classes: Sequence[str]) -> Self:
        """The names with further labels `written`, where each differs in spelling alone from one of `classes`."""
        exact, alike = set(classes), dict[str, set[str]]()
        for label in (*classes, *self.names):
            alike.setdefault(self._key(label), set()).add(label if label in exact else self.names[label])
        names = {label: name for label, name in self.names.items() if label not in exact}
        for label in written:
            matches = alike.get(self._key(label), set())
            if label not in exact and label not in names and len(matches) == 1:
                (names[label],) = matches
        return dataclasses.replace(self, names=names)

    def of(self, label: str) -> str | None:
        """The class of a label; None where it means unlabelled."""
        if label in self.unlabelled or self.is_outside(label):
            return None
        if label[:1] == "[" and label not in self.names and (listed := parse_list(label)) is not None:
            return self.of(listed[0]) if len(listed) == 1 else label if listed else None
        return self.names.get(label) or (None if is_no_label(label) else label)

    def is_outside(self, label: str) -> bool:
        """Whether a label means none of the classes."""
        return self.outside is not None and (label == self.outside or self._key(label) == self._key(self.outside))

    def _key(self, label: str) -> str:
        """What labels of one class have in common: 1 and 1.0, and, normalized, Card and card."""
        plain = normalize_text(strip(label)) if self.normalized else label
        whole = re.fullmatch(r"([+-]?\d+)(\.0+)?", plain)
        return whole[1] if whole else plain

    def findings(self) -> list[Finding]:
        """The labels that are one class, written differently, and what may be wrong with labels."""
        merged = self._list_merged(by_spelling=True)
        why = "merged, since they differ only in case, (invisible) spaces or Unicode form; row counts in parentheses"
        found = [decided("labels", list_some(merged), why, "--normalize-labels none", True)] if merged else []
        for label, rows in self.missing.items():
            if rows:
                keep = shlex.quote(f"{label}={label}")
                found.append(
                    note(
                        f"{rows} rows have the label {label!r}, which is read as missing; to keep it as a class: "
                        f"--label-names {keep}"
                    )
                )
        found += [note(f"the labels {labels} are one class") for labels in self._list_merged(by_spelling=False)]
        for label, rows in self.rows.items():
            if rows and not self.is_outside(label) and normalize_text(label) in _OUTSIDE:
                flag = f"--out-of-scope-label {shlex.quote(label)}"
                found.append(
                    note(f"the label {label!r} ({rows}) may mean none of the other classes; if so, give {flag}")
                )
        return [*found, *self._describe_typos()]

    def _list_merged(self, *, by_spelling: bool) -> list[str]:
        """Each class with its labels where there are several: that differ in spelling alone, or the others."""
        ways: dict[str, list[str]] = {}
        for label, name in self.names.items():
            ways.setdefault(name, []).append(label)
        return [
            " = ".join(
                f"{label!r} ({self.rows.get(label, 0)})"
                for label in sorted(same, key=lambda one: (-self.rows.get(one, 0), one))
            )
            for same in ways.values()
            if len(same) > 1 and by_spelling == (len({normalize_text(strip(label)) for label in same}) == 1)
        ]

    def _describe_typos(self) -> list[Finding]:
        """Note the labels that are spelled like a more frequent one, with the flag that merges all of them."""
        rows = {name: count for name, count in self.rows.items() if count and self.of(name) == name}
        by_rows = sorted(rows, key=lambda name: (-rows[name], name))
        typos = {}
        for place, typed in enumerate(by_rows[:_MOST_COMPARED]):
            meant = next(
                (other for other in by_rows[:place] if rows[other] > rows[typed] and is_typo(typed, other)), None
            )
            if meant is not None and not set(typed + meant) & set(",="):
                typos[typed] = meant
        if not typos:
            return []
        shown = [f"{typed!r} ({rows[typed]}) of {meant!r} ({rows[meant]})" for typed, meant in typos.items()]
        pairs = ",".join(f"{typed}={meant}" for typed, meant in typos.items())
        flag = f"--label-names {shlex.quote(pairs)}"
        return [
            Finding("note", "", f"labels that may be typing errors: {list_some(shown)}; if they are, give {flag}", flag)
        ]


def is_typo(typed: str, meant: str) -> bool:
    """Whether a name may be mistyped: it is nearly another one, and does not differ in digits or by a beginning."""
    short, long = sorted((typed.lower(), meant.lower()), key=len)
    if not _FEWEST_LETTERS <= len(short) <= len(long) <= _LONGEST_LABEL or long.endswith(short):
        return False
    if re.sub(r"\d", "", short) == re.sub(r"\d", "", long):
        return False
    matcher = difflib.SequenceMatcher(None, short, long, autojunk=False)
    return matcher.real_quick_ratio() >= _ALIKE <= matcher.quick_ratio() and matcher.ratio() >= _ALIKE


def find_missing(labels: Collection[str]) -> list[str]:
    """The labels that are usual spellings of a missing value, such as NA."""
    return [label for label in labels if normalize_text(label) in _MISSING]


def is_no_label(cell: str) -> bool:
    """Whether a cell shows no label: it is empty, an empty list, or holds only invisible characters."""
    return not _INVISIBLE.sub("", cell) or (cell.strip()[:1] == "[" and parse_list(cell) == [])


def strip(label: str) -> str:
    """A label without spaces and invisible characters around it, unless it holds no others."""
    return _INVISIBLE.sub("", label) or label.strip()


def name_classes(
    counts: Mapping[str, int],
    *,
    normalize: bool = True,
    requested: str | None = None,
    unlabelled: frozenset[str] = frozenset(),
) -> ClassNames:
    """Name the classes of labels, from the rows of each.

    1.0 and 1 are one class where both occur; ["a"] is a. With `normalize` labels that differ in case, spaces or Unicode
    form are one class, named as in most rows. `requested` renames and merges: "0=negative,1=positive". Raises
    InputError where it names a label that does not occur, or a class twice.
    """
    class_of = {label: label for label in counts}
    for label in counts:
        whole = label.partition(".")[0]
        single = parse_list(label) if label[:1] == "[" else None
        if re.fullmatch(r"[+-]?\d+\.0+", label) and whole in counts:
            class_of[label] = whole
        elif single is not None and len(single) == 1:
            class_of[label] = single[0]
    if normalize:
        ways: dict[str, list[str]] = {}
        for label in counts:
            ways.setdefault(normalize_text(strip(class_of[label])), []).append(label)
        for same in ways.values():
            best = max(same, key=lambda label: (counts[label], label))
            class_of |= dict.fromkeys(same, strip(class_of[best]))
    renamed = _parse_renames(requested) if requested is not None else {}
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
    return ClassNames(names, unlabelled, dict(counts), normalized=normalize)


def _parse_renames(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(old.strip() and sign and new.strip() for old, sign, new in pairs):
        raise InputError(f"--label-names must be pairs such as 0=negative,1=positive. Got {text!r} instead.")
    names = {old.strip(): new.strip() for old, _, new in pairs}
    if len(names) < len(pairs):
        raise InputError(f"--label-names names a label twice: {text!r}; give each one name.")
    return names


def parse_separator(flag: str) -> str:
    """The separator that --label-separator names."""
    return _NAMES.get(flag, flag)


def find_separator(cells: Mapping[str, int], known: Collection[str] = ()) -> str | Question | None:
    """What separates the labels of a column's cells, given with their rows; None where each is one label.

    Lists are told by their brackets. Else the parts of cells with several labels recur in other cells. Where every cell
    has the same number of parts, they are one name, or a question if a part comes in two places or they combine at
    will. So are two separators that fit, and other signs than `SEPARATORS`. Cells that are `known` labels of a model
    are not divided.
    """
    cells = {cell: rows for cell, rows in cells.items() if cell and cell not in known}
    lists = [parsed for cell in cells if cell[0] == "[" and (parsed := parse_list(cell)) is not None]
    if any(len(parsed) > 1 for parsed in lists):
        if len(lists) == len(cells) > 1 and len(set(map(len, lists))) == 1:
            return _ask(cells, [])
        return BRACKETS
    fitting, doubtful = list[str](), list[str]()
    for separator in SEPARATORS:
        verdict = _rate_separator(cells, separator, known)
        (fitting if verdict is True else doubtful if verdict is None else []).append(separator)
    if len(fitting) == 1 and not doubtful:
        return fitting[0]
    if fitting or doubtful:
        return _ask(
            [cell for cell in cells if any(sign in cell for sign in (*fitting, *doubtful))], [*fitting, *doubtful]
        )
    signs = Counter(sign for cell in cells for sign in set(_BETWEEN.findall(cell)))
    others = [sign for sign, _ in signs.most_common(_MOST_SIGNS) if _rate_separator(cells, sign, known) is not False]
    return _ask([cell for cell in cells if others[0] in cell], others[:1]) if others else None


def refuse_objects(cells: Iterable[str], where: str) -> None:
    """Raise InputError where a cell is written as an object, or as a list that is none of names."""
    wrong = next(
        (cell for cell in cells if (cell[:1], cell[-1:]) in (("{", "}"), ("[", "]")) and parse_list(cell) is None), None
    )
    if wrong is not None:
        raise InputError(
            f'{where} holds {wrong[:EXCERPT]!r}; expected a label, or a list of labels such as ["a", "b"]. Write it '
            "so, name another column with --label-column, or give --task single if it is one label."
        )


def are_numbers_or_lists(cells: Collection[str]) -> bool:
    """Whether cells such as 3 and 3,5 may be numbers with a decimal comma, or lists of numbers."""
    parts = [cell.split(",") for cell in cells]
    short = all(all(map(str.isdecimal, digits)) and max(map(len, digits)) < 3 for digits in parts)
    pairs = [digits for digits in parts if len(digits) > 1]
    return (
        short
        and bool(pairs)
        and all(len(digits) == 2 and len(digits[1]) == 1 and len(set(digits)) == 2 for digits in pairs)
    )


def find_odd_row(table: Table, texts: str, label: str, classes: ClassNames, kept: Collection[str]) -> Question | None:
    """A first or last row that may be none, such as a total or units: a class of its own beside hardly a text.

    `kept` are labels that --label-names keeps.
    """
    counts, ends = (
        class_counts(table, label, classes),
        {*range(min(5, len(table))), *range(max(0, len(table) - 5), len(table))},
    )
    rows = np.array(sorted(ends), dtype=np.int64)
    usual = float(np.median(table.lengths(texts)))
    for row, cell, text in zip(rows.tolist(), table.take(label, rows), table.take(texts, rows), strict=True):
        name = classes.of(cell)
        if (
            name is not None
            and counts[name] == 1
            and name not in kept
            and len(text) < min(_HARDLY * usual, _LONGEST_UNIT)
        ):
            shown = f"{text[:EXCERPT]!r} with the label {cell[:EXCERPT]!r}"
            place = table.place_of(row) if table.files else f"{table.unit} {table.place_of(row)}"
            question = f"is {shown} ({place}) a row of the table"
            keep = f"--label-names {shlex.quote(f'{cell}={cell}')} to keep it"
            return Question(question, (), (f"--unlabelled-value={shlex.quote(cell)} to leave it out", keep))
    return None


def _ask(cells: Iterable[str], separators: Sequence[str]) -> Question:
    example = next(iter(cells))
    flags = tuple(f"--label-separator {shlex.quote(sign)}" for sign in separators)
    return Question(
        f"is {example[:EXCERPT]!r} one label or several", (), ("--task single", *(flags or ("--task multi",)))
    )


def _rate_separator(cells: Mapping[str, int], separator: str, known: Collection[str]) -> bool | None:
    """Whether a separator divides cells into sets of labels; None where that is a question."""
    parts_of = {cell: split_cell(cell, separator) for cell in cells}
    divided = [cell for cell, parts in parts_of.items() if len(parts) > 1]
    if not divided:
        return False
    counts = Counter(part for parts in parts_of.values() for part in set(parts))
    inside = {part for cell in divided for part in parts_of[cell]}
    recur = sum(counts[part] > 1 or part in known for part in inside) / len(inside)
    if max(map(len, inside)) > _LONGEST_LABEL or recur < _MAY_RECUR:
        return False
    if recur < _RECUR or (len(counts) >= len(cells) and any(part in cells for part in inside)):
        return None if any(part in cells for part in inside) else False
    cells_of: dict[str, set[str]] = {part: set() for part in inside}
    for cell in divided:
        for part in parts_of[cell]:
            cells_of[part].add(cell)
    several = [frozenset(found) for found in cells_of.values() if len(found) > 1]
    if len(set(several)) < len(several):  # parts that always come together may be one label with a sign in it
        return None
    if len({len(parts) for parts in parts_of.values()}) > 1:
        return True
    places = [set(parts) for parts in zip(*parts_of.values(), strict=True)]
    moves = not places[0].isdisjoint(set().union(*places[1:]))
    # Parts that combine at will are a record; names such as "Billing - Refund" have few of all pairs.
    return None if moves or 2 * len(parts_of) > math.prod(map(len, places)) else False


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
    table: Table, label_column: str, more: Table | None = None, classes: ClassNames | None = None
) -> list[str]:
    """Class names from all rows of `--data` and `--eval-data`, numbers first, in order.

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
    if len(names) > 2 and all(parse_mark(name) is not None for name in names):
        same = ",".join(f"{name}={'yes' if parse_mark(name) else 'no'}" for name in sorted(names))
        raise InputError(
            f"{table.path}: column {label_column!r} says yes or no in several ways: "
            f"{list_some(sorted(names), show=repr)}. Give --label-names {shlex.quote(same)}."
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


def value_counts(table: Table, column: str) -> dict[str, int]:
    """Count the rows of each value of a column."""
    values, numbers = table.dictionary_encode(column)
    return dict(zip(values, np.bincount(numbers, minlength=len(values)).tolist(), strict=True))


def list_counts(labels: Sequence[str], counts: npt.NDArray[np.int64]) -> str:
    """The labels with most rows, and their rows."""
    order = np.argsort(-counts, kind="stable").tolist()
    return list_some([f"{labels[number]!r} {counts[number]}" for number in order[:_LISTED]], len(order), most=_LISTED)


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
    if not places:
        return
    # Each example costs a pass over the rows, so only shown labels get one.
    shown = {name: np.flatnonzero(np.isin(numbers, places[name])).tolist() for name in list(places)[:SHOWN]}
    expected = f"expected one of {list_some(labels, show=repr, most=_LISTED)}"
    if len(places) > SHOWN:
        listed = [f"{name[:EXCERPT]!r} ({table.describe_rows(rows[:1])})" for name, rows in shown.items()]
        hint = " Do its columns differ from those of the training table?" if len(places) > len(labels) else ""
        raise InputError(
            f"{table.path}: {len(places)} labels are in no row of {known_from}: {list_some(listed, len(places))}; "
            f"{expected}.{hint}"
        )
    raise InputError(
        *(
            f"{table.describe_rows(rows)}: the label {name!r} is in no row of {known_from}; {expected}."
            for name, rows in shown.items()
        )
    )


def no_such_label(value: str) -> str:
    """The message for an --unlabelled-value that does not occur."""
    return (
        f"--unlabelled-value {value}: no row has it as its label; give a value of the label column, or drop the flag."
    )


def label_sort_key(name: str) -> tuple[int, float, str]:
    """A key that sorts numbers first, by value, then names."""
    try:
        number = float(name)
    except ValueError:
        return (1, 0.0, name)
    # "nan" compares with nothing, so the order would depend on that of the input.
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)

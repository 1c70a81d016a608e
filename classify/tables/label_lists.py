"""Cells that hold several labels: "a,b", "a|b", "a#b", or a list as JSON or Python writes it."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from classify.errors import EXCERPT
from classify.tables import rules
from classify.tables.decide import Answer, Candidate, Doubt, ask, choose
from classify.tables.profile import parse_mark

# Separators of labels, and those that the names of labels contain, too, which need an answer. Some are the commas of
# other scripts.
STRONG = ("|", ";", ",", "#", "~", "^", "::", "\n", "、", "，", "；", "،")
WEAK = ("/", "+", "&", " and ", " > ", "><", "\t", " ")
# The separator of cells such as ["a", "b"], and that between the labels of a row that come from several columns.
BRACKETS, COLUMN_SEPARATOR = "[]", "\x1f"
# Share of rows with several labels from which cells are lists, share of the parts that must recur, and longest label.
_LEAST, _MOST, _LONGEST = 0.01, 0.8, 60
# What --label-separator calls characters that a shell hides.
_NAMES = {"tab": "\t", "newline": "\n", "space": " ", "brackets": BRACKETS, r"\t": "\t"}


def parse_separator(flag: str | None) -> str | None:
    """Return the separator that a flag names; None without one."""
    return None if flag is None else _NAMES.get(flag, flag)


def choose_separator(cells: Mapping[str, int], known: Collection[str] = ()) -> Answer[str | None] | Doubt:
    """Choose what separates the labels of a column's cells, given with their rows; None where each is one label.

    Cells that are `known` labels of a trained model are never divided.
    """
    cells = {cell: rows for cell, rows in cells.items() if cell not in known}
    lists = {cell: rows for cell, rows in cells.items() if _is_list(cell)}
    plain = {cell: rows for cell, rows in cells.items() if cell not in lists}
    single = Candidate[str | None](
        None, 0.0, f"each cell is one label ({_example(cells)})", "--task single", ("one label",)
    )
    candidates = [single]
    for separator in (*STRONG, *WEAK):
        points, shown = _weigh(plain, separator, known)
        if shown and points > -2.0:
            if separator in WEAK:  # never more than a question
                points = min(points, 0.5)
            flag = f"--label-separator {_name(separator)!r}"
            candidates.append(
                Candidate(
                    separator, points, f"{_name(separator)} between labels ({shown})", flag, ("parts of cells recur",)
                )
            )
    if any(len(split_cell(cell, BRACKETS)) > 1 for cell in lists):
        in_brackets = Candidate[str | None](
            BRACKETS, 8.0, f"lists in brackets ({_example(lists)})", "--label-separator brackets", ("lists",)
        )
        if len(candidates) > 1 and max(candidate.points for candidate in candidates[1:]) > 0:
            return ask("the separator of labels", [in_brackets, *candidates])
        candidates.append(in_brackets)
    answer = choose("the separator of labels", candidates, fewest=-0.5)
    joined = _find_joined(plain)
    if isinstance(answer, Answer) and answer.value is None and joined is not None:
        cell, separator = joined
        several = Candidate[str | None](
            separator, 0.0, f"{_name(separator)} between labels ({cell!r})", f"--label-separator {_name(separator)!r}"
        )
        return ask("the separator of labels", [several, single])
    return answer


def _find_joined(cells: Mapping[str, int]) -> tuple[str, str] | None:
    """Return a cell that is two others with a separator between them, and the separator; None without one."""
    for cell in cells:
        for separator in (*STRONG, *WEAK):
            parts = cell.split(separator) if separator.strip() else [cell]
            for place in range(1, len(parts)):
                first, last = separator.join(parts[:place]).strip(), separator.join(parts[place:]).strip()
                if first != last and first in cells and last in cells:
                    return cell[:EXCERPT], separator
    return None


def _weigh(cells: Mapping[str, int], separator: str, known: Collection[str]) -> tuple[float, str]:
    """Return the points of a separator, and a cell that it divides; "" where it divides none."""
    parts_of = {cell: split_cell(cell, separator) for cell in cells}
    divided = [cell for cell, parts in parts_of.items() if len(parts) > 1]
    if not divided:
        return 0.0, ""
    counts = Counter(part for parts in parts_of.values() for part in set(parts))
    inside = {part for cell in divided for part in parts_of[cell]}
    held_by: dict[str, list[int]] = {part: [] for part in inside}
    for number, cell in enumerate(divided):
        for part in set(parts_of[cell]):
            held_by[part].append(number)
    apart = len(set(map(tuple, held_by.values()))) == len(inside) or min(map(len, held_by.values())) < 2
    share = sum(cells[cell] for cell in divided) / sum(cells.values())
    recur = sum(counts[part] > 1 or part in known for part in inside) / len(inside)
    alone = sum(part in cells or part in known for part in inside) / len(inside)
    holding = {
        "parts recur": recur >= _MOST,
        "parts do not recur": recur < _MOST,
        "parts stand alone": alone,
        "fewer parts than cells": len(counts) < len(cells),
        "in many rows": share > _LEAST,
        "parts always come together": not apart,
        "parts are long": max(map(len, inside)) > _LONGEST,
    }
    points = sum(rules.LISTS[reason] * weight for reason, weight in holding.items())
    return points, repr(divided[0][:EXCERPT])


def _example(cells: Mapping[str, int]) -> str:
    return repr(max(cells, key=lambda cell: cells[cell])[:EXCERPT]) if cells else "empty"


def _name(separator: str) -> str:
    return next((name for name, sign in _NAMES.items() if sign == separator), separator)


def split_cell(cell: str, separator: str | None) -> list[str]:
    """Return the labels of a cell, without empty ones. Raises ValueError for a malformed list."""
    cell = cell.strip()
    if separator is None or not cell:
        return [cell] if cell else []
    if separator == BRACKETS:
        return [name for label in parse_list(cell) if (name := str(label).strip())] if cell[0] in "[{" else [cell]
    return [label for part in cell.split(separator) if (label := part.strip().strip("<>" if separator == "><" else ""))]


def parse_list(cell: str) -> Sequence[object]:
    """Return the values of a list as JSON, Python or NumPy writes it; also of one in an object. Raises ValueError."""
    try:
        parsed = json.loads(cell)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash in a label
                parsed = ast.literal_eval(cell)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parsed = None
    if isinstance(parsed, dict) and len(parsed) == 1:  # as annotation tools write {"choices": ["a", "b"]}
        (parsed,) = parsed.values()
    if parsed is None or re.search(r"""['"\d]\s+['"\d-]""", cell):  # NumPy writes no commas
        found = re.fullmatch(r"\[([^\[\]{}]*)\]", cell, re.DOTALL)
        if found is None:
            raise ValueError("no list")
        parsed = [quoted or bare for _, quoted, bare in re.findall(r"""(['"])(.*?)\1|([^\s'",]+)""", found[1])]
    if not isinstance(parsed, list):
        raise ValueError("no list")
    return parsed


def find_vector(cells: Collection[str]) -> str | None:
    """Return a cell where all are lists of yes and no of one length, one place per label; else None."""
    lists = [split_cell(cell, BRACKETS) for cell in cells if _is_list(cell)]
    if len(lists) < len(cells) or len({len(parts) for parts in lists}) != 1 or len(lists[0]) < 2:
        return None
    is_vector = all(parse_mark(part.removeprefix("-")) is not None for parts in lists for part in parts)
    return next(iter(cells)) if is_vector else None


def are_numbers_or_lists(values: Collection[str]) -> bool:
    """Return whether values such as "3" and "3,5" may be numbers with a decimal comma, or lists of numbers.

    No list has a label twice, as 3,3 would, and no label is 00 or 50, say, beside 5.
    """
    parts = [value.split(",") for value in values]
    is_number = all(len(digits) <= 2 and all(map(str.isdecimal, digits)) for digits in parts)
    fractions = [digits[1] for digits in parts if len(digits) == 2]
    return (
        bool(is_number and fractions)
        and all(len(set(digits)) == len(digits) for digits in parts)
        and all(len(fraction) == 1 for fraction in fractions)
    )


def unwrap(labels: Collection[str]) -> dict[str, str]:
    """Map each label that is a list of one in brackets to the label in it; {} where some list has several."""
    lists = {label: split_cell(label, BRACKETS) for label in labels if _is_list(label)}
    if any(len(parts) > 1 for parts in lists.values()):
        return {}
    return {label: parts[0] for label, parts in lists.items() if parts}


def is_empty_list(cell: str) -> bool:
    """Return whether a cell is a list without labels, such as [] or [""]."""
    return cell[:1] == "[" and _is_list(cell) and not split_cell(cell, BRACKETS)


def _is_list(cell: str) -> bool:
    try:
        return cell[:1] + cell[-1:] in ("[]", "{}") and parse_list(cell) is not None
    except ValueError:
        return False

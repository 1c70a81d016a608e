"""Read JSON and JSON Lines: a list of records, alone or under a key, lists by split, or an object of columns."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from classify.errors import SHOWN, InputError, list_some
from classify.tables import rules
from classify.tables.decide import Answer, Candidate, DoubtError, choose
from classify.tables.encoding import Encoding, decode_start, detect_encoding, replace_surrogates
from classify.tables.formats.base import FileFormat, ReadOptions, as_text
from classify.tables.names import SPLIT_NAMES, parse_split_name
from classify.tables.profile import ColumnProfile
from classify.tables.source import Source
from classify.tables.table import Table

if TYPE_CHECKING:
    import pyarrow

_LOOKED = 500
_BLOCK = 1 << 14
# Objects in objects become columns such as a.b; deeper ones stay JSON.
_DEEPEST = 5
_SHAPES = "a list of objects, alone or under a key, or an object of columns (lists of equal length)"
# The column of a list of strings, as texts to predict are often saved.
_TEXT = "text"
# Lines of JSON Lines end in a line feed: texts may hold other breaks.
_LINE_END = "\n"


class JSONLines(FileFormat):
    """One object per line; empty lines are skipped."""

    suffixes = (".jsonl", ".ndjson")
    takes = frozenset({"encoding"})

    def matches(self, start: bytes) -> bool:
        """Return whether the first line is an object."""
        line = decode_start(start).lstrip().partition("\n")[0]
        return line.startswith("{") and line.rstrip().endswith("}")

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Read all objects; a missing key is an empty text. Raises InputError for other lines."""
        encoding = detect_encoding(source, options.encoding, options.legacy)
        lines, bad = array("q"), list[int]()
        faults: list[str] = []

        def records() -> Iterator[dict[str, Any]]:
            with encoding.text(source, _LINE_END) as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    try:
                        record = json.loads(line)
                        fault = (
                            None if isinstance(record, dict) else f"expected an object. Got {_kind(record)} instead."
                        )
                    except (ValueError, RecursionError) as error:
                        fault = f"not JSON ({_reason(error)}); expected an object."
                    if fault is None:
                        lines.append(number)
                        yield record
                        continue
                    bad.append(number)
                    faults.append(f"{source.path} line {number}: {fault}")
                    if len(faults) >= SHOWN and not options.skips_bad_rows:
                        raise InputError(*faults)
            if faults and not options.skips_bad_rows:
                raise InputError(*faults)

        arrow = _as_columns(source, records())
        form, flag = f"JSON Lines, {encoding.description}", encoding.flag
        if bad:
            shown = list_some(bad)
            form, flag = f"{form}; {len(bad)} lines without an object skipped ({shown})", "--on-bad-rows"
        places = lambda rows: [lines[row] for row in rows]  # noqa: E731
        return Table(source.path, source.sha256, arrow, form, places, flag=flag, skipped=len(bad))


class JSON(FileFormat):
    """A list of objects, of [text, label] or of texts, alone, under a key or one per split, or columns."""

    suffixes = (".json",)
    takes = frozenset({"encoding"})

    def matches(self, start: bytes) -> bool:
        """Return whether it begins like an object, or a list of them."""
        return bool(re.match(r"\s*(\{\s*[\"}]|\[\s*[\[{\"\]])", decode_start(start)))

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Read the rows of the document. Raises InputError for other shapes."""
        encoding = detect_encoding(source, options.encoding, options.legacy)
        if _is_lines(source, encoding):
            return JSONLines().read(source, options)
        try:
            with encoding.text(source) as stream:
                document = json.load(stream)
        except (ValueError, RecursionError) as error:
            line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{source.path}{line}: not JSON ({_reason(error)}).") from None
        rows, found = _find_rows(source, document)
        arrow = _as_columns(source, rows)
        form = f"JSON, {found}{encoding.description}"
        places = lambda numbers: [row + 1 for row in numbers]  # noqa: E731
        return Table(source.path, source.sha256, arrow, form, places, "record", flag=encoding.flag)


def _is_lines(source: Source, encoding: Encoding) -> bool:
    """Return whether each of the first two non-empty lines is an object."""
    with encoding.text(source, _LINE_END) as stream:
        first = list(itertools.islice((line for line in stream if line.strip()), 2))
    try:
        return len(first) > 1 and all(isinstance(json.loads(line), dict) for line in first)
    except (ValueError, RecursionError):
        return False


def _find_rows(source: Source, document: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a document, and where they were found. Raises InputError for other shapes."""
    if isinstance(document, list):
        return _as_records(source, document), ""
    if not isinstance(document, dict):
        raise InputError(f"{source.path}: expected {_SHAPES}. Got {_kind(document)} instead.")
    inner = list(document.values())
    names, data = document.get("columns"), document.get("data")
    is_split = set(document) <= {"columns", "data", "index"} and isinstance(names, list) and isinstance(data, list)
    if is_split and all(isinstance(row, list) for row in data or ()):
        assert names is not None
        assert data is not None
        return [dict(zip(map(str, names), row, strict=False)) for row in data], ""
    if len(inner) > 1 and all(isinstance(value, dict) and value.keys() == inner[0].keys() for value in inner):
        if all(key.isdecimal() for key in document):  # rows of pandas, else columns
            return inner, ""
        document = {name: list(column.values()) for name, column in document.items()}
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    found = _lists_of_rows(document)
    if len(lists) == len(document) and len({len(value) for value in lists.values()}) == 1 and len(found) < len(lists):
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)], ""
    records = {key: _as_records(source, rows, f" under {key!r}") for key, rows in found.items()}
    if len(records) > 1 and all(parse_split_name(key) is not None for key in records):
        taken = {name for rows in records.values() for row in rows[:_LOOKED] for name in row}
        column = next((name for name in SPLIT_NAMES if name not in taken), SPLIT_NAMES[0])
        return [{**row, column: key} for key, rows in records.items() for row in rows], "a list per split, "
    if not records and not any(isinstance(value, list | dict) for value in document.values()):
        return [document], "one object, "
    if not records:
        keys = list_some(list(document), show=repr)
        raise InputError(f"{source.path}: expected {_SHAPES}. Got an object with the keys {keys} instead.")
    key = _choose_list(source, records)
    others = [f"{other!r} ({len(rows)})" for other, rows in records.items() if other != key]
    left = f"not those under {list_some(others)}, " if others else ""
    return records[key], f'rows under "{key}", {left}'


def _lists_of_rows(document: Mapping[str, Any], above: str = "") -> dict[str, list[Any]]:
    """Return the lists of objects or of lists in an object, and in those directly in it, by their keys."""
    lists: dict[str, list[Any]] = {}
    for key, value in document.items():
        is_list = isinstance(value, list) and len(value) > 0
        if is_list and (all(isinstance(row, dict) for row in value) or _are_alike(value)):
            lists[above + key] = value
        elif isinstance(value, dict) and not above:
            lists |= _lists_of_rows(value, f"{key}.")
    return lists


def _are_alike(rows: list[Any]) -> bool:
    """Return whether rows are lists of one length."""
    return all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)


def _choose_list(source: Source, records: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the key of the list whose columns could be texts and labels most. Raises DoubtError."""
    candidates = []
    for key, rows in records.items():
        arrow = _as_columns(source, rows[:_LOOKED])
        columns = [
            ColumnProfile(name, len(arrow), list(filter(None, arrow.column(name).to_pylist())))
            for name in arrow.column_names
        ]
        points = [
            max((rules.weigh(column, kind)[0] for column in columns), default=0) for kind in (rules.TEXT, rules.LABEL)
        ]
        shown = f"{key!r} ({len(rows)} rows)"
        candidates.append(Candidate(key, sum(points), shown, f"a file with one list, as of jq '.{key}'"))
    answer = choose("the list of rows", candidates, fewest=-100.0)
    if not isinstance(answer, Answer):
        raise DoubtError(source.path, [answer])
    return answer.value


def _as_records(source: Source, rows: list[Any], where: str = "") -> list[dict[str, Any]]:
    """Return objects as they are, number the values of lists, and take strings as texts. Raises InputError."""
    if rows and all(isinstance(row, str) for row in rows):
        return [{_TEXT: row} for row in rows]
    first = rows[0] if rows else {}
    for number, row in enumerate(rows, start=1):
        same = isinstance(row, dict) if isinstance(first, dict) else isinstance(row, list) and len(row) == len(first)
        if not same:
            expected = "an object" if isinstance(first, dict) else f"a list of {len(first)}"
            raise InputError(f"{source.path}{where} record {number}: expected {expected}. Got {_kind(row)} instead.")
    if isinstance(first, dict):
        return rows
    return [{f"column_{place}": value for place, value in enumerate(row, start=1)} for row in rows]


def _as_columns(source: Source, records: Iterable[dict[str, Any]]) -> pyarrow.Table:
    """Return one string column per key, in order of first appearance. Raises InputError without a record.

    It works in blocks, since records take many times the memory of columns.
    """
    import pyarrow
    import pyarrow.compute as pc

    lone: dict[str, str] = {}
    blocks, remaining = [], (_flatten(record, lone) for record in records)
    while block := list(itertools.islice(remaining, _BLOCK)):
        names = list(dict.fromkeys(key for record in block for key in record))
        columns = {
            replace_surrogates(name): _strings([as_text(record.get(name)) for record in block]) for name in names
        }
        blocks.append(pyarrow.table(columns))
    if not blocks:
        raise InputError(f"{source.path}: no record in it. Expected one object per text.")
    arrow = pyarrow.concat_tables(blocks, promote_options="default")
    columns = {name: pc.fill_null(arrow[name], "") for name in arrow.column_names}
    for key, whole in lone.items():  # an object of one value, which has more in other records
        if whole in columns and key in columns:
            alone = columns.pop(key)
            columns[whole] = pc.if_else(pc.equal(columns[whole], ""), alone, columns[whole])
    return pyarrow.table(columns)


def _flatten(record: Mapping[str, Any], lone: dict[str, str], above: str = "") -> dict[str, Any]:
    """Return the values of objects in an object under names such as a.b; a lone value under its key.

    `lone` gets the name that each lone value would have beside others.
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        while isinstance(value, dict | list) and len(value) == 1:
            inner = value[0] if isinstance(value, list) else next(iter(value.values()))
            if isinstance(value, list) and not isinstance(inner, dict):
                break
            if isinstance(value, dict):
                lone.setdefault(above + key, f"{above}{key}.{next(iter(value))}")
            value = inner
        if isinstance(value, dict) and value and above.count(".") < _DEEPEST:
            flat |= _flatten(value, lone, f"{above}{key}.")
        else:
            flat[above + key] = value
    return flat


def _strings(values: list[str]) -> pyarrow.Array:
    """Return a column; lone surrogates, which JSON can escape, become U+FFFD."""
    import pyarrow

    try:
        return pyarrow.array(values, pyarrow.string())
    except UnicodeEncodeError:
        return pyarrow.array(list(map(replace_surrogates, values)), pyarrow.string())


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error).split(":")[0].lower()


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

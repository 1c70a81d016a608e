"""Read JSON (a list of objects, alone or under a key, or an object of columns) and JSON Lines."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classify.errors import InputError, list_some
from classify.tables.encoding import Encoding, decode_start, detect_encoding, replace_surrogates
from classify.tables.formats.base import FileFormat, ReadOptions, as_text, deduplicate_names
from classify.tables.names import ALL_SPLIT_WORDS, LABEL_NAMES, SPLIT_NAMES, TEXT_NAMES, parse_split_name
from classify.tables.source import Source
from classify.tables.table import Table

if TYPE_CHECKING:
    import pyarrow

_SHOWN = 5
_BLOCK = 1 << 14
# Keys under which programs and services put the rows, beside keys about them.
_ROW_KEYS = ("data", "rows", "items", "results", "examples", "records", "values")
_SHAPES = "a list of objects, alone or under a key, an object of columns (lists of equal length), or an object of lists"
# The column of a list of strings, as texts to predict are often saved.
_TEXT = "text"
_EMPTY = "{}: no record in it. Expected one object per text."

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
        encoding = detect_encoding(source, options.encoding)
        lines = array("q")
        faults: list[str] = []
        bad: list[int] = []

        def records() -> Iterator[dict[str, Any]]:
            with encoding.text(source, _LINE_END) as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    try:
                        record = json.loads(line)
                        if not isinstance(record, dict):
                            got = _kind(record)
                            faults.append(f"{source.path} line {number}: expected an object. Got {got} instead.")
                    except (ValueError, RecursionError) as error:
                        faults.append(f"{source.path} line {number}: not JSON ({_reason(error)}); expected an object.")
                        record = None
                    if len(faults) >= _SHOWN and not options.skips_bad_rows:
                        raise InputError(*faults)
                    if isinstance(record, dict):
                        lines.append(number)
                        yield record
                    else:
                        bad.append(number)

        arrow = _table(records())
        form, flag = f"JSON Lines, {encoding.description}", encoding.flag
        if faults:
            if not options.skips_bad_rows:
                raise InputError(*faults)
            shown = ", ".join(map(str, bad[:_SHOWN])) + (", ..." if len(bad) > _SHOWN else "")
            form, flag = f"{form}; {len(bad)} lines without an object skipped ({shown})", "--on-bad-rows"
        if arrow is None:
            raise InputError(_EMPTY.format(source.path))
        places = lambda rows: [lines[row] for row in rows]  # noqa: E731
        return Table(source.path, source.sha256, arrow, form, places, flag=flag, skipped=len(bad))


class JSON(FileFormat):
    """A list of objects, of [text, label] or of texts, alone, under a key or one per split, or columns."""

    suffixes = (".json",)
    takes = frozenset({"encoding"})

    def matches(self, start: bytes) -> bool:
        """Return whether it begins like an object, or a list of them."""
        return bool(re.match(r"\s*(\[\s*)?[\[{]", decode_start(start)))

    def read(self, source: Source, options: ReadOptions) -> Table:
        encoding = detect_encoding(source, options.encoding)
        begins_with_object = JSONLines().matches(source.head)
        if begins_with_object and _is_lines(source, encoding):
            return JSONLines().read(source, options)
        # One object under another name is a record, unless it holds rows.
        may_be_record = begins_with_object and source.suffix not in self.suffixes
        try:
            with encoding.text(source) as stream:
                document = json.load(stream)
        except (ValueError, RecursionError) as error:
            if may_be_record:
                return JSONLines().read(source, options)  # which names the faults of each line, or skips these
            line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{source.path}{line}: not JSON ({_reason(error)}).") from None
        if may_be_record and not (_row_lists(document) or _is_frame(document)):
            return JSONLines().read(source, options)
        rows = _find_rows(source, document)
        arrow = _table(rows.records)
        if arrow is None:
            raise InputError(_EMPTY.format(source.path))
        form = f"JSON, {rows.description}{encoding.description}"
        places = lambda numbers: [row + rows.first for row in numbers]  # noqa: E731
        return Table(source.path, source.sha256, arrow, form, places, "record", flag=encoding.flag)


def _is_lines(source: Source, encoding: Encoding) -> bool:
    """Return whether each of the first two non-empty lines is an object."""
    with encoding.text(source, _LINE_END) as stream:
        first = list(itertools.islice((line for line in stream if line.strip()), 2))
    try:
        return len(first) > 1 and all(isinstance(json.loads(line), dict) for line in first)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class _Rows:
    """Records, in `description` where they were found, and the number of the first one in the file."""

    records: list[dict[str, Any]]
    description: str = ""
    first: int = 1


def _find_rows(source: Source, document: Any) -> _Rows:
    """Return the rows of a document of a known shape. Raises InputError for others."""
    if isinstance(document, list):
        return _read_list(source, document)
    if not isinstance(document, dict):
        raise InputError(f"{source.path}: expected {_SHAPES}. Got {_kind(document)} instead.")
    if _is_frame(document):
        return _Rows(_frame(document))
    names, rows = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(rows, list) and set(document) <= {"columns", "data", "index"}:
        below = _read_list(source, [list(map(str, names)), *rows], has_header=True)
        return _Rows(below.records, below.description)
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    whole = len(lists) == len(document)
    row_lists = _row_lists(document)
    # Columns, of which some may hold lists or objects, unless each list holds rows.
    if whole and len({len(value) for value in lists.values()}) == 1 and len(row_lists) < len(lists):
        return _Rows([dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)])
    usual = [key for key in row_lists if key.rpartition(".")[2].lower() in _ROW_KEYS]
    if len(row_lists) > 1 and (all(parse_split_name(key) is not None for key in row_lists) or (whole and not usual)):
        return _splits(source, row_lists)
    if len(row_lists) > 1 and len(usual) != 1:
        keys = ", ".join(map(repr, row_lists))
        first = max(row_lists, key=lambda key: max(map(len, row_lists[key])))  # of the widest rows
        raise InputError(f"{source.path}: rows under several keys ({keys}); save one list, e.g. with jq '.{first}'.")
    if row_lists:
        key = usual[0] if usual else next(iter(row_lists))
        rows_below = _read_list(source, row_lists[key])
        left = [other for other in row_lists if other != key]
        alike = [other for other in left if _is_alike(row_lists[other], row_lists[key])]
        if rest := [other for other in left if other.rpartition(".")[2].lower() in ALL_SPLIT_WORDS or other in alike]:
            keys = ", ".join(map(repr, [key, *rest]))
            raise InputError(
                f"{source.path}: rows under several keys ({keys}); name each after its split, as train and test, or "
                f"save one list, e.g. with jq '.{key}'."
            )
        others = f", not those under {list_some(list(map(repr, left[:_SHOWN])), len(left))}" if left else ""
        return _Rows(rows_below.records, f'rows under "{key}"{others}, {rows_below.description}', rows_below.first)
    keys = ", ".join(map(repr, list(document)[:_SHOWN]))
    raise InputError(f"{source.path}: expected {_SHAPES}. Got an object with the keys {keys} instead.")


def _row_lists(document: dict[str, Any], above: str = "") -> dict[str, list[Any]]:
    """Return the lists of objects or of lists in an object, and in those directly in it, by their keys."""
    lists: dict[str, list[Any]] = {}
    for key, value in document.items():
        if isinstance(value, list) and value and all(isinstance(row, dict | list) for row in value):
            lists[above + key] = value
        elif isinstance(value, dict) and not above:
            lists |= _row_lists(value, f"{key}.")
    return lists


def _is_alike(rows: list[Any], others: list[Any]) -> bool:
    """Return whether the first rows of two lists have the same keys, or are lists of one width."""
    one, other = rows[0], others[0]
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys()
    return isinstance(one, list) and isinstance(other, list) and len(one) == len(other)


def _splits(source: Source, lists: dict[str, list[Any]]) -> _Rows:
    """Return the rows of all lists, with a column that names the list of each.

    Each list may have a header, and one without has that of another.
    """
    shapes = {key: len(rows[0]) if isinstance(rows[0], list) else None for key, rows in lists.items()}
    (first, expected), *others = shapes.items()
    for key, width in others:
        if width != expected:
            one, other = ("objects" if size is None else f"lists of {size}" for size in (expected, width))
            raise InputError(
                f"{source.path}: expected rows of one form. Got {one} under {first!r}, {other} under {key!r}."
            )
    below = [row for rows in lists.values() for row in rows[1:]]
    header = next((rows[0] for rows in lists.values() if _names_columns(rows[0], below)), None)
    records: list[dict[str, Any]] = []
    keys: list[str] = []
    description = ""
    for key, rows in lists.items():
        has_header = header is not None
        named = [header, *rows] if has_header and not _names_columns(rows[0], below) else rows
        part = _read_list(source, named, has_header, f" under {key!r}")
        records += part.records
        keys += [key] * len(part.records)
        description = description or part.description
    # A name that is detected as the split column, and is not taken.
    column = next((name for name in SPLIT_NAMES if not any(name in record for record in records)), SPLIT_NAMES[0])
    return _Rows([{**record, column: key} for record, key in zip(records, keys, strict=True)], description)


def _is_frame(document: dict[str, Any]) -> bool:
    """Return whether an object holds objects with the same keys, as pandas writes a table."""
    inner = list(document.values())
    if not all(isinstance(value, dict) for value in inner) or not (inner and inner[0]):
        return False
    same = all(value.keys() == inner[0].keys() for value in inner)
    numbered = all(map(str.isdecimal, inner[0])) or all(map(str.isdecimal, document))
    return same and numbered and not any(isinstance(cell, dict) for value in inner for cell in value.values())


def _frame(document: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    first = next(iter(document.values()))
    if all(map(str.isdecimal, first)):
        return [{name: column[number] for name, column in document.items()} for number in first]
    return list(document.values())


def _read_list(source: Source, rows: list[Any], has_header: bool | None = None, under: str = "") -> _Rows:
    """Return rows that are objects as they are, name the values of lists, and take strings alone as texts.

    The first list names the values where it `has_header`: unless that is known, where it holds a usual name. Raises
    InputError for anything else; `under` names the rows' key in it.
    """
    if rows and all(isinstance(row, str) for row in rows):
        return _Rows([{_TEXT: row} for row in rows], "a list of texts, ")
    width = len(rows[0]) if rows and isinstance(rows[0], list) else None
    names = [f"column_{place}" for place in range(1, (width or 0) + 1)]
    if width is not None and has_header is None:
        has_header = _names_columns(rows[0], rows[1:])
    description = ""
    if has_header:
        names, renamed = deduplicate_names(rows[0])
        description = f"the first list names the columns{renamed.replace(';', ',')}, "
    records: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict) and width is None:
            records.append(row)
        elif isinstance(row, list) and len(row) == width:
            records.append(dict(zip(names, row, strict=True)))
        else:
            expected = "an object" if width is None else f"a list of {width}"
            got = f"a list of {len(row)}" if isinstance(row, list) else _kind(row)
            raise InputError(f"{source.path}{under} record {number}: expected {expected}. Got {got} instead.")
    return _Rows(records[1:], description, 2) if has_header else _Rows(records)


def _names_columns(first: Any, below: list[Any]) -> bool:
    """Return whether a list of strings holds a usual name, and nothing that the lists below hold."""
    texts = [value.strip().lower() for value in first if isinstance(value, str)] if isinstance(first, list) else []
    usual = any(text in (*TEXT_NAMES, *LABEL_NAMES) for text in texts) and len(texts) == len(first)
    return usual and not any(value in row for row in below for value in first if isinstance(row, list))


def _table(records: Iterable[dict[str, Any]]) -> pyarrow.Table | None:
    """Return one string column per key, in order of first appearance; None without a record.

    It works in blocks, since records take many times the memory of columns.
    """
    import pyarrow
    import pyarrow.compute as pc

    blocks, remaining = [], iter(records)
    while block := list(itertools.islice(remaining, _BLOCK)):
        names = list(dict.fromkeys(key for record in block for key in record))
        columns = {
            replace_surrogates(name): _strings([as_text(record.get(name)) for record in block]) for name in names
        }
        blocks.append(pyarrow.table(columns))
    if not blocks:
        return None
    arrow = pyarrow.concat_tables(blocks, promote_options="default")
    return pyarrow.table({name: pc.fill_null(arrow[name], "") for name in arrow.column_names})


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

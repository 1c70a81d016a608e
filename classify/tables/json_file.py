"""JSON: records as a list, as lines, under one key, or as columns. Nested keys are joined by dots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow

from classify.errors import EXCERPT, InputError, list_some
from classify.tables.source import ReadOptions, Source
from classify.tables.table import Table, to_arrow
from classify.tables.text import find_encoding

SUFFIXES = (".jsonl", ".ndjson", ".json")
Records = Sequence[Mapping[str, Any]]
_OBJECT_OR_LIST = re.compile(r"\s*(\{\s*(\"|\})|\[\s*(\{|\]))")
_EXPECTED = "expected a list of objects, an object per line, or an object of columns"


def claims(source: Source) -> bool:
    """Whether a file is JSON: by its name, or because it begins as an object, or a list of objects, does."""
    if not source.is_file:
        return False
    start = source.head[:4096].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe").decode("utf-8", "ignore")
    return source.suffix in SUFFIXES or _OBJECT_OR_LIST.match(start) is not None


def read(source: Source, options: ReadOptions) -> Table:
    """Read the records. Raises InputError with the lines that are no objects."""
    records, form, places, bad = _read(source, options)
    unit = "record" if places is None else "line"
    places = list(range(1, len(records) + 1)) if places is None else places
    table = from_records(records, source.path, source.sha256, form, np.array(places, dtype=np.int64), unit)
    if bad:
        table = table.add_note(f"{len(bad)} lines skipped that are no objects: {list_some(bad)}")
    return replace(table, skipped=len(bad), original=lambda: _read(source, options)[0])


def _read(source: Source, options: ReadOptions) -> tuple[Records, str, list[int] | None, list[int]]:
    """The records and their form; of a file with one in each line the numbers of the lines, and of those without."""
    encoding = find_encoding(source.head, options, source.path)
    with source.open() as stream:
        text = encoding.decode(stream.read(), source.path)
    try:
        content = json.loads(text)
        if "\n" not in text.strip() and isinstance(content, dict) and not any(map(_is_nested, content.values())):
            return [content], "JSON Lines", [1], []
        return *_find_records(content, source.path), None, []
    except (ValueError, RecursionError) as error:  # of a file with an object in each line it comes at the second one
        reason = error
    objects, bad = dict[int, Mapping[str, Any]](), list[int]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        record = _parse(line)
        if isinstance(record, dict):
            objects[number] = record
        elif objects:
            bad.append(number)
        else:
            break
    if len(objects) < max(1, len(bad)):
        raise InputError(
            f"{source.path}: not JSON ({reason}); {_EXPECTED}. Objects may not have commas between their lines, nor "
            "be printed over several lines one after another."
        )
    if bad and not options.skips_bad_rows:
        raise InputError(
            f"{source.path}: expected one JSON object per line. Got something else in line {list_some(bad)}. Mend it, "
            "or skip these lines with --on-bad-rows skip."
        )
    return list(objects.values()), "JSON Lines", list(objects), bad


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _find_records(content: Any, path: str) -> tuple[Records, str]:
    """The records of a whole file, and its form. Raises InputError where it holds none."""
    if _are_records(content):
        return content, "JSON"
    if isinstance(content, dict):
        lists = {key: value for key, value in content.items() if _are_records(value)}
        if len(lists) == 1:
            (key, records) = next(iter(lists.items()))
            return records, f"JSON, records under {key!r}"
        columns = list(content.values())
        if (
            columns
            and not lists
            and all(isinstance(column, list) and len(column) == len(columns[0]) > 1 for column in columns)
        ):
            return [dict(zip(content, row, strict=True)) for row in zip(*columns, strict=True)], "JSON, columns"
    got = json.dumps(content, ensure_ascii=False)[:EXCERPT]
    raise InputError(f"{path}: {_EXPECTED}. Got {got} instead.")


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(record, dict) for record in value)


def from_records(records: Records, path: str, sha256: str, form: str, places: Any, unit: str) -> Table:
    """A table of objects: missing keys are empty cells, and nested ones are joined by dots."""
    names = dict.fromkeys(name for record in records for name in record)
    if not names:
        raise InputError(f"{path}: expected keys in the records, such as text and label. Got none.")
    columns: dict[str, Sequence[Any]] = {}
    for name in names:
        columns |= flatten(name, [record.get(name) for record in records])
    cells = {name: to_arrow(map(as_text, values)) for name, values in columns.items()}
    return Table(path, sha256, pyarrow.table(cells), form, places, unit)


def flatten(name: str, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """The columns of a column: of objects one per key, as `name.key`; of lists of objects a list per key.

    Where some values are objects and others are none, all stay as they are.
    """
    filled = [value for value in values if value is not None and value != []]
    objects = [value if isinstance(value, list) else [value] for value in filled]
    are_objects = all(isinstance(item, Mapping) for items in objects for item in items)
    if not are_objects or len({isinstance(value, list) for value in filled}) != 1:
        return {name: values}
    columns: dict[str, Sequence[Any]] = {}
    for key in dict.fromkeys(key for items in objects for item in items for key in item):
        columns |= flatten(f"{name}.{key}", [_value_of(value, key) for value in values])
    return columns


def _value_of(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [item.get(key) for item in value]
    return None if value is None else value.get(key)


def as_text(value: Any) -> str:
    """A cell as text: text as it is, nothing as "", 3.0 as 3.0, lists and objects as JSON."""
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    return value.decode() if isinstance(value, bytes) else str(value)

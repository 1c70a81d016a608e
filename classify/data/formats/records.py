"""JSON: a list of objects, an object of columns, and JSON Lines, an object a line."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from classify.data.encoding import Encoding, decoded_start, detect_encoding
from classify.data.formats.base import Content, Format, ReadOptions, as_text
from classify.data.names import SPLIT_NAMES
from classify.data.source import Source
from classify.errors import InputError

if TYPE_CHECKING:
    import pyarrow

_SHOWN = 5
_BLOCK = 1 << 14
_EMPTY = "{}: no record in it. Expected one object per text."


class JSONLines(Format):
    """An object a line; empty lines are skipped."""

    name = "JSON Lines"
    suffixes = (".jsonl", ".ndjson")

    def recognises(self, start: bytes) -> bool:
        """Whether the first line is an object."""
        line = decoded_start(start).lstrip().partition("\n")[0]
        return line.startswith("{") and line.rstrip().endswith("}")

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All objects; a key that a line lacks is an empty text there."""
        encoding = detect_encoding(source, options.encoding)
        lines = array("q")
        faults: list[str] = []
        bad: list[int] = []

        def records() -> Iterator[dict[str, Any]]:
            with encoding.text(source) as stream:
                for number, line in enumerate(_physical(stream), start=1):
                    if not line.strip():
                        continue
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        faults.append(f"{source.path} line {number}: not JSON ({_reason(error)}); expected an object.")
                        record = None
                    if record is not None and not isinstance(record, dict):
                        faults.append(f"{source.path} line {number}: expected an object. Got {_kind(record)} instead.")
                    if len(faults) >= _SHOWN and not options.skips_bad_rows:
                        raise InputError(*faults)
                    if isinstance(record, dict):
                        lines.append(number)
                        yield record
                    else:
                        bad.append(number)

        arrow = _table(records())
        form, flag = f"JSON Lines, {encoding.words}", encoding.flag
        if faults:
            if not options.skips_bad_rows:
                raise InputError(*faults)
            shown = ", ".join(map(str, bad[:_SHOWN])) + (", ..." if len(bad) > _SHOWN else "")
            form, flag = f"{form}; {len(bad)} lines that are no objects skipped ({shown})", "--on-bad-rows"
        if arrow is None:
            raise InputError(_EMPTY.format(source.path))
        return Content(arrow, form, flag, lambda rows: [lines[row] for row in rows], skipped=len(bad))


class JSON(Format):
    """A list of objects or of [text, label], an object whose values are columns, or one with such a list a part."""

    name = "JSON"
    suffixes = (".json",)

    def recognises(self, start: bytes) -> bool:
        """Whether it begins like an object, or a list of them."""
        return bool(re.match(r"\s*(\[\s*)?[\[{]", decoded_start(start)))

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All records. Raises InputError where the document is of another shape."""
        encoding = detect_encoding(source, options.encoding)
        if JSONLines().recognises(source.start()) and _is_lines(source, encoding):
            return JSONLines().read(source, options)
        try:
            with encoding.text(source) as stream:
                document = json.load(stream)
        except (ValueError, RecursionError) as error:
            line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{source.path}{line}: not JSON ({_reason(error)}).") from None
        records = _records(source, document)
        arrow = _table(records)
        if arrow is None:
            raise InputError(_EMPTY.format(source.path))
        return Content(
            arrow, f"JSON, {encoding.words}", encoding.flag, lambda rows: [row + 1 for row in rows], "record"
        )


def _physical(stream: Any) -> Any:
    """Lines as JSON Lines has them: they end in a line feed alone, so that other breaks may stand in a text."""
    rest = ""
    while block := stream.read(1 << 20):
        *lines, rest = (rest + block).split("\n")
        yield from lines
    if rest:
        yield rest


def _is_lines(source: Source, encoding: Encoding) -> bool:
    """Whether each of the first two lines that are not empty is a document of its own."""
    with encoding.text(source) as stream:
        first = [line for line, _ in zip((line for line in _physical(stream) if line.strip()), range(2), strict=False)]
    try:
        return len(first) > 1 and all(isinstance(json.loads(line), dict) for line in first)
    except (ValueError, RecursionError):
        return False


def _records(source: Source, document: Any) -> list[dict[str, Any]]:
    """The rows of a document of a known shape; a column of their own says which of several lists they were in."""
    shapes = "a list of objects, an object of columns (lists of equal length), or an object of such lists"
    if isinstance(document, dict):
        lists = {key: value for key, value in document.items() if isinstance(value, list)}
        if lists and len(lists) == len(document):
            rows = [row for value in lists.values() for row in value]
            if rows and all(isinstance(row, dict | list) for row in rows):
                records = _listed(source, rows)
                if len(lists) == 1:
                    return records
                splits = (key for key, value in lists.items() for _ in value)
                # One that can be found again, and is not a column of theirs.
                column = next((name for name in SPLIT_NAMES if not any(name in one for one in records)), SPLIT_NAMES[0])
                return [{**record, column: split} for record, split in zip(records, splits, strict=True)]
            if len({len(value) for value in lists.values()}) == 1:
                return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
        keys = ", ".join(map(repr, list(document)[:_SHOWN]))
        raise InputError(f"{source.path}: expected {shapes}. Got an object with the keys {keys} instead.")
    if not isinstance(document, list):
        raise InputError(f"{source.path}: expected {shapes}. Got {_kind(document)} instead.")
    return _listed(source, document)


def _listed(source: Source, rows: list[Any]) -> list[dict[str, Any]]:
    """Rows that are objects as they are, lists by the number of their columns. Raises InputError for anything else."""
    width = len(rows[0]) if rows and isinstance(rows[0], list) else None
    records: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict) and width is None:
            records.append(row)
        elif isinstance(row, list) and len(row) == width:
            records.append({f"column_{place}": value for place, value in enumerate(row, start=1)})
        else:
            expected = "an object" if width is None else f"a list of {width}"
            got = f"a list of {len(row)}" if isinstance(row, list) else _kind(row)
            raise InputError(f"{source.path} record {number}: expected {expected}. Got {got} instead.")
    return records


def _table(records: Iterable[dict[str, Any]]) -> pyarrow.Table | None:
    """One string column a key, in the order in which keys appear first; None where there is no record.

    A block at a time, since records take many times the memory of columns.
    """
    import pyarrow
    import pyarrow.compute as pc

    blocks, rest = [], iter(records)
    while block := list(itertools.islice(rest, _BLOCK)):
        names = list(dict.fromkeys(key for record in block for key in record))
        columns = {_mended(name): _strings([as_text(record.get(name)) for record in block]) for name in names}
        blocks.append(pyarrow.table(columns))
    if not blocks:
        return None
    arrow = pyarrow.concat_tables(blocks, promote_options="default")
    return pyarrow.table({name: pc.fill_null(arrow[name], "") for name in arrow.column_names})


def _strings(values: list[str]) -> pyarrow.Array:
    """A column; halves of characters, which JSON can escape one by one, are read as U+FFFD."""
    import pyarrow

    try:
        return pyarrow.array(values, pyarrow.string())
    except UnicodeEncodeError:
        return pyarrow.array(list(map(_mended, values)), pyarrow.string())


def _mended(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error).split(":")[0].lower()


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

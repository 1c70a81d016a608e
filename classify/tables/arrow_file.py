"""Parquet and Arrow files, and Arrow tables in memory."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from classify.errors import InputError
from classify.tables.json_file import as_text, flatten
from classify.tables.source import ReadOptions, Source
from classify.tables.table import Table, to_arrow

SUFFIXES = (".parquet", ".arrow", ".feather")
_PARQUET = b"PAR1"
_FILE = b"ARROW1"
# What a stream of `datasets` begins with.
_STREAM = b"\xff\xff\xff\xff"


def claims(source: Source) -> bool:
    """Whether a file is Parquet or Arrow: by its first bytes and its end, since a text may begin with PAR1."""
    if not source.is_file or not source.head.startswith((_PARQUET, _FILE, _STREAM)):
        return False
    return source.suffix in SUFFIXES or b"\0" in source.head[:256]


def read(source: Source, options: ReadOptions) -> Table:
    """Read all columns as text. Raises InputError where the file is damaged."""
    form = "Parquet" if source.head.startswith(_PARQUET) else "Arrow"
    table = from_arrow(_read_typed(source, form), source.path, source.sha256, form)
    return replace(table, original=functools.partial(_read_typed, source, form))


def _read_typed(source: Source, form: str) -> pyarrow.Table:
    try:
        with source.open() as stream:
            if form == "Parquet":
                return pyarrow.parquet.read_table(stream)
            if source.head.startswith(_STREAM):
                return pyarrow.ipc.open_stream(stream).read_all()
            return pyarrow.ipc.open_file(pyarrow.BufferReader(stream.read())).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{source.path}: not a readable {form} file ({reason}); copy it again.") from None


def from_arrow(typed: pyarrow.Table, path: str, sha256: str, form: str) -> Table:
    """A table of any Arrow types as texts: objects become columns `name.key`, lists JSON, missing values "".

    Numbers of `datasets`' ClassLabel become the names of the classes. Columns of bytes that are no text are left out.
    """
    classes, columns, left_out = _class_names(typed.schema), dict[str, pyarrow.ChunkedArray](), list[str]()
    for name, column in zip(typed.column_names, typed.columns, strict=True):
        name = str(name)
        if name.startswith("__index_level_"):  # of pandas
            continue
        try:
            columns |= _as_texts(name, column, classes.get(name))
        except (UnicodeDecodeError, pyarrow.ArrowInvalid):
            left_out.append(name)
    if not columns:
        raise InputError(f"{path}: expected columns of texts and labels. Got none.")
    places = np.arange(1, typed.num_rows + 1, dtype=np.int64)
    table = Table(path, sha256, pyarrow.table(columns), form, places, "row")
    return table.add_note(f"columns of bytes are left out: {', '.join(left_out)}") if left_out else table


def _as_texts(name: str, column: pyarrow.ChunkedArray, classes: list[str] | None) -> dict[str, pyarrow.ChunkedArray]:
    kind = column.type
    if classes is not None:
        return {name: to_arrow("" if value is None or value < 0 else classes[value] for value in column.to_pylist())}
    if pyarrow.types.is_dictionary(kind):
        return _as_texts(name, column.cast(kind.value_type), None)
    if pyarrow.types.is_nested(kind):
        return {inner: to_arrow(map(as_text, values)) for inner, values in flatten(name, column.to_pylist()).items()}
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_string(kind):
        return {name: to_arrow(map(as_text, column.to_pylist()))}
    return {name: pc.fill_null(column.cast(pyarrow.string()), "")}


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """The names of the classes of each column that `datasets` stores as numbers."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: feature["names"] for name, feature in features.items() if feature.get("_type") == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}

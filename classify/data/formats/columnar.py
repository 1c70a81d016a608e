"""Parquet, and Arrow's own files (Feather, the streams of `datasets`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classify.data.formats.base import Content, Format, Layout, ReadOptions, as_text, unique_names
from classify.data.formats.large import LARGE, stored
from classify.data.source import Source
from classify.errors import InputError

if TYPE_CHECKING:
    import pyarrow

_BLOCK_ROWS = 1 << 16
_OFFSET_BYTES = 4  # of an empty text in a column


class Parquet(Format):
    """Columns of any type that can be written as text."""

    name = "Parquet"
    suffixes = (".parquet",)
    is_text = False

    def recognises(self, start: bytes) -> bool:
        """By its magic number."""
        return start.startswith(b"PAR1")

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows. Raises InputError where the file is damaged."""
        from pyarrow import parquet

        with _reading(source, self.name) as stream:
            metadata = parquet.read_metadata(stream)
            size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            source.check_growth(max(size, _OFFSET_BYTES * metadata.num_rows * metadata.num_columns))
            leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            # Texts that are repeated in a file stay one text in memory until they are counted.
            repeated = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            stream.seek(0)
            with parquet.ParquetFile(stream, metadata=metadata, read_dictionary=repeated) as file:
                columns = _Columns(source.path, file.schema_arrow)
                if size <= LARGE:
                    return columns.as_content(file.iter_batches(), self.name, source.check_growth)

                def read() -> pyarrow.RecordBatchReader:
                    return columns.as_texts(file.iter_batches(), source.check_growth)

                return columns.content_of(stored(f"{self.name}\0{source.sha256}", read), self.name)


class Arrow(Format):
    """Arrow's file and stream formats; Feather's second version is the first of them."""

    name = "Arrow"
    suffixes = (".arrow", ".feather")
    is_text = False

    def recognises(self, start: bytes) -> bool:
        """By the magic number of files, or the continuation mark of streams."""
        return start.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"))

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows. Raises InputError where the file is damaged."""
        import pyarrow

        start = source.start(4)
        with _reading(source, self.name) as stream:
            batches: Iterable[pyarrow.RecordBatch]
            if start == b"\xff\xff\xff\xff":
                reader = pyarrow.ipc.open_stream(stream)
                schema, batches = reader.schema, reader
            elif start == b"FEA1":
                from pyarrow import feather

                table = feather.read_table(stream)
                schema, batches = table.schema, table.to_batches()
            else:
                file = pyarrow.ipc.open_file(stream)
                schema, batches = file.schema, map(file.get_batch, range(file.num_record_batches))
            return _Columns(source.path, schema).as_content(batches, self.name, source.check_growth)


class SavedDataset(Layout):
    """A folder that `datasets.Dataset.save_to_disk` wrote."""

    def recognises(self, path: str, options: ReadOptions) -> bool:
        """By its two files."""
        return all((Path(path) / name).is_file() for name in ("state.json", "dataset_info.json"))

    def read(self, path: str, flag: str, options: ReadOptions) -> tuple[Content, str]:
        """All rows. Raises InputError where a file is damaged."""
        import datasets
        import pyarrow

        digest = hashlib.sha256()
        for file in sorted(Path(path).iterdir()):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        try:
            saved = datasets.load_from_disk(path)
            typed = saved.with_format("arrow")[:].replace_schema_metadata(saved.features.arrow_schema.metadata)
            return as_content(path, typed, "a data set of `datasets`"), digest.hexdigest()
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a readable folder of datasets ({str(error).splitlines()[0]}).") from None


def as_content(path: str, typed: pyarrow.Table, name: str) -> Content:
    """Convert columns of any type to text. Raises InputError where there is no row."""
    return _Columns(path, typed.schema).as_content(typed.to_batches(), name)


@contextlib.contextmanager
def _reading(source: Source, name: str) -> Iterator[Any]:
    """Open a file for Arrow, whose errors become InputErrors."""
    import pyarrow

    try:
        with contextlib.ExitStack() as stack:
            if source.compression is None and not source.member:
                yield stack.enter_context(pyarrow.OSFile(str(source.file)))
            else:
                yield pyarrow.BufferReader(stack.enter_context(source.open()).read())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.path}: not a readable {name} file ({str(error).splitlines()[0]}).") from None


class _Columns:
    """The columns of a schema, and how their values are written as text."""

    def __init__(self, path: str, schema: pyarrow.Schema):
        import pyarrow

        for field in schema:
            if "run_end_encoded" in str(field.type) or "list_view" in str(field.type):
                raise InputError(
                    f"{path}: column {field.name!r} is {field.type}, which is not read here; save a plain one."
                )
        self._path, self._given = path, schema.names
        names, self._remark = unique_names(schema.names)
        self._schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
        self._class_names = _class_names(schema)

    def as_content(
        self, batches: Iterable[pyarrow.RecordBatch], form: str, check_size: Callable[[int], None] = lambda size: None
    ) -> Content:
        """Read all rows. Raises InputError where there is none, or `check_size` does."""
        return self.content_of(self.as_texts(batches, check_size).read_all(), form)

    def content_of(self, arrow: pyarrow.Table, form: str) -> Content:
        """Return the content of a table of texts. Raises InputError where it has no row."""
        if not arrow.num_rows or not arrow.num_columns:
            raise InputError(f"{self._path}: no row in it. Expected one row per text.")
        return Content(arrow, form + self._remark, "", lambda rows: [row + 1 for row in rows], "row")

    def as_texts(
        self, batches: Iterable[pyarrow.RecordBatch], check_size: Callable[[int], None]
    ) -> pyarrow.RecordBatchReader:
        """Convert batches as they are read; `check_size` gets the bytes of all so far before their texts are made."""
        import pyarrow

        def converted() -> Iterator[pyarrow.RecordBatch]:
            size = 0
            for batch in batches:
                batch.validate(full=True)  # texts of a damaged file may be no UTF-8
                for start in range(0, batch.num_rows, _BLOCK_ROWS):
                    rows = batch.slice(start, _BLOCK_ROWS)
                    size += sum(map(_count_bytes, rows.columns))
                    check_size(size)
                    columns = [self._convert(*column) for column in zip(self._given, rows.columns, strict=True)]
                    yield pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)

        return pyarrow.RecordBatchReader.from_batches(self._schema, converted())

    def _convert(self, name: str, column: pyarrow.Array) -> pyarrow.Array:
        import pyarrow

        try:
            return _as_strings(column, self._class_names.get(name))
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            raise InputError(
                f"{self._path}: column {name!r} ({column.type}) holds bytes that are not UTF-8 text; store it as text, "
                "or leave it out."
            ) from None


def _as_strings(column: pyarrow.Array, names: list[str] | None = None) -> pyarrow.Array:
    """Write a column as text; class numbers of `datasets` by their names, what is missing and NaN as an empty text.

    Raises ArrowInvalid or UnicodeDecodeError where bytes are no UTF-8.
    """
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return pc.fill_null(_as_strings(column.dictionary, names).take(column.indices), "")
    if names is None:
        if types.is_fixed_size_binary(kind):
            column = column.cast(pyarrow.binary())
        casts = (
            types.is_string, types.is_large_string, types.is_string_view,
            types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary,
            types.is_integer, types.is_boolean, types.is_decimal, types.is_date32,
        )  # fmt: skip
        if any(is_kind(kind) for is_kind in casts):
            return pc.fill_null(column.cast(pyarrow.string()), "")
    if types.is_timestamp(kind):  # of nanoseconds pandas would make objects
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    values = column.to_pylist()
    if names is not None:
        values = [names[value] if isinstance(value, int) and 0 <= value < len(names) else value for value in values]
    if types.is_float32(kind):  # 0.1, and not the double that is nearest to it
        values = [value if value is None else float(str(np.float32(value))) for value in values]
    return pyarrow.array([as_text(value) for value in values], pyarrow.string())


def _count_bytes(column: pyarrow.Array) -> int:
    """Count the bytes of a column once each value is written out, however it is held."""
    import pyarrow.compute as pc
    from pyarrow import types

    kind, own = column.type, _OFFSET_BYTES * len(column)
    if types.is_string_view(kind) or types.is_binary_view(kind):  # several may show the same bytes
        return own + sum(len(value.as_buffer()) for value in column if value.is_valid)
    if types.is_dictionary(kind):
        values = column.dictionary
        is_bytes = types.is_binary(values.type) or types.is_large_binary(values.type)
        lengths = pc.binary_length(values if is_bytes else _as_strings(values))
        return own + (pc.sum(lengths.take(column.indices)).as_py() or 0)
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = column.flatten()
        return own + sum(map(_count_bytes, inner if isinstance(inner, list) else [inner]))
    return own + column.nbytes


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Names of the classes by column, where `datasets` has written them into the file."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature["names"] for name, feature in described.items() if feature.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}

"""Parquet, Arrow's own files (Feather, the streams of `datasets`), and folders that `datasets` saved."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classify.errors import InputError
from classify.tables.cache import LARGE, map_from_cache
from classify.tables.formats.base import Confidence, FileFormat, Format, ReadOptions, as_text, deduplicate_names
from classify.tables.source import Source
from classify.tables.table import Kind, Table

if TYPE_CHECKING:
    import pyarrow

_BLOCK_ROWS = 1 << 16
_OFFSET_BYTES = 4  # of an empty text in a column


class Parquet(FileFormat):
    """Columns of any type that can be written as text."""

    name = "Parquet"
    suffixes = (".parquet",)
    is_text = False

    def matches(self, start: bytes) -> bool:
        return start.startswith(b"PAR1")

    def read(self, source: Source, options: ReadOptions) -> Table:
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
                columns = _Columns(source.path, source.sha256, file.schema_arrow)
                if size <= LARGE:
                    return columns.read(file.iter_batches(), self.name, source.check_growth)

                def read() -> pyarrow.RecordBatchReader:
                    return columns.as_texts(file.iter_batches(), source.check_growth)

                return columns.as_table(map_from_cache(f"{self.name}\0{source.sha256}", read), self.name)


class Arrow(FileFormat):
    """Arrow's file and stream formats; Feather's second version is the first of them."""

    name = "Arrow"
    suffixes = (".arrow", ".feather")
    is_text = False

    def matches(self, start: bytes) -> bool:
        """Look for the magic number of files, or the continuation mark of streams."""
        return start.startswith((b"ARROW1", b"\xff\xff\xff\xff"))

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        with _reading(source, self.name) as stream:
            batches: Iterable[pyarrow.RecordBatch]
            if source.head.startswith(b"\xff\xff\xff\xff"):
                reader = pyarrow.ipc.open_stream(stream)
                schema, batches = reader.schema, reader
            else:
                file = pyarrow.ipc.open_file(stream)
                schema, batches = file.schema, map(file.get_batch, range(file.num_record_batches))
            return _Columns(source.path, source.sha256, schema).read(batches, self.name, source.check_growth)


class SavedDataset(Format):
    """A folder that `datasets.Dataset.save_to_disk` wrote."""

    def sniff(self, source: Source) -> Confidence:
        files = (Path(source.path) / name for name in ("state.json", "dataset_info.json"))
        return Confidence.CERTAIN if all(file.is_file() for file in files) else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        import datasets
        import pyarrow

        digest = hashlib.sha256()
        for file in sorted(Path(source.path).iterdir()):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        try:
            saved = datasets.load_from_disk(source.path)
            return as_table(source.path, digest.hexdigest(), saved, "a data set of `datasets`")
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{source.path}: not a readable folder of datasets ({str(error).splitlines()[0]})."
            ) from None


def as_table(path: str, digest: str, dataset: Any, form: str) -> Table:
    """Convert the columns of a data set of `datasets` to text. Raises InputError where there is no row."""
    typed = dataset.with_format("arrow")[:].replace_schema_metadata(dataset.features.arrow_schema.metadata)
    return _Columns(path, digest, typed.schema).read(typed.to_batches(), form)


@contextlib.contextmanager
def _reading(source: Source, name: str) -> Iterator[Any]:
    """Open a file for Arrow; turn its errors into InputErrors."""
    import pyarrow

    try:
        with contextlib.ExitStack() as stack:
            if source.is_plain:
                yield stack.enter_context(pyarrow.OSFile(str(source.file)))
            else:
                yield pyarrow.BufferReader(stack.enter_context(source.open()).read())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.path}: not a readable {name} file ({str(error).splitlines()[0]}).") from None


class _Columns:
    """Convert the columns of a schema to text."""

    def __init__(self, path: str, digest: str, schema: pyarrow.Schema):
        import pyarrow

        for field in schema:
            if "run_end_encoded" in str(field.type) or "list_view" in str(field.type):
                raise InputError(
                    f"{path}: column {field.name!r} is {field.type}, which is not supported; save it as a plain column."
                )
        self._path, self._digest, self._names = path, digest, schema.names
        names, self._remark = deduplicate_names(schema.names)
        self._schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
        self._class_names = _class_names(schema)
        self._kinds = {
            name: kind
            for name, field in zip(names, schema, strict=True)
            if field.name not in self._class_names and (kind := _find_kind(field.type)) is not None
        }

    def read(
        self, batches: Iterable[pyarrow.RecordBatch], form: str, check_size: Callable[[int], None] = lambda size: None
    ) -> Table:
        """Read all rows. Raises InputError where there is none, or `check_size` does."""
        return self.as_table(self.as_texts(batches, check_size).read_all(), form)

    def as_table(self, arrow: pyarrow.Table, form: str) -> Table:
        """Wrap an Arrow table of texts. Raises InputError where it has no row."""
        if not arrow.num_rows or not arrow.num_columns:
            raise InputError(f"{self._path}: no row in it. Expected one row per text.")
        form += self._remark
        return Table(
            self._path, self._digest, arrow, form, lambda rows: [row + 1 for row in rows], "row", kinds=self._kinds
        )

    def as_texts(
        self, batches: Iterable[pyarrow.RecordBatch], check_size: Callable[[int], None]
    ) -> pyarrow.RecordBatchReader:
        """Convert batches as they are read; `check_size` gets the bytes so far before they are converted."""
        import pyarrow

        def convert() -> Iterator[pyarrow.RecordBatch]:
            size = 0
            for batch in batches:
                batch.validate(full=True)  # texts of a damaged file may not be UTF-8
                for start in range(0, batch.num_rows, _BLOCK_ROWS):
                    rows = batch.slice(start, _BLOCK_ROWS)
                    size += sum(map(_count_bytes, rows.columns))
                    check_size(size)
                    columns = [self._convert(*column) for column in zip(self._names, rows.columns, strict=True)]
                    yield pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)

        return pyarrow.RecordBatchReader.from_batches(self._schema, convert())

    def _convert(self, name: str, column: pyarrow.Array) -> pyarrow.Array:
        import pyarrow

        try:
            return _as_strings(column, self._class_names.get(name))
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            raise InputError(
                f"{self._path}: column {name!r} ({column.type}) holds bytes that are not UTF-8 text; store it as text, "
                "or leave it out."
            ) from None


def _find_kind(kind: pyarrow.DataType) -> Kind | None:
    """Return the kind of a column of this type; None for texts and types that other formats lack."""
    from pyarrow import types

    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "number"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_date32(kind):
        return "date"
    return "time" if types.is_timestamp(kind) and kind.tz is None else None


def _as_strings(column: pyarrow.Array, names: list[str] | None = None) -> pyarrow.Array:
    """Write a column as text; class numbers of `datasets` by their names, what is missing and NaN as an empty text.

    Raises ArrowInvalid or UnicodeDecodeError where bytes are not UTF-8.
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
    if types.is_timestamp(kind):  # pandas would turn nanoseconds into objects
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    values = column.to_pylist()
    if names is not None:
        values = [_name_classes(value, names) for value in values]
    if types.is_float32(kind):  # 0.1, and not the double that is nearest to it
        values = [value if value is None else float(str(np.float32(value))) for value in values]
    return pyarrow.array([as_text(value) for value in values], pyarrow.string())


def _count_bytes(column: pyarrow.Array) -> int:
    """Count the bytes of a column once each value is written out, however it is held."""
    import pyarrow.compute as pc
    from pyarrow import types

    kind, offsets = column.type, _OFFSET_BYTES * len(column)
    if types.is_string_view(kind) or types.is_binary_view(kind):  # several may show the same bytes
        return offsets + sum(len(value.as_buffer()) for value in column if value.is_valid)
    if types.is_dictionary(kind):
        values = column.dictionary
        is_bytes = types.is_binary(values.type) or types.is_large_binary(values.type)
        lengths = pc.binary_length(values if is_bytes else _as_strings(values))
        return offsets + (pc.sum(lengths.take(column.indices)).as_py() or 0)
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = column.flatten()
        return offsets + sum(map(_count_bytes, inner if isinstance(inner, list) else [inner]))
    return offsets + column.nbytes


def _name_classes(value: Any, names: list[str]) -> Any:
    """Return the name of a class number, or those of a list of them; None for -1, by which `datasets` means none."""
    if isinstance(value, list):
        return [_name_classes(number, names) for number in value]
    if isinstance(value, int) and value < len(names):
        return names[value] if value >= 0 else None
    return value


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Return the class names by column, where `datasets` has written them into the file."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        features = {
            # A list of classes is a list of one feature, or has it as `feature`.
            name: feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            for name, feature in described.items()
        }
        return {name: feature["names"] for name, feature in features.items() if feature.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):
        return {}

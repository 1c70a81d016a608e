"""Parquet, and Arrow's own files (Feather, the streams of `datasets`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classify.data.formats.base import Content, Format, Layout, ReadOptions, as_text, unique_names
from classify.data.formats.large import LARGE, stored
from classify.data.source import Source
from classify.errors import InputError

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet


class Parquet(Format):
    """Columns of any type that can be written as text."""

    name = "Parquet"
    suffixes = (".parquet",)

    def recognises(self, start: bytes) -> bool:
        """By its magic number."""
        return start.startswith(b"PAR1")

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows. Raises InputError where the file is damaged."""
        import pyarrow
        from pyarrow import parquet

        if source.compression is None:
            with contextlib.suppress(pyarrow.ArrowException, OSError), parquet.ParquetFile(source.file) as file:
                groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
                if sum(group.total_byte_size for group in groups) > LARGE:
                    return _large(source, self.name, file)
        return _content(source, self.name, lambda stream: parquet.read_table(stream))


class Arrow(Format):
    """Arrow's file and stream formats; Feather's second version is the first of them."""

    name = "Arrow"
    suffixes = (".arrow", ".feather")

    def recognises(self, start: bytes) -> bool:
        """By the magic number of files, or the continuation mark of streams."""
        return start.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"))

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows. Raises InputError where the file is damaged."""
        import pyarrow

        def whole(stream: Any) -> pyarrow.Table:
            if source.start(4) == b"\xff\xff\xff\xff":
                return pyarrow.ipc.open_stream(stream).read_all()
            from pyarrow import feather

            return feather.read_table(stream)

        return _content(source, self.name, whole)


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
            typed.validate(full=True)
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a readable folder of datasets ({str(error).splitlines()[0]}).") from None
        return as_content(path, typed, "a data set of `datasets`"), digest.hexdigest()


def _large(source: Source, name: str, file: parquet.ParquetFile) -> Content:
    """All rows, a batch at a time."""
    import pyarrow

    schema = file.schema_arrow
    names, again = unique_names(schema.names)
    labels = _class_names(schema)
    strings = pyarrow.schema([(name, pyarrow.string()) for name in names])

    def batches() -> pyarrow.RecordBatchReader:
        def converted(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
            batch.validate(full=True)
            columns = zip(batch.columns, schema.names, strict=True)
            texts = [_as_strings(column, labels.get(name)) for column, name in columns]
            return pyarrow.RecordBatch.from_arrays(texts, schema=strings)

        return pyarrow.RecordBatchReader.from_batches(strings, map(converted, file.iter_batches()))

    rows = stored(f"{name}\0{source.sha256}", batches)
    return Content(rows, name + again, "", lambda rows: [row + 1 for row in rows], "row")


def _content(source: Source, name: str, read: Any) -> Content:
    import pyarrow

    try:
        with source.open() as stream:
            typed = read(pyarrow.BufferReader(stream.read()))
        typed.validate(full=True)  # texts of a damaged file may be no UTF-8
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.path}: not a readable {name} file ({str(error).splitlines()[0]}).") from None
    return as_content(source.path, typed, name)


def as_content(path: str, typed: pyarrow.Table, name: str) -> Content:
    """Columns of any type as text. Raises InputError where there is no row."""
    import pyarrow

    names, again = unique_names(typed.column_names)
    typed = typed.rename_columns(names).replace_schema_metadata(typed.schema.metadata)
    if typed.num_rows == 0:
        raise InputError(f"{path}: no row in it. Expected one row per text.")
    labels = _class_names(typed.schema)
    columns = {field.name: _as_strings(typed.column(field.name), labels.get(field.name)) for field in typed.schema}
    return Content(pyarrow.table(columns), name + again, "", lambda rows: [row + 1 for row in rows], "row")


def _as_strings(column: pyarrow.Array | pyarrow.ChunkedArray, names: list[str] | None) -> pyarrow.Array:
    """A column as text; class numbers of `datasets` by their names."""
    import pyarrow

    if pyarrow.types.is_string(column.type) and column.null_count == 0:
        return column
    values = column.to_pylist()
    if names is not None:
        values = [names[value] if isinstance(value, int) and 0 <= value < len(names) else value for value in values]
    return pyarrow.array([as_text(value) for value in values], pyarrow.string())


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Names of the classes by column, where `datasets` has written them into the file."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature["names"] for name, feature in described.items() if feature.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}

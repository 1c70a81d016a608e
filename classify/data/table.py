"""A person's table as one Arrow table of strings, whatever form it came in; faults name their place in the file.

All columns stay text, as in the file, so that predictions.csv can repeat them; what is read goes on as
`datasets.Dataset` without a copy.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from classify.data.formats.base import Content, ReadOptions
from classify.data.formats.registry import SUFFIXES, find_format, find_layout
from classify.data.source import find_source, matching
from classify.data.text_hashes import TextHashes, text_hashes
from classify.errors import InputError

if TYPE_CHECKING:
    import datasets
    import pyarrow

_SHOWN = 3
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Table:
    """A file and its rows: every column a string column, rows in the order of the file."""

    path: str
    sha256: str
    content: Content
    options: ReadOptions = field(default_factory=ReadOptions)
    _copies: dict[str, TextHashes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def arrow(self) -> pyarrow.Table:
        """The rows."""
        return self.content.arrow

    @property
    def columns(self) -> list[str]:
        """Column names in the order of the file."""
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> list[str]:
        """All values of a column, in the order of the file."""
        values: list[str] = self.arrow.column(name).to_pylist()
        return values

    def values(self, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The different values of a column in the order in which they first appear, and which of them each row has."""
        encoded = self.arrow.column(name).dictionary_encode().unify_dictionaries()
        if not encoded.num_chunks:
            return [], np.empty(0, dtype=np.int64)
        numbers = np.concatenate([np.from_dlpack(chunk.indices) for chunk in encoded.chunks]).astype(np.int64)
        return encoded.chunk(0).dictionary.to_pylist(), numbers

    def text_hashes(self, name: str) -> TextHashes:
        """(rows,) a number for each text of a column that its copies share, see `text_hashes`."""
        if name not in self._copies:
            column = self.arrow.column(name)
            blocks = [text_hashes(column.slice(at, _BLOCK).to_pylist()) for at in range(0, len(self), _BLOCK)]
            self._copies[name] = np.concatenate([*blocks, text_hashes([])])
        return self._copies[name]

    def take(self, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
        """Values of a column in some rows, whose numbers ascend.

        Chunk by chunk: Arrow's own `take` joins all chunks, and a column of strings holds 2 GiB at most.
        """
        values: list[str] = []
        start = 0
        for chunk in self.arrow.column(name).chunks:
            here = rows[slice(*np.searchsorted(rows, (start, start + len(chunk))))]
            values += chunk.take(here - start).to_pylist()
            start += len(chunk)
        return values

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        """(rows,) characters of each value of a column."""
        lengths = [np.from_dlpack(pc.utf8_length(chunk)) for chunk in self.arrow.column(name).chunks]
        return np.concatenate([*lengths, np.empty(0, dtype=np.int64)]).astype(np.int64)

    def digest(self, name: str) -> str:
        """SHA-256 of a column's values and their boundaries, in order, however Arrow has divided them into chunks."""
        values, lengths = hashlib.sha256(), hashlib.sha256()
        for chunk in self.arrow.column(name).chunks:
            _, offsets, data = chunk.buffers()
            if len(chunk):
                ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
                values.update(memoryview(data)[ends[0] : ends[-1]] if data is not None else b"")
                lengths.update(np.diff(ends).tobytes())
        return hashlib.sha256(values.digest() + lengths.digest()).hexdigest()

    def without(self, names: Collection[str | None]) -> Table:
        """The table without some of its columns."""
        kept = [name for name in self.columns if name not in names]
        return replace(self, content=replace(self.content, arrow=self.arrow.select(kept)), _copies={})

    def as_dataset(self) -> datasets.Dataset:
        """The same Arrow table as `datasets.Dataset`; nothing is copied."""
        import datasets

        return datasets.Dataset(datasets.table.InMemoryTable(self.arrow), fingerprint=self.sha256)

    def where(self, rows: Iterable[int]) -> str:
        """`my.csv line 7` or `my.csv lines 7, 9, 12 and 4 more`, for messages."""
        return self.where_each([list(rows)])[0]

    def where_each(self, groups: Sequence[Sequence[int]]) -> list[str]:
        """The same for several groups of rows, for which the file is looked through once."""
        shown = [row for rows in groups for row in rows[:_SHOWN]]
        places = iter(self.content.places(shown))
        words = []
        for rows in groups:
            listed = ", ".join(str(place) for _, place in zip(rows[:_SHOWN], places, strict=False))
            more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
            unit = f"{self.path} {self.content.unit}{'s' if len(rows) > 1 else ''} " if self.content.unit else ""
            words.append(f"{unit}{listed}{more}")
        return words


def read_table(path: str, flag: str = "--data", options: ReadOptions | None = None) -> Table:
    """Read a table: a file, several that a pattern names, or what a `Layout` reads. Raises InputError."""
    options = options or ReadOptions()
    files = matching(path)
    if files:
        tables = [read_table(files[0], flag, options)]
        if tables[0].content.has_names:
            options = replace(options, columns=tuple(tables[0].columns))
        return _joined(path, tables + [read_table(name, flag, options) for name in files[1:]])
    layout = find_layout(path, options)
    if layout is not None:
        content, digest = layout.read(path, flag, options)
        return Table(path, digest, content, options)
    if Path(path).is_dir():
        raise InputError(
            f"{flag} {path}: expected a file, a folder with a folder of .txt files for each class, or one with "
            f"files named train.*, validation.*, test.*. Got a folder with {_some(Path(path))} instead."
        )
    source = find_source(path, flag, SUFFIXES)
    content = find_format(source).read(source, options)
    if source.member:
        content = replace(content, form=f"{source.member} in {Path(path).name}: {content.form}")
    return Table(path, source.sha256, content, options)


def _joined(path: str, tables: list[Table]) -> Table:
    """One table of several, by the names of their columns. Raises InputError where they have others."""
    import pyarrow

    first = tables[0]
    for other in tables[1:]:
        if set(other.columns) != set(first.columns):
            only = ", ".join(map(repr, sorted(set(first.columns) ^ set(other.columns))))
            raise InputError(f"{path}: {first.path} and {other.path} have other columns ({only} in one of them alone).")
    arrow = pyarrow.concat_tables([table.arrow.select(first.columns) for table in tables])
    ends = list(itertools.accumulate(map(len, tables)))

    def places(rows: Sequence[int]) -> list[str]:
        owners = [bisect.bisect_right(ends, row) for row in rows]
        words: dict[int, str] = {}
        for n in set(owners):  # each file is looked through once
            own = [row for row, owner in zip(rows, owners, strict=True) if owner == n]
            begin = ends[n] - len(tables[n])
            words |= dict(zip(own, tables[n].where_each([[row - begin] for row in own]), strict=True))
        return [words[row] for row in rows]

    digest = hashlib.sha256("".join(table.sha256 for table in tables).encode()).hexdigest()
    content = Content(arrow, f"{len(tables)} files: {first.content.form}", first.content.flag, places, "")
    return Table(path, digest, content, first.options)


def _some(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "") if names else "nothing"

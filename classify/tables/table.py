"""Table of any form as one Arrow table of strings, with the place of each row in the file.

All columns stay text, as in the file, so that predictions.csv can repeat them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from classify.errors import SHOWN, InputError, list_some
from classify.findings import Finding, note
from classify.tables.text_hashes import TextHashes, text_hashes

_BLOCK = 1 << 16


# What the cells of a column are, where they are no text; dates as ISO 8601 writes them.
Kind = Literal["integer", "number", "boolean", "date", "time"]


@dataclass(frozen=True)
class Table:
    """The rows of a path; every column is a string column.

    `form` describes what the file was recognized as, `flag` overrides it. `places` returns the places of row
    numbers in the file, in `unit`: lines, rows of a sheet, files. Without `has_names` the file has no header:
    columns are numbered, or named as in a related table. `takes` names the options that its format reads by. `hint`
    is appended to errors about the content, e.g. the other sheets of a workbook. `skipped` rows could not be read;
    `findings` are notes on what may have been read wrong. `sha256` is of what was read. The `derived` columns were
    computed from others, and are not among `columns`. `reading` is what was found or given of `ReadOptions`. `kinds`
    are those of columns that were no text in the file; see `Kind`. `files` are the paths and row counts of several that
    were joined.
    """

    path: str
    sha256: str
    arrow: pyarrow.Table
    form: str
    places: Callable[[Sequence[int]], Sequence[int | str]]
    unit: str = "line"
    flag: str = ""
    has_names: bool = True
    takes: frozenset[str] = frozenset()
    hint: str = ""
    skipped: int = 0
    findings: tuple[Finding, ...] = ()
    derived: frozenset[str] = frozenset()
    reading: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    files: tuple[tuple[str, int], ...] = ()
    _text_hashes: dict[str, TextHashes] = field(default_factory=dict, compare=False, repr=False)
    _digests: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @contextlib.contextmanager
    def add_hint(self) -> Iterator[None]:
        """End an InputError that is raised inside with the hint."""
        try:
            yield
        except InputError as error:
            if not self.hint:
                raise
            raise InputError(*(f"{fault} {self.hint}" for fault in error.faults)) from None

    def add_note(self, text: str) -> Table:
        """Return the table with a note."""
        return replace(self, findings=(*self.findings, note(text, self.path)))

    @property
    def columns(self) -> list[str]:
        """Return the column names in the order of the file."""
        return [name for name in self.arrow.column_names if name not in self.derived]

    def has_column(self, name: str) -> bool:
        """Return whether the file has a column of that name, or one was derived."""
        return name in self.arrow.column_names

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> list[str]:
        """Return all values of a column, in the order of the file."""
        values: list[str] = self.arrow.column(name).to_pylist()
        return values

    def dictionary_encode(self, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the distinct values of a column by first appearance, and (rows,) the index of each row's value."""
        encoded = self.arrow.column(name).dictionary_encode().unify_dictionaries()
        if not encoded.num_chunks:
            return [], np.empty(0, dtype=np.int64)
        numbers = np.concatenate([np.from_dlpack(chunk.indices) for chunk in encoded.chunks]).astype(np.int64)
        return encoded.chunk(0).dictionary.to_pylist(), numbers

    def is_blank(self, name: str) -> npt.NDArray[np.bool_]:
        """Return (rows,) whether each value of a column is empty or blank."""
        values, numbers = self.dictionary_encode(name)
        return np.array([not value.strip() for value in values], dtype=bool)[numbers]

    def text_hashes(self, name: str) -> TextHashes:
        """Return (rows,) hashes of a column's texts, equal for duplicates; see `text_hashes`."""
        if name not in self._text_hashes:
            column = self.arrow.column(name)
            blocks = [text_hashes(column.slice(at, _BLOCK).to_pylist()) for at in range(0, len(self), _BLOCK)]
            self._text_hashes[name] = np.concatenate([*blocks, text_hashes([])])
        return self._text_hashes[name]

    def take(self, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
        """Return values of a column in some rows, given in ascending order.

        Chunk by chunk: Arrow's own `take` joins all chunks, and a column of strings holds 2 GiB at most.
        """
        values: list[str] = []
        if not len(rows):
            return values
        start, end = int(rows[0]), int(rows[-1]) + 1
        for chunk in self.arrow.column(name).slice(start, end - start).chunks:
            here = (rows[slice(*np.searchsorted(rows, (start, start + len(chunk))))] - start).astype(np.int64)
            # An array made from NumPy's would import pandas, half a second.
            indices = pyarrow.Array.from_buffers(pyarrow.int64(), len(here), [None, pyarrow.py_buffer(here)])
            values += chunk.take(indices).to_pylist()
            start += len(chunk)
        return values

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        """Return (rows,) the number of characters of each value of a column."""
        lengths = [np.from_dlpack(pc.utf8_length(chunk)) for chunk in self.arrow.column(name).chunks]
        return np.concatenate([*lengths, np.empty(0, dtype=np.int64)]).astype(np.int64)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a column's values and their boundaries, in order, however Arrow has chunked them."""
        if name not in self._digests:
            values, lengths = hashlib.sha256(), hashlib.sha256()
            for chunk in self.arrow.column(name).chunks:
                _, offsets, data = chunk.buffers()
                if len(chunk):
                    ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
                    values.update(memoryview(data)[ends[0] : ends[-1]] if data is not None else b"")
                    lengths.update(np.diff(ends).tobytes())
            self._digests[name] = hashlib.sha256(values.digest() + lengths.digest()).hexdigest()
        return self._digests[name]

    def drop(self, names: Collection[str | None]) -> Table:
        """Return the table without some of its columns."""
        kept = [name for name in self.columns if name not in names]
        return replace(self, arrow=self.arrow.select(kept), _text_hashes={}, _digests={})

    def rename(self, names: Sequence[str]) -> Table:
        return replace(self, arrow=self.arrow.rename_columns(list(names)), _text_hashes={}, _digests={})

    def renamed(self, path: str) -> Table:
        """Return the table under another path."""
        form = self.form.replace(self.path, path)
        return replace(self, path=path, form=form, findings=tuple(replace(one, where=path) for one in self.findings))

    def moved(self, lines: int) -> Table:
        """Return the table of a part that begins below some lines."""
        places = lambda rows: [place if isinstance(place, str) else place + lines for place in self.places(rows)]  # noqa: E731
        return replace(self, places=places)

    def with_derived(self, name: str, values: Iterable[str]) -> Table:
        """Return the table with one more column that is not in the file."""
        remaining, blocks = iter(values), list[pyarrow.Array]()
        while block := list(itertools.islice(remaining, _BLOCK)):
            blocks.append(pyarrow.array(block, pyarrow.string()))  # a block holds less than 2 GiB
        chunks = pyarrow.chunked_array(blocks, pyarrow.string())
        return replace(self, arrow=self.arrow.append_column(name, chunks), derived=self.derived | {name})

    def describe_rows(self, rows: Iterable[int]) -> str:
        """Name the places of rows in messages: `my.csv line 7`, or `my.csv lines 7, 9, 12 and 4 more`."""
        return self.describe_row_groups([list(rows)])[0]

    def describe_row_groups(self, groups: Sequence[Sequence[int]]) -> list[str]:
        """Name the places of several groups of rows in one pass over the file."""
        shown = [row for rows in groups for row in rows[:SHOWN]]
        places = iter(self.places(shown))
        words = []
        for rows in groups:
            listed = list_some([place for _, place in zip(rows[:SHOWN], places, strict=False)], len(rows))
            unit = f"{self.path} {self.unit}{'s' if len(rows) > 1 else ''} " if self.unit else ""
            words.append(f"{unit}{listed}")
        return words

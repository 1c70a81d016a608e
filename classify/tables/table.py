"""A table of any format as Arrow strings, with the place of each row and what is doubtful about it.

Cells stay text, as in the file, so that predictions can repeat them.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from classify.errors import SHOWN, list_some
from classify.findings import Finding, note

TextHashes = npt.NDArray[np.uint64]
# Cells that are Python strings at once.
BLOCK = 1 << 16
# Bytes of a SHA-256 that are a text's hash.
_HASH_BYTES = 8


@dataclass(frozen=True)
class Table:
    """The rows of a path; every column is a column of strings, empty where the file has no value.

    `form` says how the file was read, `flag` overrides that, and `reading` holds it for later tables of the same kind.
    `places` (rows,) are line numbers, numbers of a sheet's rows or, where `unit` is "file", names of files, or of a
    line in one of several. Without `has_names` the file has no header: columns are numbered, or named as in a related
    table. `skipped` rows could not be read. `derived` columns were computed from others and are not among `columns`.
    `sha256` is the file's. `original` is what a writer adds columns to: JSON records, an Arrow table with its types, or
    a workbook.
    """

    path: str
    sha256: str
    arrow: pyarrow.Table
    form: str
    places: npt.NDArray[np.int64] | Sequence[str]
    unit: str = "line"
    flag: str = ""
    has_names: bool = True
    reading: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0
    findings: tuple[Finding, ...] = ()
    derived: frozenset[str] = frozenset()
    original: Callable[[], Any] | None = None
    _hashes: dict[str, TextHashes] = field(default_factory=dict, compare=False, repr=False)
    _digests: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    _encoded: dict[str, tuple[list[str], npt.NDArray[np.int64]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def columns(self) -> list[str]:
        return [name for name in self.arrow.column_names if name not in self.derived]

    def has_column(self, name: str) -> bool:
        return name in self.arrow.column_names

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> list[str]:
        values: list[str] = self.arrow.column(name).to_pylist()
        return values

    def take(self, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
        """Values of a column in some rows, given in ascending order, each once.

        By a mask: Arrow's `take` joins all chunks, and a column of strings holds 2 GiB at most.
        """
        if not len(rows):
            return []
        start, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        mask = np.zeros(count, dtype=bool)
        mask[rows - start] = True
        bits = [None, pyarrow.py_buffer(np.packbits(mask, bitorder="little"))]
        is_taken = pyarrow.Array.from_buffers(pyarrow.bool_(), count, bits)
        values: list[str] = self.arrow.column(name).slice(start, count).filter(is_taken).to_pylist()
        return values

    def dictionary_encode(self, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The distinct values of a column by first appearance, and (rows,) the index of each row's value."""
        if name not in self._encoded:
            encoded = self.arrow.column(name).dictionary_encode().unify_dictionaries()
            numbers = [np.from_dlpack(chunk.indices) for chunk in encoded.chunks]
            joined = np.concatenate([*numbers, np.empty(0, dtype=np.int32)]).astype(np.int64)
            self._encoded[name] = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else [], joined
        return self._encoded[name]

    def is_blank(self, name: str) -> npt.NDArray[np.bool_]:
        values, numbers = self.dictionary_encode(name)
        return np.array([not value.strip() for value in values], dtype=bool)[numbers]

    def text_hashes(self, name: str) -> TextHashes:
        """(rows,) hashes of a column's texts, equal for duplicates."""
        if name not in self._hashes:
            column = self.arrow.column(name)
            blocks = [text_hashes(column.slice(at, BLOCK).to_pylist()) for at in range(0, len(self), BLOCK)]
            self._hashes[name] = np.concatenate([*blocks, text_hashes([])])
        return self._hashes[name]

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        lengths = [np.from_dlpack(pc.utf8_length(chunk)) for chunk in self.arrow.column(name).chunks]
        return np.concatenate([*lengths, np.empty(0, dtype=np.int64)]).astype(np.int64)

    def digest(self, name: str) -> str:
        """The SHA-256 of a column's values and their boundaries, in order, however Arrow has chunked them."""
        if name in self._digests:
            return self._digests[name]
        values, lengths = hashlib.sha256(), hashlib.sha256()
        for chunk in self.arrow.column(name).chunks:
            _, offsets, data = chunk.buffers()
            if len(chunk):
                ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
                values.update(memoryview(data)[ends[0] : ends[-1]] if data is not None else b"")
                lengths.update(np.diff(ends).tobytes())
        self._digests[name] = hashlib.sha256(values.digest() + lengths.digest()).hexdigest()
        return self._digests[name]

    def add_note(self, text: str) -> Self:
        return replace(self, findings=(*self.findings, note(text, self.path)))

    def with_derived(self, name: str, values: Iterable[str]) -> Self:
        return replace(self, arrow=self.arrow.append_column(name, to_arrow(values)), derived=self.derived | {name})

    def with_arrow(self, arrow: pyarrow.Table) -> Self:
        return replace(self, arrow=arrow, _hashes={}, _digests={}, _encoded={})

    def describe_rows(self, rows: Iterable[int]) -> str:
        """The places of rows in messages: `my.csv line 7`, or `my.csv lines 7, 9, 12 and 4 more`."""
        listed = list(rows)
        unit = "" if self.unit == "file" else f"{self.path} {self.unit}{'s' * (len(listed) > 1)} "
        return f"{unit}{list_some([self.places[row] for row in listed[:SHOWN]], len(listed))}"


def to_arrow(values: Iterable[str]) -> pyarrow.ChunkedArray:
    """Strings as a column; in blocks, since an array of strings holds less than 2 GiB."""
    remaining, blocks = iter(values), list[pyarrow.Array]()
    while block := list(itertools.islice(remaining, BLOCK)):
        try:
            blocks.append(string_array(block))
        except UnicodeEncodeError:
            blocks.append(string_array(list(map(replace_surrogates, block))))
    return pyarrow.chunked_array(blocks, pyarrow.string())


def string_array(values: Sequence[str]) -> pyarrow.Array:
    """A block of strings as an array; `pyarrow.array` would import pandas, half a second. Raises UnicodeEncodeError."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = (pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded)))
    return pyarrow.StringArray.from_buffers(len(values), *buffers)


def replace_surrogates(text: str) -> str:
    """A text with U+FFFD for lone surrogates, which JSON and programs may hold, but UTF-8 and tokenizers do not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def normalize_text(text: str) -> str:
    """Normalize case, whitespace and Unicode form.

    NFC, since it changes hardly any text: the hashes in `split.parquet` of earlier runs stay valid. NFKC would change
    all texts with the full-width punctuation of Chinese and Japanese, and make one label of `m2` and `m²`.
    """
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return " ".join(composed.split()).casefold()


def text_hashes(texts: Iterable[str]) -> TextHashes:
    """(texts,) hashes, equal for duplicates: the first eight bytes of a SHA-256."""
    normal = (normalize_text(text).encode("utf-8", "surrogatepass") for text in texts)
    digests = (hashlib.sha256(text).digest()[:_HASH_BYTES] for text in normal)
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


# The hash of empty or blank texts.
EMPTY = text_hashes([""])[0]


def group_duplicates(numbers: TextHashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(groups,) the first row of each group of duplicates, ascending, and (rows,) the group of each row."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]

"""Texts to token ids, once: flat arrays that every later pass slices, kept in a cache and memory-mapped.

What is stored is each text's ids without special tokens and without truncation, so one tokenisation serves every
`--max-length`. The special tokens a tokenizer puts around a text are the same for all texts; they and the
truncation are applied when rows are collated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.cache import cached
from classify.data.table import Table

Ids = npt.NDArray[np.int64]
Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

# Tokens of a text that are read at most where nobody asks for more: longer texts take memory and time to match.
DEFAULT_LIMIT = 512
_FORMAT = 2
_BATCH = 4096
_IDS, _OFFSETS = "ids.bin", "offsets.npy"


@dataclass(frozen=True)
class Tokens:
    """Token ids of all rows of a table.

    `ids` is flat (int32); row i without its special tokens is ids[offsets[i]:offsets[i + 1]]. `prefix` and `suffix`
    are the special tokens around it ([CLS] ... [SEP] for BERT). With a `renumber` (one entry a token of the
    vocabulary) collated ids are those of a compact table.
    """

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    renumber: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def special(self) -> int:
        """Special tokens around each text."""
        return len(self.prefix) + len(self.suffix)

    @property
    def full_lengths(self) -> Ids:
        """(rows,) tokens of each text with its special tokens, before truncation."""
        return np.diff(self.offsets) + self.special

    @property
    def lengths(self) -> Ids:
        """(rows,) tokens of each text as the model sees it."""
        return np.minimum(self.full_lengths, self.max_length)

    def lengths_of(self, rows: npt.NDArray[np.int64]) -> Ids:
        """(n,) tokens of the given rows as the model sees them."""
        return np.minimum(self.offsets[rows + 1] - self.offsets[rows] + self.special, self.max_length)

    def with_max_length(self, max_length: int) -> Tokens:
        """The same ids, truncated elsewhere."""
        return dataclasses.replace(self, max_length=max_length)

    def collate(self, rows: npt.NDArray[np.int64]) -> tuple[Ids, Ids]:
        """Ids of the rows end to end (T,), and their lengths (n,); the end of a long text is cut, never a special."""
        lengths = self.lengths_of(rows)
        content = lengths - self.special
        starts = np.cumsum(lengths) - lengths
        flat = np.empty(int(lengths.sum()), dtype=np.int64)
        for i, token in enumerate(self.prefix):
            flat[starts + i] = token
        for i, token in enumerate(self.suffix):
            flat[starts + len(self.prefix) + content + i] = token
        total = int(content.sum())
        within = np.arange(total) - np.repeat(np.cumsum(content) - content, content)
        source = np.repeat(self.offsets[rows], content) + within
        flat[np.repeat(starts + len(self.prefix), content) + within] = self.ids[source]
        return flat if self.renumber is None else self.renumber[flat].astype(np.int64), lengths


@dataclass(frozen=True)
class TrainingSet:
    """The rows to learn from: `rows` (n,) of `tokens`, and their `targets` (n, ...)."""

    tokens: Tokens
    rows: Ids
    targets: npt.NDArray[Any]


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a model folder, with the truncation and padding that some carry switched off."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, *, digest: str | None = None) -> Tokens:
    """Tokenise all texts. With their `digest` (see `Table.digest`) the ids are cached.

    Ranks on one machine that ask for the same texts tokenise them once: see `cached`.
    """
    prefix, suffix = special_tokens(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    arrays = None
    if digest is not None and backend is not None:
        key = hashlib.sha256(f"{_FORMAT}\0{digest}\0{backend.to_str()}".encode()).hexdigest()[:32]
        arrays = cached(key, lambda folder: _write(folder, tokenizer, texts), lambda folder: _read(folder, len(texts)))
    return Tokens(*(arrays or _in_memory(tokenizer, texts)), prefix, suffix, max_length)


def tokenize_column(tokenizer: Any, table: Table, column: str, max_length: int) -> Tokens:
    """Tokenise all texts of a table, or find their ids in the cache."""
    return tokenize(tokenizer, table.as_dataset()[column], max_length, digest=table.digest(column))


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and after a single text."""
    full = tokenizer("a", verbose=False)["input_ids"]
    bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise AssertionError(f"a tokenizer that changes a text when it adds special tokens: {full} from {bare}")


def default_max_length(full_lengths: Ids, cap: int) -> int:
    """128, or the 99th percentile of the texts' tokens where that is more; at most 512, and the model's `cap`."""
    longest = int(np.percentile(full_lengths, 99, method="higher")) if len(full_lengths) else 0
    return min(max(128, longest), DEFAULT_LIMIT, cap)


def max_length_reason(full_lengths: Ids, max_length: int, cap: int, *, given: bool) -> str:
    """What a `max_length` does to the texts, and whether the default's limit is behind it."""
    longer = int((full_lengths > max_length).sum())
    if not longer:
        return "no text is longer"
    why = f"{longer} of {len(full_lengths)} training texts are longer and cut at the end"
    limited = not given and max_length == DEFAULT_LIMIT < cap
    return f"{why}; {DEFAULT_LIMIT} is the default's limit" if limited else why


def _encode(tokenizer: Any, texts: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Flat ids of a block of texts, and how many each has; one block becomes arrays while the next is tokenised."""
    encode = _block_encoder(tokenizer)
    # The tokenizers library works without the GIL.
    with ThreadPoolExecutor(1) as ahead:
        starts = range(0, len(texts), _BATCH)
        tasks = (ahead.submit(encode, texts, start) for start in starts)
        waiting = next(tasks, None)
        while waiting is not None:
            ids = waiting.result()
            waiting = next(tasks, None)
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            yield np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes.sum())), sizes


def _in_memory(tokenizer: Any, texts: Sequence[str]) -> Arrays:
    blocks = list(_encode(tokenizer, texts))
    if not blocks:
        return np.empty(0, np.int32), np.zeros(1, np.int64)
    return np.concatenate([ids for ids, _ in blocks]), _offsets([sizes for _, sizes in blocks])


def _write(folder: Path, tokenizer: Any, texts: Sequence[str]) -> None:
    """Write ids and offsets, a block at a time."""
    counts = []
    with (folder / _IDS).open("wb") as file:
        for ids, sizes in _encode(tokenizer, texts):
            ids.tofile(file)
            counts.append(sizes)
    np.save(folder / _OFFSETS, _offsets(counts))


def _read(folder: Path, count: int) -> Arrays | None:
    """The arrays of a folder, the ids memory-mapped; None where they are not those of so many texts."""
    try:
        offsets = np.load(folder / _OFFSETS)
        size = (folder / _IDS).stat().st_size
        if len(offsets) != count + 1 or 4 * offsets[-1] != size:
            return None
        return np.memmap(folder / _IDS, np.int32, "r") if size else np.empty(0, np.int32), offsets
    except (OSError, ValueError, EOFError):  # not there, or not an array any more
        return None


def _offsets(sizes: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))


def _block_encoder(tokenizer: Any) -> Callable[[Sequence[str], int], list[list[int]]]:
    """A function of (texts, start): the ids of one block of texts, without special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts, start: tokenizer(
            list(texts[start : start + _BATCH]), add_special_tokens=False, verbose=False
        )["input_ids"]
    return lambda texts, start: [
        encoding.ids
        for encoding in backend.encode_batch_fast(list(texts[start : start + _BATCH]), add_special_tokens=False)
    ]


def padding_id(tokenizer: Any) -> int:
    """The id that padded places hold; any will do where the tokenizer has none, since nothing looks at them."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

"""Texts to token ids, once: flat arrays that every later pass slices, kept in a cache and memory-mapped.

What is stored is each text's ids without special tokens and without truncation, so one tokenisation serves every
`--max-length`. The special tokens a tokenizer puts around a text are the same for all texts; they and the
truncation are applied when rows are collated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.files import TEMPORARY, whole
from classify.launch.environment import cache_home

Ids = npt.NDArray[np.int64]

# Tokens of a text that are read at most where nobody asks for more: longer texts take memory and time to match.
DEFAULT_LIMIT = 512
_FORMAT = 1
CACHE_BYTES = 4 << 30
_BATCH = 4096
# An entry that is still being made after a day is of a process that was killed.
_LEFT_SECONDS = 24 * 3600


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
    """The rows to learn from: `rows` of `tokens`, with the class numbers of all rows of the table."""

    tokens: Tokens
    rows: Ids
    labels: Ids


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a model folder, with the truncation and padding that some carry switched off."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, *, identity: str | None = None) -> Tokens:
    """Tokenise all texts. With an `identity` (what the texts are, e.g. a file's hash and column) the ids are cached.

    Ranks on one machine that ask for the same texts tokenise them once: the first takes a file lock, the others
    map its result. This needs no process group, so no rank can run into its time-out here.
    """
    prefix, suffix = special_tokens(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    arrays = None
    if identity is not None and backend is not None:
        key = hashlib.sha256(f"{_FORMAT}\0{identity}\0{backend.to_str()}".encode()).hexdigest()[:32]
        arrays = _through_cache(key, tokenizer, texts)
    if arrays is None:
        arrays = _encode(tokenizer, texts)
    return Tokens(*arrays, prefix, suffix, max_length)


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


def _encode(tokenizer: Any, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Flat ids and offsets, a block of texts at a time; one block becomes arrays while the next is tokenised."""
    blocks: list[npt.NDArray[np.int32]] = []
    sizes: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    encode = _block_encoder(tokenizer)
    # The tokenizers library works without the GIL.
    with ThreadPoolExecutor(1) as ahead:
        starts = range(0, len(texts), _BATCH)
        tasks = (ahead.submit(encode, texts, start) for start in starts)
        waiting = next(tasks, None)
        while waiting is not None:
            ids = waiting.result()
            waiting = next(tasks, None)
            sizes.append(np.fromiter(map(len, ids), np.int64, len(ids)))
            blocks.append(np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes[-1].sum())))
    return np.concatenate(blocks) if blocks else np.empty(0, np.int32), np.cumsum(np.concatenate(sizes))


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


def cache_folder() -> Path:
    """Where tokenised tables are kept: `$XDG_CACHE_HOME/classify`, `~/.cache/classify` without it."""
    return cache_home() / "classify" / "tokens"


def cached_bytes() -> tuple[int, int]:
    """How many tokenised tables are kept, and how many bytes they take."""
    folder = cache_folder()
    entries = [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    return len(entries), sum(file.stat().st_size for entry in entries for file in entry.iterdir())


def clear_cache() -> None:
    """Forget all tokenised tables. A run that uses one goes on with what it has open."""
    shutil.rmtree(cache_folder(), ignore_errors=True)


def _through_cache(
    key: str, tokenizer: Any, texts: Sequence[str]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None:
    """The arrays under `key`, made first if need be; None where the cache cannot be used (read-only)."""
    import filelock

    folder = cache_folder() / key
    arrays = None
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds people's texts
        with filelock.FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                arrays = _encode(tokenizer, texts)
                _store(folder, arrays)
            with contextlib.suppress(OSError):
                os.utime(folder)
            try:
                ids = np.load(folder / "ids.npy", mmap_mode="r")
                offsets = np.load(folder / "offsets.npy")
                if len(offsets) == len(texts) + 1 and offsets[-1] == len(ids):
                    return ids, offsets
            except (OSError, ValueError, EOFError):  # not there, or not an array any more
                pass
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # read-only, or no room to keep them
        pass
    return arrays


def _store(folder: Path, arrays: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]) -> None:
    """Write both arrays: a cache entry exists whole or not at all, readable by its owner alone."""
    _make_room(folder.parent, sum(array.nbytes for array in arrays))
    with whole(folder) as temporary:
        temporary.mkdir(mode=0o700)
        np.save(temporary / "ids.npy", np.asarray(arrays[0]))
        np.save(temporary / "offsets.npy", np.asarray(arrays[1]))


def _make_room(cache: Path, needed: int) -> None:
    """Drop what killed processes left, and the entries used longest ago until `needed` bytes fit into the cache."""
    for leftover in cache.glob(f"{TEMPORARY}*"):
        if time.time() - leftover.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    entries = sorted((p for p in cache.iterdir() if p.is_dir() and p.name[0] != "."), key=lambda p: p.stat().st_mtime)
    sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}
    total = sum(sizes.values())
    for entry in entries:
        if total + needed <= CACHE_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            entry.with_suffix(".lock").unlink()
        total -= sizes[entry]

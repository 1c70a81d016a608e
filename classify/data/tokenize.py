"""Tokenize texts once: flat arrays that every later pass slices, cached and memory-mapped.

Each text's ids are stored without special tokens and without truncation, so one tokenization serves every
`--max-length`. The special tokens that a tokenizer puts around a text, or two, are the same for all rows; they and the
truncation are applied when rows are collated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.console import progress_bar
from classify.data.long_texts import TRUNCATE, Ids, LongTextPolicy
from classify.errors import InputError
from classify.tables.cache import load_or_write
from classify.tables.table import Table

# An Arrow column is converted to Python strings block by block.
Texts: TypeAlias = Sequence[str] | pyarrow.ChunkedArray
Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

# Limit of the default --max-length; beyond it memory and time grow fast.
DEFAULT_LIMIT = 512
# Share of longer texts from which a prediction notes them.
_NOTED = 0.1
# Of the cache: an entry of another format is another entry.
_FORMAT = 2
_BATCH = 4096
_IDS = "ids.bin"
_OFFSETS = "offsets.npy"


@dataclass(frozen=True)
class Template:
    """The special tokens of a row: `prefix` text `suffix`, or `prefix` text `middle` text `suffix` for pairs.

    `types` are the token types of both parts where the model has any: prefix, first text and the tokens after it that
    the tokenizer counts to it (`middle_types`), then the rest.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    middle: tuple[int, ...] = ()
    middle_types: tuple[int, ...] = ()
    types: tuple[int, int] = (0, 0)

    @property
    def tokens(self) -> list[int]:
        return [*self.prefix, *self.middle, *self.suffix]


@dataclass(frozen=True)
class Segment:
    """Token ids of a column: row i without special tokens is ids[offsets[i] : offsets[i + 1]] (int32)."""

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: Ids | None = None) -> Ids:
        """(n,) tokens of each text, of all or of the given rows."""
        return np.diff(self.offsets) if rows is None else self.offsets[rows + 1] - self.offsets[rows]


@dataclass(frozen=True)
class Collated:
    """Concatenated sequences: ids (T,), lengths (n,), and token types (T,) where they are not all 0.

    `rows` (n,) are the numbers of the rows that the sequences belong to, where a row has several.
    """

    ids: Ids
    lengths: Ids
    types: Ids | None = None
    rows: Ids | None = None


@dataclass(frozen=True)
class Tokens:
    """Token ids of all rows of a table, of one text each or of two."""

    first: Segment
    template: Template
    max_length: int
    second: Segment | None = None
    long_texts: LongTextPolicy = TRUNCATE  # of one text each; pairs are always truncated

    def __len__(self) -> int:
        return len(self.first)

    @property
    def segments(self) -> list[Segment]:
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def special(self) -> int:
        return len(self.template.tokens)

    def full_lengths(self, rows: Ids | None = None) -> Ids:
        """(n,) tokens of all or of the given rows with special tokens, before truncation."""
        return sum((segment.lengths(rows) for segment in self.segments), np.array(self.special))

    def lengths(self, rows: Ids | None = None) -> Ids:
        """(n,) tokens of all or of the given rows as the model sees them, in all their sequences."""
        texts, room = self.full_lengths(rows) - self.special, self.max_length - self.special
        return self.long_texts.num_sequences(texts, room) * (np.minimum(texts, room) + self.special)

    def cut(self, max_length: int, long_texts: LongTextPolicy = TRUNCATE) -> Tokens:
        """The same ids with another maximum length, and policy for longer texts.

        Raises InputError where special tokens leave no room for a text.
        """
        fewest = self.special + len(self.segments)
        if max_length < fewest:
            raise InputError(
                f"--max-length {max_length}: the tokenizer adds {self.special} special tokens to each row; give at "
                f"least {fewest}."
            )
        return dataclasses.replace(self, max_length=max_length, long_texts=long_texts)

    def join(self, more: Tokens) -> Tokens:
        """The rows of both, in memory; of one text each."""
        offsets = np.concatenate([self.first.offsets, self.first.offsets[-1] + more.first.offsets[1:]])
        first = Segment(np.concatenate([self.first.ids, more.first.ids]), offsets)
        return dataclasses.replace(self, first=first)

    def collate(self, rows: Ids) -> Collated:
        """Join the rows end to end; pairs are truncated longest first."""
        return self._collate_texts(rows) if self.second is None else self._collate_pairs(self.second, rows)

    def _collate_texts(self, rows: Ids) -> Collated:
        cuts = self.long_texts.cut(self.first.lengths(rows), self.max_length - self.special)
        lengths = cuts.counts.sum(axis=1) + self.special
        ids = np.empty(int(lengths.sum()), dtype=np.int64)
        place = _write_tokens(ids, np.cumsum(lengths) - lengths, self.template.prefix)
        offsets = self.first.offsets[rows[cuts.rows]]
        for starts, counts in zip(cuts.starts.T, cuts.counts.T, strict=True):
            place = _write_texts(ids, place, self.first.ids, offsets + starts, counts)
        _write_tokens(ids, place, self.template.suffix)
        return Collated(ids, lengths, rows=cuts.rows if len(cuts.rows) > len(rows) else None)

    def _collate_pairs(self, second: Segment, rows: Ids) -> Collated:
        template = self.template
        counts = _truncate_pair(self.first.lengths(rows), second.lengths(rows), self.max_length - self.special)
        lengths = sum(counts, np.array(self.special))
        ids = np.empty(int(lengths.sum()), dtype=np.int64)
        place = _write_tokens(ids, np.cumsum(lengths) - lengths, template.prefix)
        parts = ((self.first, template.middle), (second, template.suffix))
        for (segment, following), count in zip(parts, counts, strict=True):
            place = _write_texts(ids, place, segment.ids, segment.offsets[rows], count)
            place = _write_tokens(ids, place, following)
        return Collated(ids, lengths, self._types(lengths, counts))

    def _types(self, lengths: Ids, counts: list[Ids]) -> Ids | None:
        first, second = self.template.types
        if first == second:
            return None
        following = sum(kind == first for kind in self.template.middle_types)
        sizes = len(self.template.prefix) + counts[0] + following
        return np.repeat(np.tile([first, second], len(lengths)), np.stack([sizes, lengths - sizes], axis=1).ravel())


def _truncate_pair(first: Ids, second: Ids, room: int) -> list[Ids]:
    """How many tokens of two texts are kept: the longer one is cut first, then both alike.

    As the strategy `longest_first` of the library tokenizers, which gives an odd token to the longer text, of equals to
    the second.
    """
    short, long = np.minimum(first, second), np.maximum(first, second)
    fits = first + second <= room
    kept_short = np.where(fits, short, np.where(2 * short <= room, short, room // 2))
    kept_long = np.where(fits, long, room - kept_short)
    swapped = first > second
    return [np.where(swapped, kept_long, kept_short), np.where(swapped, kept_short, kept_long)]


def _write_tokens(ids: Ids, place: Ids, tokens: Sequence[int]) -> Ids:
    """Write the same tokens at a place of each row; return the places after them."""
    for i, token in enumerate(tokens):
        ids[place + i] = token
    return place + len(tokens)


def _write_texts(ids: Ids, place: Ids, source: npt.NDArray[np.int32], offsets: Ids, counts: Ids) -> Ids:
    """Write `counts` tokens of a source from each of the `offsets`; return the places after them."""
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    ids[np.repeat(place, counts) + within] = source[np.repeat(offsets, counts) + within]
    return place + counts


@dataclass(frozen=True)
class TokenizedSplit:
    """Rows of a table as token ids: `rows` (n,) of `tokens`, and their `targets` (n, ...)."""

    tokens: Tokens
    rows: Ids
    targets: npt.NDArray[Any]

    def take(self, chosen: npt.NDArray[Any]) -> TokenizedSplit:
        """Some of the rows: where a mask (n,) is true, or at these indices into them, in order."""
        return TokenizedSplit(self.tokens, self.rows[chosen], self.targets[chosen])


def load_tokenizer(folder: str) -> Any:
    """Load the tokenizer of a model folder, with the truncation and padding that some carry switched off."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.truncation_side = "right"  # as texts are cut here, and will be by transformers with the saved tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def tokenize(
    tokenizer: Any,
    texts: Sequence[str],
    max_length: int,
    *,
    digest: str | None = None,
    second: Sequence[str] | None = None,
    long_texts: LongTextPolicy = TRUNCATE,
) -> Tokens:
    """Tokenize texts, or pairs with their `second` texts. With a `digest` (see `Table.digest`) the ids are cached."""
    first = _tokenize(tokenizer, texts, digest)
    second_tokens = None if second is None else _tokenize(tokenizer, second, None)
    return Tokens(first, find_template(tokenizer, pairs=second is not None), max_length, second_tokens, long_texts)


def tokenize_columns(tokenizer: Any, table: Table, columns: Sequence[str], max_length: int) -> Tokens:
    """Tokenize one text column of a table, or two, or find their ids in the cache."""
    first, *others = (_tokenize(tokenizer, table.arrow.column(name), table.digest(name)) for name in columns)
    second = others[0] if others else None
    return Tokens(first, find_template(tokenizer, pairs=second is not None), max_length, second)


def _tokenize(tokenizer: Any, texts: Texts, digest: str | None) -> Segment:
    """The ids of all texts; ranks on one machine that need the same ones tokenize them once."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    arrays = None
    if digest is not None and backend is not None:
        key = hashlib.sha256(f"{_FORMAT}\0{digest}\0{backend.to_str()}".encode()).hexdigest()[:32]
        arrays = load_or_write(
            key, lambda folder: _write(folder, tokenizer, texts), lambda folder: _read(folder, len(texts))
        )
    return Segment(*(arrays or _in_memory(tokenizer, texts)))


def find_template(tokenizer: Any, *, pairs: bool = False) -> Template:
    """Find the special tokens that a tokenizer puts around a text, or around two."""
    bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    encoded = tokenizer("a", "a", verbose=False) if pairs else tokenizer("a", verbose=False)
    full = encoded["input_ids"]
    starts = [start for start in range(len(full) - len(bare) + 1) if full[start : start + len(bare)] == bare]
    assert starts, f"a tokenizer that changes a text when it adds special tokens: {full} from {bare}"
    begin, end = starts[0], starts[0] + len(bare)
    if not pairs:
        return Template(tuple(full[:begin]), tuple(full[end:]))
    second = starts[-1]
    types = encoded.get("token_type_ids") or [0] * len(full)
    return Template(
        tuple(full[:begin]),
        tuple(full[second + len(bare) :]),
        tuple(full[end:second]),
        tuple(types[end:second]),
        (types[begin], types[second]),
    )


def default_max_length(full_lengths: Ids, cap: int) -> int:
    """128 tokens, or the 99th percentile of the texts where that is more; at most 512, and `cap`."""
    longest = int(np.percentile(full_lengths, 99, method="higher")) if len(full_lengths) else 0
    return min(max(128, longest), DEFAULT_LIMIT, cap)


def max_length_reason(tokens: Tokens, rows: Ids, cap: int, *, requested: bool) -> str:
    """Describe how many texts of the given rows are longer than the maximum length, and what happens to them."""
    lengths, max_length = tokens.full_lengths(rows), tokens.max_length
    longer = lengths > max_length
    if not longer.any():
        return "no training text is longer"
    why = f"{longer.sum()} of {len(lengths)} training texts are longer: {_describe_policy(tokens, lengths[longer])}"
    limited = not requested and max_length == DEFAULT_LIMIT < cap
    return f"{why}; {DEFAULT_LIMIT} is the default limit" if limited else why


def note_longer(tokens: Tokens) -> str | None:
    """A note where a tenth of the texts to predict are longer than the model reads; None where fewer are."""
    lengths = tokens.full_lengths()
    longer = lengths > tokens.max_length
    if longer.sum() < _NOTED * len(lengths) or not longer.any():
        return None
    share = f"{100 * longer.mean():.0f} % of the texts are longer than {tokens.max_length} tokens"
    return f"{share}: {_describe_policy(tokens, lengths[longer])}"


def _describe_policy(tokens: Tokens, longer: Ids) -> str:
    """Describe what happens to texts of these lengths, longer than the maximum."""
    return tokens.long_texts.describe(longer - tokens.special, tokens.max_length - tokens.special)


def _encode(tokenizer: Any, texts: Texts) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Yield the flat ids of a block of texts, and how many each has; the next block is tokenized meanwhile."""
    bar = progress_bar(len(texts), 0, "text", enabled=True, delayed=True)
    # The tokenizers library works without the GIL.
    with bar, ThreadPoolExecutor(1) as ahead:
        starts = range(0, len(texts), _BATCH)
        tasks = (ahead.submit(_encode_block, tokenizer, texts, start) for start in starts)
        waiting = next(tasks, None)
        while waiting is not None:
            ids = waiting.result()
            waiting = next(tasks, None)
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            yield np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes.sum())), sizes
            bar.update(len(ids))


def _in_memory(tokenizer: Any, texts: Texts) -> Arrays:
    blocks = list(_encode(tokenizer, texts))
    ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in blocks)])
    return ids, _offsets([sizes for _, sizes in blocks])


def _write(folder: Path, tokenizer: Any, texts: Texts) -> None:
    counts = []
    with (folder / _IDS).open("wb") as file:
        for ids, sizes in _encode(tokenizer, texts):
            ids.tofile(file)
            counts.append(sizes)
    np.save(folder / _OFFSETS, _offsets(counts))


def _read(folder: Path, count: int) -> Arrays | None:
    """The arrays of a folder, the ids memory-mapped; None where they do not fit `count` texts."""
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


def _encode_block(tokenizer: Any, texts: Texts, start: int) -> list[list[int]]:
    block = texts[start : start + _BATCH]
    block = list(block) if isinstance(block, Sequence) else block.to_pylist()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        ids: list[list[int]] = tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"]
        return ids
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(block, add_special_tokens=False)]
    except BaseException as error:
        # Not an Exception: e.g. a regular expression that backtracks without end is given up by a panic.
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"the tokenizer of the model fails on a text ({error}); use another --model.") from None


def get_padding_id(tokenizer: Any) -> int:
    """The id of padding; any will do where the tokenizer has none, since attention masks it."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

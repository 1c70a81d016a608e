"""Tokenize texts once: flat arrays that every later pass slices, cached and memory-mapped.

Each text's ids are stored without special tokens and without truncation, so one tokenization serves every
`--max-length`. The special tokens that a tokenizer puts around a text, or two, are the same for all rows; they and the
truncation are applied when rows are collated. Texts that are longer than --max-length are cut by a policy, the same in
prediction as in training: its name is kept in classify.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.console import progress_bar
from classify.data import token_cache
from classify.errors import InputError
from classify.tables.table import Table

# An Arrow column is converted to Python strings block by block.
Texts: TypeAlias = Sequence[str] | pyarrow.ChunkedArray

Ids = npt.NDArray[np.int64]
# Sequences of texts: of which text each is (s,), and the first token and length of its spans, both (spans, s).
Cuts = tuple[Ids, Ids, Ids]

# Part of the first tokens in "head-tail": 128 of 510 (Sun et al., 2019).
_HEAD = 0.25
# Least share of a chunk that the next one repeats.
_OVERLAP = 0.125
# Chunks per text: 16 of 512 tokens are some 6,000 words.
MAX_CHUNKS = 16
# Limit of the default --max-length; beyond it memory and time grow fast.
DEFAULT_LIMIT = 512
# Share of longer texts from which a prediction notes them.
_NOTED = 0.1
# Texts that are tokenized at once.
_BATCH = 4096


@dataclass(frozen=True)
class LongTextPolicy:
    """What is read of a text longer than `room` tokens, by its value of --long-texts: as many, from its two ends.

    `head` is the share of the first tokens (Sun et al., 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1).
    """

    name: str
    head: float = 1.0

    def num_sequences(self, lengths: Ids, room: int) -> Ids:
        """(n,) the number of sequences of texts of that many tokens (n,)."""
        return np.ones(len(lengths), dtype=np.int64)

    def cut(self, lengths: Ids, room: int) -> Cuts:
        head = np.where(lengths > room, int(self.head * room), lengths)
        tail = np.where(lengths > room, room - head, 0)
        return np.arange(len(lengths)), np.stack([np.zeros_like(head), lengths - tail]), np.stack([head, tail])

    def describe(self, lengths: Ids, room: int) -> str:
        """What happens to the texts, at least one, that are longer than `room`."""
        head = int(self.head * room)
        return "truncated" if head == room else f"their first {head} and last {room - head} tokens are used"


class Chunks(LongTextPolicy):
    """Read overlapping chunks at equal distances, whose logits are averaged.

    The output layer is linear, so that is the output for the mean of the chunks' features.
    """

    def num_sequences(self, lengths: Ids, room: int) -> Ids:
        overlap = int(_OVERLAP * room)
        needed = -(-(lengths - overlap) // max(1, room - overlap))
        return np.where(lengths > room, np.minimum(needed, MAX_CHUNKS), 1).astype(np.int64)

    def cut(self, lengths: Ids, room: int) -> Cuts:
        """The chunks of each text: the first starts with it, the last ends with it."""
        numbers = self.num_sequences(lengths, room)
        rows = np.repeat(np.arange(len(lengths)), numbers)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        starts = place * np.maximum(lengths - room, 0)[rows] // np.maximum(numbers - 1, 1)[rows]
        return rows, starts[None], np.minimum(lengths, room)[rows][None]

    def describe(self, lengths: Ids, room: int) -> str:
        numbers = self.num_sequences(lengths, room)
        gaps = int((lengths > MAX_CHUNKS * room).sum())
        partly = f", {gaps} with gaps between {MAX_CHUNKS} chunks" if gaps else ""
        return f"read in up to {numbers.max()} chunks{partly}"


TRUNCATE = LongTextPolicy("truncate")
POLICIES = {policy.name: policy for policy in (TRUNCATE, LongTextPolicy("head-tail", _HEAD), Chunks("chunks"))}


@dataclass(frozen=True)
class Template:
    """The special tokens of a row: `prefix` text `suffix`, or `prefix` text `middle` text `suffix` for pairs.

    `types` are the token types of both texts, where the model has any; the first `middle_first` tokens of the middle
    have the first text's.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    middle: tuple[int, ...] = ()
    middle_first: int = 0
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

    def join(self, more: Segment) -> Segment:
        offsets = np.concatenate([self.offsets, self.offsets[-1] + more.offsets[1:]])
        return Segment(np.concatenate([self.ids, more.ids]), offsets)


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
        """The rows of both, in memory."""
        second = None if self.second is None or more.second is None else self.second.join(more.second)
        return dataclasses.replace(self, first=self.first.join(more.first), second=second)

    def collate(self, rows: Ids) -> Collated:
        """Join the rows end to end; pairs are truncated longest first."""
        template, room = self.template, self.max_length - self.special
        if self.second is None:
            of_row, starts, counts = self.long_texts.cut(self.first.lengths(rows), room)
            starts = self.first.offsets[rows[of_row]] + starts
        else:
            of_row, counts = rows, _truncate_pair(self.first.lengths(rows), self.second.lengths(rows), room)
            starts = np.stack([segment.offsets[rows] for segment in self.segments])
        lengths = counts.sum(axis=0) + self.special
        ids = np.empty(int(lengths.sum()), dtype=np.int64)
        place = _write_tokens(ids, np.cumsum(lengths) - lengths, template.prefix)
        for number, count in enumerate(counts):  # spans of one text, or the two of a pair
            source, is_last = self.segments[0 if self.second is None else number].ids, number == len(counts) - 1
            within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
            ids[np.repeat(place, count) + within] = source[np.repeat(starts[number], count) + within]
            place = _write_tokens(ids, place + count, template.suffix if is_last else template.middle)
        types = None
        if template.types[0] != template.types[1]:
            first = len(template.prefix) + counts[0] + template.middle_first
            types = np.repeat(np.tile(template.types, len(lengths)), np.stack([first, lengths - first], axis=1).ravel())
        return Collated(ids, lengths, types, rows=of_row if len(of_row) > len(rows) else None)


def _truncate_pair(first: Ids, second: Ids, room: int) -> Ids:
    """(2, rows) how many tokens of two texts are kept: the longer one is cut first, then both alike.

    As the strategy `longest_first` of the library tokenizers, which gives an odd token to the longer text, of equals to
    the second.
    """
    kept_short = np.minimum(np.minimum(first, second), room // 2)
    kept_long = np.minimum(np.maximum(first, second), room - kept_short)
    return np.where(first > second, [kept_long, kept_short], [kept_short, kept_long])


def _write_tokens(ids: Ids, place: Ids, tokens: Sequence[int]) -> Ids:
    for i, token in enumerate(tokens):
        ids[place + i] = token
    return place + len(tokens)


@dataclass(frozen=True)
class TokenizedSplit:
    """Rows of a table as token ids: `rows` (n,) of `tokens`, their `targets` (n, ...) and `weights` (n,), if any."""

    tokens: Tokens
    rows: Ids
    targets: npt.NDArray[Any]
    weights: npt.NDArray[np.float32] | None = None

    def take(self, chosen: npt.NDArray[Any]) -> TokenizedSplit:
        """Some of the rows: where a mask (n,) is true, or at these indices into them, in order."""
        weights = None if self.weights is None else self.weights[chosen]
        return TokenizedSplit(self.tokens, self.rows[chosen], self.targets[chosen], weights)

    def join(self, more: TokenizedSplit) -> TokenizedSplit:
        """These rows and more, whose targets have the same form; rows without a weight weigh 1."""
        tokens, rows, weights = self.tokens, more.rows, None
        if more.tokens.first is not tokens.first:
            tokens, rows = tokens.join(more.tokens), len(tokens) + rows
        if self.weights is not None or more.weights is not None:
            ones = (np.ones(len(split.rows), dtype=np.float32) for split in (self, more))
            given = zip((self.weights, more.weights), ones, strict=True)
            weights = np.concatenate([one if weight is None else weight for weight, one in given])
        targets = np.concatenate([self.targets, more.targets])
        return TokenizedSplit(tokens, np.concatenate([self.rows, rows]), targets, weights)


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
    second_tokens = None if second is None else _tokenize(tokenizer, second)
    return Tokens(first, find_template(tokenizer, pairs=second is not None), max_length, second_tokens, long_texts)


def tokenize_columns(tokenizer: Any, table: Table, columns: Sequence[str], max_length: int) -> Tokens:
    """Tokenize one text column of a table, or two, or find their ids in the cache."""
    first, *others = (_tokenize(tokenizer, table.arrow.column(name), table.digest(name)) for name in columns)
    second = others[0] if others else None
    return Tokens(first, find_template(tokenizer, pairs=second is not None), max_length, second)


def _tokenize(tokenizer: Any, texts: Texts, digest: str | None = None) -> Segment:
    """The ids of all texts, with a `digest` from the cache: ranks on one machine tokenize the same texts once."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if digest is None or backend is None:
        return Segment(*token_cache.join(_encode(tokenizer, texts)))
    key = hashlib.sha256(f"{digest}\0{backend.to_str()}".encode()).hexdigest()[:32]
    return Segment(*token_cache.load_or_write(key, len(texts), lambda: _encode(tokenizer, texts)))


def find_template(tokenizer: Any, *, pairs: bool = False) -> Template:
    """Find the special tokens that a tokenizer puts around a text, or around two."""
    bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    encoded = tokenizer("a", "a", verbose=False) if pairs else tokenizer("a", verbose=False)
    full, size = encoded["input_ids"], len(bare)
    starts = [start for start in range(len(full) - size + 1) if full[start : start + size] == bare]
    assert starts, f"a tokenizer that changes a text when it adds special tokens: {full} from {bare}"
    first, second = starts[0], starts[-1]  # one place where there is one text
    types = (encoded.get("token_type_ids") if pairs else None) or [0] * len(full)
    middle = slice(first + size, second)
    return Template(
        tuple(full[:first]),
        tuple(full[second + size :]),
        tuple(full[middle]),
        types[middle].count(types[first]),
        (types[first], types[second]),
    )


def default_max_length(full_lengths: Ids, cap: int) -> int:
    """128 tokens, or the 99th percentile of the texts where that is more; at most 512, and `cap`."""
    longest = int(np.percentile(full_lengths, 99, method="higher")) if len(full_lengths) else 0
    return min(max(128, longest), DEFAULT_LIMIT, cap)


def max_length_reason(tokens: Tokens, rows: Ids, cap: int, *, requested: bool) -> str:
    """Describe how many texts of the given rows are longer than the maximum length, and what happens to them."""
    number, what = _describe_longer(tokens, rows)
    if not number:
        return "no training text is longer"
    limited = not requested and tokens.max_length == DEFAULT_LIMIT < cap
    what += f"; {DEFAULT_LIMIT} is the default limit" if limited else ""
    return f"{number} of {len(rows)} training texts are longer: {what}"


def note_longer(tokens: Tokens) -> str | None:
    """A note where a tenth of the texts to predict are longer than the model reads; None where fewer are."""
    number, what = _describe_longer(tokens)
    if not number or number < _NOTED * len(tokens):
        return None
    return f"{100 * number / len(tokens):.0f} % of the texts are longer than {tokens.max_length} tokens: {what}"


def _describe_longer(tokens: Tokens, rows: Ids | None = None) -> tuple[int, str]:
    lengths = tokens.full_lengths(rows)
    longer = lengths[lengths > tokens.max_length] - tokens.special
    room = tokens.max_length - tokens.special
    return len(longer), tokens.long_texts.describe(longer, room) if len(longer) else ""


def _encode(tokenizer: Any, texts: Texts) -> Iterator[token_cache.Arrays]:
    """Yield the flat ids of each block of texts, and how many each text has; the next block is tokenized meanwhile."""
    bar = progress_bar(len(texts), 0, "text", enabled=True, delayed=True)
    # The tokenizers library works without the GIL.
    with bar, ThreadPoolExecutor(1) as ahead:
        blocks = (ahead.submit(_encode_block, tokenizer, texts, start) for start in range(0, len(texts), _BATCH))
        waiting = next(blocks, None)
        while waiting is not None:
            ids = waiting.result()
            waiting = next(blocks, None)
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            yield np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes.sum())), sizes
            bar.update(len(ids))


def _encode_block(tokenizer: Any, texts: Texts, start: int) -> list[list[int]]:
    block = texts[start : start + _BATCH]
    block = list(block) if isinstance(block, Sequence) else block.to_pylist()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        if backend is not None:
            return [encoding.ids for encoding in backend.encode_batch_fast(block, add_special_tokens=False)]
    except BaseException as error:
        # Not an Exception: e.g. a regular expression that backtracks without end is given up by a panic.
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"the tokenizer of the model fails on a text ({error}); use another --model.") from None
    ids: list[list[int]] = tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def get_padding_id(tokenizer: Any) -> int:
    """The id of padding; any will do where the tokenizer has none, since attention masks it."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

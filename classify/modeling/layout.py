"""Where the texts of a packed row lie, and how they are joined for attention in training on a CPU.

Texts of like length share batched matrix products, in buckets, the shorter filled up. Neighbouring buckets make a
group: what is not a product is done for all of it in one call. Short texts make one group. Long ones have so many
scores that calls over all would read and write main memory each time, so a group ends where the caches do.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from classify.launch import accelerators

# Seconds of a bucket's calls, of an entry (a text's token, padding too, for a head) and of a score, forward and
# backward together (2-core CPU with AVX512; the ratios matter, and they are not critical).
_CALLS = 2.2e-4
_ENTRY = 3.2e-7
_SCORE = 9e-9
# Scores of a group, unless a single text has more: 4 MB in fp32, and a few arrays of them stay in the caches.
_CACHED = 1 << 20
# Scores of a text that are kept for the backward pass, at most: those of 512 tokens in 12 heads. A longer text's are
# computed again, in blocks. With dropout that took 0.8 (fp32) to 1.2 (bf16) of the time at 512 tokens, 0.5 to 0.9 of it
# at 1,024 and 2,048, and up to 1.5 of it at 304.
_LONG = 3 << 20
# Queries of such a block: from 64 to 256 make little difference on texts of 512 to 2,048 tokens, fewer take up to twice
# the time.
_BLOCK = 128
# With AVX512 torch computes the softmax of rows shorter than a register's 16 numbers entry by entry, five times slower.
# Filled up to 16 on any processor: dropout's draws depend on the padding, and a run goes on alike wherever it does.
_NARROWEST = 16
# Up to this length of texts, products in fp32 whatever the type of q, k and v: oneDNN, which computes those in bf16,
# makes code for each shape it has not met, and nearly every step brings new ones; that takes longer than the products.
# Longer texts are filled up to a multiple of `_NARROWEST`, and few share a bucket, so that shapes come again.
_SHORT = 64
# Added to the score of what a token may not see. Not infinity: padding may see nothing, and that must be a number.
_MASKED = -1e30


@dataclass(frozen=True)
class Block:
    """Queries of a text, and the keys that they may see."""

    queries: slice
    keys: slice


@dataclass(frozen=True)
class Bucket:
    """n texts that share a batched product, each filled up to L tokens.

    `shape` is (n, heads, L). `padding` (n, 1, 1, L) is added to scores: 0, or `_MASKED` at padding; None where nothing
    is filled.
    """

    shape: tuple[int, int, int]
    padding: torch.Tensor | None

    def attn_bias(self, window: int, block: Block) -> torch.Tensor | None:
        """What to add to a block's scores, (n or 1, 1, queries or 1, keys), to hide padding and what is too far."""
        padding = None if self.padding is None else self.padding[..., block.keys]
        if not 0 <= window < self.shape[2] - 1:
            return padding
        queries, keys = (torch.arange(part.start, part.stop) for part in (block.queries, block.keys))
        far = ((queries[:, None] - keys).abs() > window)[None, None] * _MASKED
        return far if padding is None else padding + far

    def whole(self, cls_only: bool) -> Block:
        """All of its queries, or those of first tokens alone, with all keys."""
        return Block(slice(0, 1 if cls_only else self.shape[2]), slice(0, self.shape[2]))

    @property
    def entries(self) -> int:
        """How many entries it has, with the padding."""
        return math.prod(self.shape)

    def count_scores(self, cls_only: bool = False) -> int:
        """How many pairs there are of an entry that asks and one that answers."""
        return self.entries if cls_only else self.entries * self.shape[2]

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which products of queries, keys and values of `dtype` are computed."""
        return torch.promote_types(dtype, torch.float32) if self.shape[2] <= _SHORT else dtype


def _held_in(buckets: Sequence[Bucket], dtype: torch.dtype) -> torch.dtype:
    """The type for what belongs to all of these buckets: the longest one's; others may want a wider one."""
    return max(buckets, key=lambda bucket: bucket.shape[2]).product_type(dtype)


@dataclass(frozen=True)
class BucketGroup:
    """Neighbouring buckets that are computed together. `entry` and `text` are its first entry and first text's head."""

    buckets: tuple[Bucket, ...]
    entry: int
    text: int

    @property
    def is_long(self) -> bool:
        """Whether it is a single text whose scores are too many to be kept for the backward pass."""
        return self.count_scores(cls_only=False) > max(_LONG, _CACHED)

    def blocks(self, window: int, cls_only: bool) -> Iterator[Block]:
        """A long text's queries in blocks, with the keys within their window."""
        length = self.buckets[0].shape[2]
        if not 0 <= window < length - 1:
            window = length
        size = max(_NARROWEST, min(_BLOCK, 2 * window))
        last = 1 if cls_only else length
        for start in range(0, last, size):
            stop = min(last, start + size)
            keys = slice(max(0, start - window), min(length, stop + window))
            yield Block(slice(start, stop), keys)

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which what the backward pass wants is held."""
        return _held_in(self.buckets, dtype)

    def entries(self, joined: torch.Tensor, cls_only: bool = False) -> list[torch.Tensor]:
        """What `Layout.gather` gave as (n * heads, L or 1, d) a bucket, in the same memory."""
        shapes = [(b.shape[0] * b.shape[1], 1 if cls_only else b.shape[2], joined.shape[1]) for b in self.buckets]
        return _divided(joined, shapes, (self.text if cls_only else self.entry) * joined.shape[1])

    def count_scores(self, cls_only: bool) -> int:
        """Those of all its buckets."""
        return sum(bucket.count_scores(cls_only) for bucket in self.buckets)

    def scores(self, joined: torch.Tensor, cls_only: bool) -> list[torch.Tensor]:
        """The group's scores, a vector, as (n * heads, L or 1, L) a bucket, in the same memory."""
        shapes = [(b.shape[0] * b.shape[1], 1 if cls_only else b.shape[2], b.shape[2]) for b in self.buckets]
        return _divided(joined, shapes, 0)


def _divided(joined: torch.Tensor, shapes: Sequence[tuple[int, int, int]], start: int) -> list[torch.Tensor]:
    """A contiguous tensor's memory, from entry `start` on, as tensors of these shapes, one behind the other."""
    # In one call each: slicing and giving it a shape are two, and there are hundreds in a step.
    views = []
    start += int(joined.storage_offset())
    for shape in shapes:
        count, rows, columns = shape
        views.append(joined.as_strided(shape, (rows * columns, columns, 1), start))
        start += count * rows * columns
    return views


@dataclass(frozen=True)
class Layout:
    """The texts of a packed row in groups of buckets, whose entries (text, head, token) lie behind each other: E rows.

    `sources` (E,) are the entries' rows in (T * heads, d), where padding reads the first row; `places` (T * heads,)
    say which entry is a row's own. `real` (E, 1) is 1, or 0 at padding; None where nothing is filled. `firsts`
    (N * heads,) are the rows of each text's first token: who asks, where the other tokens' outputs are not needed.
    """

    bucket_groups: tuple[BucketGroup, ...]
    sources: torch.Tensor
    places: torch.Tensor
    real: torch.Tensor | None
    firsts: torch.Tensor

    @property
    def buckets(self) -> list[Bucket]:
        """Those of all bucket_groups."""
        return [bucket for group in self.bucket_groups for bucket in group.buckets]

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The type that entries are held in."""
        return _held_in(self.buckets, dtype)

    def gather(self, tensor: torch.Tensor, dtype: torch.dtype, cls_only: bool = False) -> torch.Tensor:
        """(T, heads, d) to the entries (E, d) or, of each text's first token, (N * heads, d), of a type."""
        return tensor.flatten(0, 1).index_select(0, self.firsts if cls_only else self.sources).to(dtype)

    def scatter(self, entries: torch.Tensor, like: torch.Tensor, cls_only: bool = False) -> torch.Tensor:
        """The reverse of `gather`, in the shape and type of `like`; zero where no entry goes."""
        if not cls_only:
            return entries.index_select(0, self.places).to(like.dtype).view(like.shape)
        rows = like.new_zeros(like.shape).flatten(0, 1)
        return rows.index_copy_(0, self.firsts, entries.to(like.dtype)).view(like.shape)


@dataclass(frozen=True)
class Boundaries:
    """Where texts lie in a packed row of T tokens.

    `groups` are runs of n texts of equal length L: (start token, n, L). `starts` (N,) holds each text's first
    token; `cumulative` (N + 1,) int32 is the form that flash attention wants.
    """

    groups: tuple[tuple[int, int, int], ...]
    starts: torch.Tensor
    cumulative: torch.Tensor
    longest: int
    tokens: int
    _layouts: dict[int, Layout] = field(default_factory=dict, compare=False, repr=False)
    _moved: dict[torch.device, Boundaries] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def slots(self) -> torch.Tensor:
        """(T,) each token's place among N texts padded to the longest, N * longest places."""
        ends = self.cumulative.long()
        text = torch.repeat_interleave(ends.diff(), output_size=self.tokens)
        return text * self.longest + torch.arange(self.tokens, device=ends.device) - ends[text]

    def layout(self, heads: int) -> Layout:
        """How the texts are joined for training on a CPU; the same for all layers."""
        if heads not in self._layouts:
            self._layouts[heads] = make_layout(self.groups, heads)
        return self._layouts[heads]

    def to(self, device: torch.device | str) -> Boundaries:
        """The same boundaries with their tensors on `device`; these themselves where they are there."""
        device = torch.device(device)  # Accelerate's hooks give a string
        if device == self.starts.device:
            return self
        if device not in self._moved:  # what is made of them is made once
            self._moved[device] = Boundaries(
                self.groups, send(self.starts, device), send(self.cumulative, device), self.longest, self.tokens
            )
        return self._moved[device]


def _padded(length: int) -> int:
    """The length that texts of a bucket are filled up to, the longest of them having `length` tokens."""
    return max(_NARROWEST, length) if length <= _SHORT else -(-length // _NARROWEST) * _NARROWEST


def _cut(runs: Sequence[tuple[int, int, int]], heads: int) -> Iterator[tuple[int, int, int]]:
    """The same texts in runs that have no more scores than a group may."""
    for start, count, length in runs:
        most = max(1, _CACHED // (heads * _padded(length) ** 2))
        for done in range(0, count, most):
            yield start + done * length, min(most, count - done), length


def make_layout(given: Sequence[tuple[int, int, int]], heads: int) -> Layout:
    """Join neighbouring runs (start token, n texts, length L) where that saves more calls than it adds entries.

    The best division into consecutive buckets, by dynamic programming over the runs.
    """
    runs = list(_cut(given, heads))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(runs) + 1):
        texts, longest, cheapest = 0, 0, (float("inf"), 0)
        for begin in range(end - 1, -1, -1):
            texts += runs[begin][1]
            longest = max(longest, _padded(runs[begin][2]))
            if heads * texts * longest**2 > _CACHED and begin < end - 1:
                break
            seconds = best[begin][0] + _CALLS + heads * texts * longest * (_ENTRY + _SCORE * longest)
            cheapest = min(cheapest, (seconds, begin))
        best.append(cheapest)
    cuts = [len(runs)]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return _layout([runs[begin:end] for begin, end in itertools.pairwise(reversed(cuts))], heads)


def _layout(divided: Sequence[Sequence[tuple[int, int, int]]], heads: int) -> Layout:
    tokens = sum(count * length for runs in divided for _, count, length in runs)
    places = np.empty(tokens * heads, dtype=np.int64)
    buckets: list[Bucket] = []
    sources, real, firsts = [], [], []
    entries = 0
    for runs in divided:
        starts = np.concatenate([start + length * np.arange(count) for start, count, length in runs])
        lengths = np.repeat([length for *_, length in runs], [count for _, count, _ in runs])
        along = np.arange(_padded(int(lengths.max())))
        n, longest = len(starts), len(along)
        there = np.broadcast_to((along < lengths[:, None])[:, None], (n, heads, longest))
        rows = (starts[:, None, None] + along) * heads + np.arange(heads)[:, None]
        places[rows[there]] = entries + np.flatnonzero(there)
        padding = None if there.all() else torch.from_numpy(np.where(there[:, :1, None], 0, np.float32(_MASKED)))
        buckets.append(Bucket((n, heads, longest), padding))
        sources.append(np.where(there, rows, 0).ravel())
        real.append(there.ravel())
        firsts.append(rows[:, :, 0].ravel())
        entries += there.size
    filled = any(bucket.padding is not None for bucket in buckets)
    return Layout(
        tuple(_group_buckets(buckets)),
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(places),
        torch.from_numpy(np.concatenate(real).astype(np.float32))[:, None] if filled else None,
        torch.from_numpy(np.concatenate(firsts)),
    )


def _group_buckets(buckets: Sequence[Bucket]) -> Iterator[BucketGroup]:
    """Neighbouring buckets together, as many as have no more scores than a group may."""
    group: list[Bucket] = []
    scores = entry = text = 0
    for bucket in buckets:
        if group and scores + bucket.count_scores() > _CACHED:
            yield BucketGroup(tuple(group), entry, text)
            entry += sum(one.entries for one in group)
            text += sum(one.entries // one.shape[2] for one in group)
            group, scores = [], 0
        group.append(bucket)
        scores += bucket.count_scores()
    yield BucketGroup(tuple(group), entry, text)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`; to a GPU from pinned memory, so that the host need not wait for the copy."""
    if accelerators.of(device.type).pins_memory and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)

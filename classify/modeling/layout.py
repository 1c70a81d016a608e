"""Boundaries of the texts in a packed row, and their layout for attention in training on a CPU.

Texts of similar length form a bucket, padded, that shares batched matrix products. Neighbouring buckets form a group,
which shares elementwise calls. The scores of a group fit the caches: larger calls would read and write main memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from classify.launch.devices import accelerator_of

# Seconds per bucket, per entry (a token or padding, per head) and per score, forward and backward (2-core CPU
# with AVX512). Only the ratios matter, and they are not critical.
_CALLS = 2.2e-4
_ENTRY = 3.2e-7
_SCORE = 9e-9
# Most scores of a group of several texts: 4 MB in fp32, so that a few such arrays fit the caches.
_CACHED = 1 << 20
# Most scores of a text that are kept for the backward pass: those of 512 tokens in 20 heads.
_LONG = 5 << 20
# Least padded length: with AVX512 torch's softmax is five times slower on rows shorter than a register's 16 numbers.
# The same on all processors: dropout depends on padding, and a resumed run must not depend on the processor.
_NARROWEST = 16
# Up to this length products are in fp32 for any dtype of q, k and v: in bf16 oneDNN would compile code for each new
# shape, nearly every step, which takes longer than the products. Longer texts are padded to a multiple of `_NARROWEST`
# and few share a bucket, so that shapes repeat.
_SHORT = 64
# Added to masked scores. Not -inf: rows of padding may be fully masked and must not become NaN.
_MASKED = -1e30


@dataclass(frozen=True)
class Bucket:
    """n texts that share a batched product, each padded to L tokens.

    `shape` is (n, heads, L). `padding` (n, 1, 1, L) is added to scores: 0, or `_MASKED` at padding; None without
    padding.
    """

    shape: tuple[int, int, int]
    padding: torch.Tensor | None

    def attn_bias(self, window: int, cls_only: bool) -> torch.Tensor | None:
        """The bias (n or 1, 1, queries or 1, keys) that masks padding and keys outside the window."""
        if not 0 <= window < self.shape[2] - 1:
            return self.padding
        keys = torch.arange(self.shape[2])
        far = ((keys[: 1 if cls_only else None, None] - keys).abs() > window)[None, None] * _MASKED
        return far if self.padding is None else self.padding + far

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    def count_scores(self, cls_only: bool = False) -> int:
        """Count the pairs of query and key."""
        return self.entries if cls_only else self.entries * self.shape[2]

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype for products of queries, keys and values of `dtype`."""
        return torch.promote_types(dtype, torch.float32) if self.shape[2] <= _SHORT else dtype


def _storage_type(buckets: Sequence[Bucket], dtype: torch.dtype) -> torch.dtype:
    """The dtype of tensors shared by buckets: that of the longest; others may compute in a wider one."""
    return max(buckets, key=lambda bucket: bucket.shape[2]).product_type(dtype)


@dataclass(frozen=True)
class BucketGroup:
    """Neighbouring buckets computed together. `entry` and `text` index its first entry and its first (text, head)."""

    buckets: tuple[Bucket, ...]
    entry: int
    text: int

    @property
    def is_long(self) -> bool:
        """Whether it is a single text with too many scores to keep for the backward pass."""
        return self.count_scores(cls_only=False) > max(_LONG, _CACHED)

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of tensors kept for the backward pass."""
        return _storage_type(self.buckets, dtype)

    def entries(self, joined: torch.Tensor, cls_only: bool = False) -> list[torch.Tensor]:
        """View the result of `Layout.gather` as (n * heads, L or 1, d) per bucket."""
        shapes = [(b.shape[0] * b.shape[1], 1 if cls_only else b.shape[2], joined.shape[1]) for b in self.buckets]
        return _split_views(joined, shapes, (self.text if cls_only else self.entry) * joined.shape[1])

    def count_scores(self, cls_only: bool) -> int:
        return sum(bucket.count_scores(cls_only) for bucket in self.buckets)

    def scores(self, joined: torch.Tensor, cls_only: bool) -> list[torch.Tensor]:
        """View the group's scores, a vector, as (n * heads, L or 1, L) per bucket."""
        shapes = [(b.shape[0] * b.shape[1], 1 if cls_only else b.shape[2], b.shape[2]) for b in self.buckets]
        return _split_views(joined, shapes, 0)


def _split_views(joined: torch.Tensor, shapes: Sequence[tuple[int, int, int]], start: int) -> list[torch.Tensor]:
    """View a contiguous tensor, from element `start` on, as consecutive tensors of these shapes."""
    # as_strided is one call, slice and view are two; a step has hundreds.
    views = []
    start += int(joined.storage_offset())
    for shape in shapes:
        count, rows, columns = shape
        views.append(joined.as_strided(shape, (rows * columns, columns, 1), start))
        start += count * rows * columns
    return views


@dataclass(frozen=True)
class Layout:
    """The texts of a packed row in groups of buckets, with E consecutive entries (text, head, token).

    `sources` (E,) maps entries to rows of (T * heads, d), padding to the first row; `places` (T * heads,) maps rows to
    entries. `real` (E, 1) is 1, or 0 at padding; None without padding. `firsts` (N * heads,) are the rows of first
    tokens: the only queries with `cls_only`.
    """

    bucket_groups: tuple[BucketGroup, ...]
    sources: torch.Tensor
    places: torch.Tensor
    real: torch.Tensor | None
    firsts: torch.Tensor

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for group in self.bucket_groups for bucket in group.buckets]

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of entries."""
        return _storage_type(self.buckets, dtype)

    def gather(self, tensor: torch.Tensor, dtype: torch.dtype, cls_only: bool = False) -> torch.Tensor:
        """Gather (T, heads, d) to entries (E, d) in `dtype`; with `cls_only` first tokens to (N * heads, d)."""
        return tensor.flatten(0, 1).index_select(0, self.firsts if cls_only else self.sources).to(dtype)

    def scatter(self, entries: torch.Tensor, like: torch.Tensor, cls_only: bool = False) -> torch.Tensor:
        """Reverse `gather`, in the shape and dtype of `like`; rows without an entry are zero."""
        if not cls_only:
            return entries.index_select(0, self.places).to(like.dtype).view(like.shape)
        rows = like.new_zeros(like.shape).flatten(0, 1)
        return rows.index_copy_(0, self.firsts, entries.to(like.dtype)).view(like.shape)


@dataclass(frozen=True)
class Boundaries:
    """Boundaries of the texts in a packed row of T tokens.

    `groups` are runs of n texts of equal length L: (start token, n, L). `starts` (N,) are the texts' first tokens;
    `cumulative` (N + 1,) int32 is the format of flash attention.
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
        """Each token's index (T,) among N texts padded to the longest."""
        ends = self.cumulative.long()
        text = torch.repeat_interleave(ends.diff(), output_size=self.tokens)
        return text * self.longest + torch.arange(self.tokens, device=ends.device) - ends[text]

    def layout(self, heads: int) -> Layout:
        """The layout for training on a CPU, cached for all layers."""
        if heads not in self._layouts:
            self._layouts[heads] = make_layout(self.groups, heads)
        return self._layouts[heads]

    def to(self, device: torch.device | str) -> Boundaries:
        """The boundaries with their tensors on `device`, cached."""
        device = torch.device(device)  # Accelerate's hooks give a string
        if device == self.starts.device:
            return self
        if device not in self._moved:  # keeps cached layouts and slots
            self._moved[device] = Boundaries(
                self.groups, send(self.starts, device), send(self.cumulative, device), self.longest, self.tokens
            )
        return self._moved[device]


def _round_length(length: int) -> int:
    """The padded length of a bucket whose longest text has `length` tokens."""
    return max(_NARROWEST, length) if length <= _SHORT else -(-length // _NARROWEST) * _NARROWEST


def _cut(runs: Sequence[tuple[int, int, int]], heads: int) -> Iterator[tuple[int, int, int]]:
    """Split runs so that each has at most the scores of a group."""
    for start, count, length in runs:
        most = max(1, _CACHED // (heads * _round_length(length) ** 2))
        for done in range(0, count, most):
            yield start + done * length, min(most, count - done), length


def make_layout(groups: Sequence[tuple[int, int, int]], heads: int) -> Layout:
    """Join neighbouring runs (start token, n texts, length L) into buckets where fewer calls outweigh the padding.

    Dynamic programming over the runs finds the fastest split into consecutive buckets.
    """
    runs = list(_cut(groups, heads))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(runs) + 1):
        texts, longest, cheapest = 0, 0, (float("inf"), 0)
        for begin in range(end - 1, -1, -1):
            texts += runs[begin][1]
            longest = max(longest, _round_length(runs[begin][2]))
            if heads * texts * longest**2 > _CACHED and begin < end - 1:
                break
            seconds = best[begin][0] + _CALLS + heads * texts * longest * (_ENTRY + _SCORE * longest)
            cheapest = min(cheapest, (seconds, begin))
        best.append(cheapest)
    cuts = [len(runs)]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return _layout([runs[begin:end] for begin, end in itertools.pairwise(reversed(cuts))], heads)


def _layout(bucket_runs: Sequence[Sequence[tuple[int, int, int]]], heads: int) -> Layout:
    tokens = sum(count * length for runs in bucket_runs for _, count, length in runs)
    places = np.empty(tokens * heads, dtype=np.int64)
    buckets: list[Bucket] = []
    sources, real, firsts = [], [], []
    entries = 0
    for runs in bucket_runs:
        starts = np.concatenate([start + length * np.arange(count) for start, count, length in runs])
        lengths = np.repeat([length for *_, length in runs], [count for _, count, _ in runs])
        positions = np.arange(_round_length(int(lengths.max())))
        n, longest = len(starts), len(positions)
        is_token = np.broadcast_to((positions < lengths[:, None])[:, None], (n, heads, longest))
        rows = (starts[:, None, None] + positions) * heads + np.arange(heads)[:, None]
        places[rows[is_token]] = entries + np.flatnonzero(is_token)
        padding = None if is_token.all() else torch.from_numpy(np.where(is_token[:, :1, None], 0, np.float32(_MASKED)))
        buckets.append(Bucket((n, heads, longest), padding))
        sources.append(np.where(is_token, rows, 0).ravel())
        real.append(is_token.ravel())
        firsts.append(rows[:, :, 0].ravel())
        entries += is_token.size
    has_padding = any(bucket.padding is not None for bucket in buckets)
    return Layout(
        tuple(_group_buckets(buckets)),
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(places),
        torch.from_numpy(np.concatenate(real).astype(np.float32))[:, None] if has_padding else None,
        torch.from_numpy(np.concatenate(firsts)),
    )


def _group_buckets(buckets: Sequence[Bucket]) -> Iterator[BucketGroup]:
    """Group neighbouring buckets up to the most scores of a group."""
    group: list[Bucket] = []
    scores = entry = text = 0
    for bucket in buckets:
        if group and scores + bucket.count_scores() > _CACHED:
            yield BucketGroup(tuple(group), entry, text)
            entry += sum(member.entries for member in group)
            text += sum(member.entries // member.shape[2] for member in group)
            group, scores = [], 0
        group.append(bucket)
        scores += bucket.count_scores()
    yield BucketGroup(tuple(group), entry, text)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to `device`; to a GPU from pinned memory, without blocking the host."""
    if accelerator_of(device.type).pins_memory and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)

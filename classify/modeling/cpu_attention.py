"""Attention of packed texts in training on a CPU, with few calls over tensors that fit the caches.

torch's kernel needs a call for each length; a step of 32 short texts has a dozen lengths. Here texts of similar length
form a bucket, padded, that shares batched matrix products. Neighbouring buckets form a group, which shares elementwise
calls. The scores of a group fit the caches: larger calls would read and write main memory.

Texts of more than about 512 tokens have too many scores to keep: with one of them in a micro-batch, torch's attention
computes its texts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classify.modeling.cpu_layers import draw_mask
from classify.modeling.packing import Boundaries

# Seconds per bucket, per entry (a token or padding, per head) and per score, forward and backward (2-core CPU
# with AVX512). Only the ratios matter, and they are not critical.
_CALLS = 2.2e-4
_ENTRY = 3.2e-7
_SCORE = 9e-9
# Most scores of a group of several texts: 4 MB in fp32, so that a few such arrays fit the caches.
_CACHED = 1 << 20
# Most scores of a text that are kept for the backward pass: as many as 512 tokens have in 20 heads.
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

# Start token, number of texts, length of each: neighbouring texts of equal length.
Run = tuple[int, int, int]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Bucket:
    """n texts that share a batched product, each padded to L tokens.

    `texts` is n * heads, `length` L. `padding` (n, 1, 1, L) is added to scores: 0, or `_MASKED` at padding; None
    without padding.
    """

    texts: int
    length: int
    padding: Tensor | None

    @property
    def scores(self) -> int:
        return self.texts * self.length**2

    def queries(self, cls_only: bool) -> int:
        return 1 if cls_only else self.length

    def bias(self, window: int, cls_only: bool) -> Tensor | None:
        """The bias (n or 1, 1, queries or 1, keys) that masks padding and keys outside the window."""
        if not 0 <= window < self.length - 1:
            return self.padding
        keys = torch.arange(self.length)
        far = ((keys[: self.queries(cls_only), None] - keys).abs() > window)[None, None] * _MASKED
        return far if self.padding is None else self.padding + far


def _product_type(length: int, dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32) if length <= _SHORT else dtype


@dataclass(frozen=True)
class Layout:
    """The texts of a packed row in groups of buckets, with E consecutive entries (text, head, token).

    `groups` are ranges of `buckets`. `sources` (E,) maps entries to rows of (T * heads, d), padding to the first row;
    `places` (T * heads,) maps rows to entries. `real` (E, 1) is 1, or 0 at padding; None without padding. `firsts`
    (N * heads,) are the rows of first tokens: the only queries with `cls_only`.
    """

    heads: int
    buckets: list[Bucket]
    groups: list[range]
    sources: Tensor
    places: Tensor
    real: Tensor | None
    firsts: Tensor

    def product_type(self, dtype: torch.dtype, group: range | None = None) -> torch.dtype:
        """The dtype of tensors that buckets share: that of the longest; others may compute in a wider one."""
        members = self.buckets if group is None else [self.buckets[i] for i in group]
        return _product_type(max(bucket.length for bucket in members), dtype)

    def gather(self, tensor: Tensor, dtype: torch.dtype, cls_only: bool = False) -> Tensor:
        """Gather (T, heads, d) to entries (E, d) in `dtype`; with `cls_only` first tokens to (N * heads, d)."""
        return tensor.flatten(0, 1).index_select(0, self.firsts if cls_only else self.sources).to(dtype)

    def scatter(self, entries: Tensor, like: Tensor, cls_only: bool = False) -> Tensor:
        """Reverse `gather`, in the shape and dtype of `like`; rows without an entry are zero."""
        if not cls_only:
            return entries.index_select(0, self.places).to(like.dtype).view(like.shape)
        rows = like.new_zeros(like.shape).flatten(0, 1)
        return rows.index_copy_(0, self.firsts, entries.to(like.dtype)).view(like.shape)

    def split(self, entries: Tensor, cls_only: bool = False) -> list[Tensor]:
        """View the result of `gather` as (n * heads, L or 1, d) per bucket."""
        return _views(entries, [(b.texts, b.queries(cls_only), entries.shape[1]) for b in self.buckets])

    def score_shapes(self, group: range, cls_only: bool) -> list[Shape]:
        """The shape (n * heads, L or 1, L) of each bucket's scores in a group, which are one vector."""
        buckets = (self.buckets[i] for i in group)
        return [(bucket.texts, bucket.queries(cls_only), bucket.length) for bucket in buckets]


def _views(joined: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """View a contiguous tensor as consecutive tensors of these shapes."""
    # as_strided is one call, slice and view are two; a step has hundreds.
    views, start = [], int(joined.storage_offset())
    for shape in shapes:
        views.append(joined.as_strided(shape, (shape[1] * shape[2], shape[2], 1), start))
        start += math.prod(shape)
    return views


def make_layout(runs: Sequence[Run], heads: int) -> Layout:
    """Join neighbouring runs into buckets where fewer calls outweigh the padding.

    Dynamic programming over the runs finds the fastest split into consecutive buckets.
    """
    runs = list(_cut(runs, heads))
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
    return _lay_out([runs[begin:end] for begin, end in itertools.pairwise(reversed(cuts))], heads)


def _round_length(length: int) -> int:
    return max(_NARROWEST, length) if length <= _SHORT else -(-length // _NARROWEST) * _NARROWEST


def _cut(runs: Sequence[Run], heads: int) -> Iterator[Run]:
    for start, count, length in runs:
        most = max(1, _CACHED // (heads * _round_length(length) ** 2))
        for done in range(0, count, most):
            yield start + done * length, min(most, count - done), length


def _lay_out(bucket_runs: Sequence[Sequence[Run]], heads: int) -> Layout:
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
        buckets.append(Bucket(n * heads, longest, padding))
        sources.append(np.where(is_token, rows, 0).ravel())
        real.append(is_token.ravel())
        firsts.append(rows[:, :, 0].ravel())
        entries += is_token.size
    has_padding = any(bucket.padding is not None for bucket in buckets)
    return Layout(
        heads,
        buckets,
        _group(buckets),
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(places),
        torch.from_numpy(np.concatenate(real).astype(np.float32))[:, None] if has_padding else None,
        torch.from_numpy(np.concatenate(firsts)),
    )


def _group(buckets: Sequence[Bucket]) -> list[range]:
    """Group neighbouring buckets up to the most scores of a group."""
    starts, scores = [0], 0
    for number, bucket in enumerate(buckets):
        if number > starts[-1] and scores + bucket.scores > _CACHED:
            starts.append(number)
            scores = 0
        scores += bucket.scores
    return [range(*bounds) for bounds in itertools.pairwise([*starts, len(buckets)])]


def attend(
    q: Tensor, k: Tensor, v: Tensor, bounds: Boundaries, *, scale: float, dropout: float, window: int, cls_only: bool
) -> Tensor | None:
    """Compute attention (T, heads, d) within each text, at a distance of at most `window` (-1: any).

    With `cls_only` only first tokens attend, and the other rows are zero. The result is None without gradients and for
    long texts, which torch computes as fast.
    """
    if not q.requires_grad:
        return None
    heads = q.shape[1]
    layout: Layout = bounds.cached(heads, functools.partial(make_layout, bounds.groups, heads))
    if any(bucket.scores > max(_LONG, _CACHED) for bucket in layout.buckets):
        return None
    with torch.autocast(q.device.type, enabled=False):
        attended: Tensor = _Attend.apply(q, k, v, layout, scale, dropout, window, cls_only)
    return attended


class _Attend(torch.autograd.Function):
    """Softmax attention with dropout (Vaswani et al., 2017, section 3.2.1), group by group; softmax in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        scale: float,
        dropout: float,
        window: int,
        cls_only: bool,
    ) -> Tensor:
        dtype, wide = layout.product_type(q.dtype), torch.promote_types(q.dtype, torch.float32)
        queries = layout.gather(q, dtype, cls_only)
        keys, values = layout.gather(k, dtype), layout.gather(v, dtype)
        out = torch.empty_like(queries)
        query, into = layout.split(queries, cls_only), layout.split(out, cls_only)
        key, value = layout.split(keys), layout.split(values)
        types = [_product_type(bucket.length, q.dtype) for bucket in layout.buckets]
        saved, factors = [], []
        for group in layout.groups:
            shapes = layout.score_shapes(group, cls_only)
            scores = queries.new_empty(sum(map(math.prod, shapes)), dtype=wide)
            probabilities = torch.empty_like(scores)
            for i, score, probability in zip(group, _views(scores, shapes), _views(probabilities, shapes), strict=True):
                _multiply(score, query[i], key[i].mT, types[i], scale)
                bias = layout.buckets[i].bias(window, cls_only)
                if bias is not None:
                    score.unflatten(0, (-1, layout.heads)).add_(bias)
                torch.softmax(score, -1, out=probability)
            mask, factor, dropped = scores.new_empty(0), 1.0, probabilities
            if dropout:
                mask, factor = draw_mask(scores.shape, dropout, wide)
                dropped = torch.mul(probabilities, mask, out=scores)  # the scores are not needed again
            for i, share in zip(group, _views(dropped, shapes), strict=True):
                _multiply(into[i], share, value[i], types[i], factor)
            stored_type = layout.product_type(q.dtype, group)
            saved += [probabilities.to(stored_type), mask.to(stored_type)]
            factors.append(factor)
        ctx.save_for_backward(queries, keys, values, *saved)
        ctx.constants = (layout, types, wide, scale, cls_only, factors)
        return layout.scatter(out, q, cls_only)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,), (queries, keys, values, *saved) = grads, ctx.saved_tensors
        layout, types, wide, scale, cls_only, factors = ctx.constants
        grad_out = layout.gather(grad, queries.dtype, cls_only)
        if layout.real is not None and not cls_only:
            grad_out.mul_(layout.real)
        gradients = [torch.empty_like(x) for x in (queries, keys, values)]
        q, dq, out = (layout.split(x, cls_only) for x in (queries, gradients[0], grad_out))
        k, v, dk, dv = (layout.split(x) for x in (keys, values, *gradients[1:]))
        for group, stored, mask, factor in zip(layout.groups, saved[::2], saved[1::2], factors, strict=True):
            shapes = layout.score_shapes(group, cls_only)
            through = torch.empty_like(stored, dtype=wide)  # the gradient of the probabilities
            scores, shares = _views(through, shapes), _views(stored * mask if len(mask) else stored, shapes)
            for i, score, share in zip(group, scores, shares, strict=True):
                _multiply(dv[i], share.mT, out[i], types[i], factor)
                _multiply(score, out[i], v[i].mT, types[i], factor)
            if len(mask):
                through.mul_(mask.to(wide))
            for i, score, probability in zip(group, scores, _views(stored.to(wide), shapes), strict=True):
                change = torch.ops.aten._softmax_backward_data(score, probability, -1, wide).to(types[i])
                _multiply(dq[i], change, k[i], types[i], scale)
                _multiply(dk[i], change.mT, q[i], types[i], scale)
        scattered = layout.scatter(gradients[0], grad, cls_only), *(layout.scatter(x, grad) for x in gradients[1:])
        return *scattered, None, None, None, None, None


def _multiply(into: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype, scale: float) -> None:
    """Write scale * a @ b, computed in `dtype`, to `into`: (N, i, j), (N, j, k) to (N, i, k)."""
    if into.dtype == dtype:
        into.baddbmm_(a.to(dtype), b.to(dtype), beta=0, alpha=scale)
    else:
        into.copy_(torch.baddbmm(a.new_empty((), dtype=dtype), a.to(dtype), b.to(dtype), beta=0, alpha=scale))

"""Attention of packed texts in training on a CPU, where it is a matter of few and large calls.

torch's own kernel works through texts of one length at a time; a step of 32 short texts has a dozen lengths, and the
layers' calls add up. Here texts of like length share batched matrix products, in buckets, the shorter filled up; and
what is not a product is done for all buckets in one call. The backward pass works from the same pieces, which autograd
would make anew one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from classify.dropout import kept
from classify.transfer import send

# Seconds of a bucket's calls, of an entry (a text's token, filling too, for a head) and of a score, forward and
# backward together (2-core CPU with AVX512; the ratios matter, and they are not critical).
_CALLS = 2.2e-4
_ENTRY = 3.2e-7
_SCORE = 9e-9
# With AVX512 torch computes the softmax of rows shorter than a register's 16 numbers entry by entry, five times slower.
# Filled up to 16 on any processor: dropout's draws depend on the filling, and a run goes on alike wherever it does.
_NARROWEST = 16
# Up to this length of texts, products in fp32 whatever the type of q, k and v: oneDNN, which computes those in bf16,
# makes code for each shape it has not met, and nearly every step brings new ones; that takes longer than the products.
_SHORT = 64
# Added to the score of what a token may not see. Not infinity: filling may see nothing, and that must be a number.
_HIDDEN = -1e30


@dataclass(frozen=True)
class Bucket:
    """n texts that share a batched product, each filled up to L tokens.

    `shape` is (n, heads, L). `filling` (n, 1, 1, L) is added to scores: 0, or `_HIDDEN` at filling; None where nothing
    is filled.
    """

    shape: tuple[int, int, int]
    filling: torch.Tensor | None

    def hidden(self, reach: int, first_only: bool) -> torch.Tensor | None:
        """What to add to scores, (n or 1, 1, L or 1, L), to hide filling and what lies beyond a token's reach."""
        longest = self.shape[2]
        if not 0 <= reach < longest - 1:
            return self.filling
        along = torch.arange(longest)
        asking = along[:1] if first_only else along
        far = ((asking[:, None] - along).abs() > reach)[None, None] * _HIDDEN
        return far if self.filling is None else self.filling + far

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which products of queries, keys and values of `dtype` are computed."""
        return torch.promote_types(dtype, torch.float32) if self.shape[2] <= _SHORT else dtype


@dataclass(frozen=True)
class Layout:
    """The texts of a packed row in buckets, whose entries (text, head, token) lie one bucket behind the other: E rows.

    `sources` (E,) are the entries' rows in (T * heads, d), where filling reads the first row; `places` (T * heads,)
    say which entry is a row's own. `real` (E, 1) is 1, or 0 at filling; None where nothing is filled. `firsts`
    (N * heads,) are the rows of each text's first token: who asks, where the other tokens' outputs are not needed.
    """

    buckets: tuple[Bucket, ...]
    sources: torch.Tensor
    places: torch.Tensor
    real: torch.Tensor | None
    firsts: torch.Tensor

    def product_type(self, dtype: torch.dtype) -> torch.dtype:
        """The type that entries are held in; products of short texts may want a wider one."""
        return max(self.buckets, key=lambda bucket: bucket.shape[2]).product_type(dtype)

    def gather(self, tensor: torch.Tensor, dtype: torch.dtype, first_only: bool = False) -> torch.Tensor:
        """(T, heads, d) to the entries (E, d) or, of each text's first token, (N * heads, d), of a type."""
        return tensor.flatten(0, 1).index_select(0, self.firsts if first_only else self.sources).to(dtype)

    def scatter(self, entries: torch.Tensor, like: torch.Tensor, first_only: bool = False) -> torch.Tensor:
        """The reverse of `gather`, in the shape and type of `like`; zero where no entry goes."""
        if not first_only:
            return entries.index_select(0, self.places).to(like.dtype).view(like.shape)
        rows = like.new_zeros(like.shape).flatten(0, 1)
        return rows.index_copy_(0, self.firsts, entries.to(like.dtype)).view(like.shape)

    def entries(self, joined: torch.Tensor, first_only: bool = False) -> list[torch.Tensor]:
        """What `gather` gave as (n * heads, L or 1, d) a bucket, in the same memory."""
        shapes = [(b.shape[0] * b.shape[1], 1 if first_only else b.shape[2], joined.shape[1]) for b in self.buckets]
        return _divided(joined, shapes)

    def count_scores(self, first_only: bool) -> int:
        """How many pairs there are of an entry that asks and one that answers."""
        return sum(math.prod(b.shape) * (1 if first_only else b.shape[2]) for b in self.buckets)

    def scores(self, joined: torch.Tensor, first_only: bool) -> list[torch.Tensor]:
        """All scores, a vector, as (n * heads, L or 1, L) a bucket, in the same memory."""
        shapes = [(b.shape[0] * b.shape[1], 1 if first_only else b.shape[2], b.shape[2]) for b in self.buckets]
        return _divided(joined, shapes)


def _divided(joined: torch.Tensor, shapes: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
    """A contiguous tensor's memory as tensors of these shapes, one behind the other."""
    # In one call each: slicing and giving it a shape are two, and there are hundreds in a step.
    views, start = [], joined.storage_offset()
    for shape in shapes:
        count, rows, columns = shape
        views.append(joined.as_strided(shape, (rows * columns, columns, 1), start))
        start += count * rows * columns
    return views


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
        return Boundaries(
            self.groups, send(self.starts, device), send(self.cumulative, device), self.longest, self.tokens
        )


def make_layout(runs: Sequence[tuple[int, int, int]], heads: int) -> Layout:
    """Join neighbouring runs (start token, n texts, length L) where that saves more calls than it adds entries.

    The best division into consecutive buckets, by dynamic programming over the runs.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(runs) + 1):
        texts, longest, found = 0, _NARROWEST, (float("inf"), 0)
        for begin in range(end - 1, -1, -1):
            texts += runs[begin][1]
            longest = max(longest, runs[begin][2])
            seconds = best[begin][0] + _CALLS + heads * texts * longest * (_ENTRY + _SCORE * longest)
            found = min(found, (seconds, begin))
        best.append(found)
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
        along = np.arange(max(_NARROWEST, int(lengths.max())))
        n, longest = len(starts), len(along)
        there = np.broadcast_to((along < lengths[:, None])[:, None], (n, heads, longest))
        rows = (starts[:, None, None] + along) * heads + np.arange(heads)[:, None]
        places[rows[there]] = entries + np.flatnonzero(there)
        filling = None if there.all() else torch.from_numpy(np.where(there[:, :1, None], 0, np.float32(_HIDDEN)))
        buckets.append(Bucket((n, heads, longest), filling))
        sources.append(np.where(there, rows, 0).ravel())
        real.append(there.ravel())
        firsts.append(rows[:, :, 0].ravel())
        entries += there.size
    filled = any(bucket.filling is not None for bucket in buckets)
    return Layout(
        tuple(buckets),
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(places),
        torch.from_numpy(np.concatenate(real).astype(np.float32))[:, None] if filled else None,
        torch.from_numpy(np.concatenate(firsts)),
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: Layout,
    *,
    scale: float,
    dropout: float,
    reach: int,
    first_only: bool = False,
) -> torch.Tensor:
    """Attention (T, heads, d) of each token to those of its own text, at a distance of at most `reach` (-1: any).

    With `first_only` of each text's first token alone; the others' rows are zero.
    """
    with torch.autocast(q.device.type, enabled=False):
        attended: torch.Tensor = _Attend.apply(q, k, v, layout, scale, dropout, reach, first_only)
    return attended


def _multiply(into: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    """Batched a @ b, scaled within the product: (N, i, j), (N, j, k) to (N, i, k). Computed in `dtype`."""
    if into.dtype == dtype:
        into.baddbmm_(a.to(dtype), b.to(dtype), beta=0, alpha=scale)
    else:
        into.copy_(torch.baddbmm(a.new_empty((), dtype=dtype), a.to(dtype), b.to(dtype), beta=0, alpha=scale))


class _Attend(torch.autograd.Function):
    """Softmax attention with dropout (Vaswani et al., 2017, section 3.2.1), bucket by bucket; softmax in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: Layout,
        scale: float,
        dropout: float,
        reach: int,
        first_only: bool,
    ) -> torch.Tensor:
        """Keeps the entries' queries, keys, values and probabilities, and which of them dropout kept."""
        dtype = layout.product_type(q.dtype)
        queries, keys, values = layout.gather(q, dtype, first_only), layout.gather(k, dtype), layout.gather(v, dtype)
        scores = q.new_empty(layout.count_scores(first_only), dtype=torch.promote_types(q.dtype, torch.float32))
        probabilities, out = torch.empty_like(scores), torch.empty_like(queries)
        asking, answering = layout.entries(queries, first_only), layout.entries(keys)
        score, probability = layout.scores(scores, first_only), layout.scores(probabilities, first_only)
        for i, bucket in enumerate(layout.buckets):
            _multiply(score[i], asking[i], answering[i].mT, bucket.product_type(q.dtype), scale)
            hidden = bucket.hidden(reach, first_only)
            if hidden is not None:
                score[i].unflatten(0, bucket.shape[:2]).add_(hidden)
            torch.softmax(score[i], -1, out=probability[i])
        mask, dropped = scores.new_empty(0), probabilities
        if dropout:
            mask = kept(scores.shape, dropout, scores.dtype)
            dropped = torch.mul(probabilities, mask, out=scores)
        share, value, into = layout.scores(dropped, first_only), layout.entries(values), layout.entries(out, first_only)
        for i, bucket in enumerate(layout.buckets):
            _multiply(into[i], share[i], value[i], bucket.product_type(q.dtype))
        ctx.save_for_backward(queries, keys, values, probabilities, mask)
        ctx.rest = (layout, scale, first_only)
        return layout.scatter(out, q, first_only)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        queries, keys, values, probabilities, mask = ctx.saved_tensors
        layout, scale, first_only = ctx.rest
        (grad,) = grads
        grads_out = layout.gather(grad, queries.dtype, first_only)
        if layout.real is not None and not first_only:
            grads_out.mul_(layout.real)
        dropped = probabilities * mask if len(mask) else probabilities
        found = [torch.empty_like(x) for x in (queries, keys, values)]
        q, dq, own = (layout.entries(x, first_only) for x in (queries, found[0], grads_out))
        k, dk, v, dv = (layout.entries(x) for x in (keys, found[1], values, found[2]))
        probability, share = (layout.scores(x, first_only) for x in (probabilities, dropped))
        through = layout.scores(torch.empty_like(probabilities), first_only)
        keep = layout.scores(mask, first_only) if len(mask) else []
        for i, bucket in enumerate(layout.buckets):
            dtype = bucket.product_type(grad.dtype)
            _multiply(dv[i], share[i].mT, own[i], dtype)
            _multiply(through[i], own[i], v[i].mT, dtype)
            if keep:
                through[i].mul_(keep[i])
            score = torch.ops.aten._softmax_backward_data(through[i], probability[i], -1, through[i].dtype).to(dtype)
            _multiply(dq[i], score, k[i], dtype, scale)
            _multiply(dk[i], score.mT, q[i], dtype, scale)
        scattered = layout.scatter(found[0], grad, first_only), *(layout.scatter(x, grad) for x in found[1:])
        return *scattered, None, None, None, None, None

"""Attention within the texts of a packed row, for training on CPUs: one autograd node a layer instead of hundreds.

torch's `scaled_dot_product_attention` has no fused CPU kernel with dropout: it takes apart into a dozen operations for
every group of texts of one length, and autograd keeps a node for each. Here texts of like length share one batched
product, padded to the longest of them; a few score entries more cost less than another dozen calls. Nothing but these
scores is ever padded.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Seconds of one bucket's calls, and of one score entry, forward and backward together (2-core CPU; the ratio matters).
_CALLS = 1.5e-4
_ENTRY = 6e-9


@dataclass(frozen=True)
class Bucket:
    """Texts that share a batched product: `places` (n, L) are their tokens in the packed row.

    `real` (n, L) tells tokens from filling, which points at the row's first token; None where nothing is filled.
    """

    places: torch.Tensor
    real: torch.Tensor | None


def make_buckets(runs: Sequence[tuple[int, int, int]], heads: int) -> list[Bucket]:
    """Join neighbouring runs (start token, n texts, length L) where that saves more calls than it adds entries.

    The best division into consecutive buckets, by dynamic programming over the runs.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(runs) + 1):
        texts, longest, found = 0, 0, (float("inf"), 0)
        for begin in range(end - 1, -1, -1):
            texts += runs[begin][1]
            longest = max(longest, runs[begin][2])
            seconds = best[begin][0] + _CALLS + _ENTRY * heads * texts * longest * longest
            found = min(found, (seconds, begin))
        best.append(found)
    cuts = [len(runs)]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return [_bucket(runs[begin:end]) for end, begin in itertools.pairwise(cuts)]


def _bucket(runs: Sequence[tuple[int, int, int]]) -> Bucket:
    starts = torch.cat([start + length * torch.arange(count) for start, count, length in runs])
    lengths = torch.cat([torch.full((count,), length) for _, count, length in runs])
    along = torch.arange(int(lengths.max()))
    real = along[None, :] < lengths[:, None]
    places = torch.where(real, starts[:, None] + along[None, :], 0)
    return Bucket(places, None if bool(real.all()) else real)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    buckets: Sequence[Bucket],
    *,
    scale: float,
    dropout: float,
    reach: int,
) -> torch.Tensor:
    """Attention (T, heads, d) of each token to those of its own text, at a distance of at most `reach` (-1: any)."""
    with torch.autocast(q.device.type, enabled=False):
        attended: torch.Tensor = _Attend.apply(q, k, v, buckets, scale, dropout, reach)
    return attended


def _gather(tensor: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """(T, heads, d) to (n, heads, L, d)."""
    n, longest = bucket.places.shape
    return tensor.index_select(0, bucket.places.flatten()).unflatten(0, (n, longest)).transpose(1, 2).contiguous()


def _scatter(into: torch.Tensor, bucket: Bucket, values: torch.Tensor) -> None:
    """(n, heads, L, d) back to their tokens' places in (T, heads, d)."""
    flat = values.transpose(1, 2).flatten(0, 1)
    places = bucket.places.flatten()
    if bucket.real is not None:
        chosen = bucket.real.flatten().nonzero().squeeze(1)
        flat, places = flat.index_select(0, chosen), places.index_select(0, chosen)
    into.index_copy_(0, places, flat)


def _hidden(bucket: Bucket, reach: int) -> torch.Tensor | None:
    """Entries (n or 1, 1, L or 1, L) that a token may not see: filling, and what lies beyond its reach."""
    longest = bucket.places.shape[1]
    hidden = None if bucket.real is None else ~bucket.real[:, None, None, :]
    if 0 <= reach < longest - 1:
        along = torch.arange(longest)
        far = ((along[:, None] - along[None, :]).abs() > reach)[None, None]
        hidden = far if hidden is None else hidden | far
    return hidden


class _Attend(torch.autograd.Function):
    """Softmax attention with dropout (Vaswani et al., 2017, section 3.2.1), bucket by bucket; softmax in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        buckets: Sequence[Bucket],
        scale: float,
        dropout: float,
        reach: int,
    ) -> torch.Tensor:
        """Keeps q, k, v and each bucket's probabilities, and which of them dropout kept."""
        out, wide = torch.empty_like(q), torch.promote_types(q.dtype, torch.float32)
        saved: list[torch.Tensor] = []
        for bucket in buckets:
            scores = torch.matmul(_gather(q, bucket), _gather(k, bucket).transpose(-1, -2)).to(wide) * scale
            hidden = _hidden(bucket, reach)
            if hidden is not None:
                scores.masked_fill_(hidden, float("-inf"))
            probabilities = torch.softmax(scores, dim=-1)
            if hidden is not None and reach >= 0:  # filling that sees no token at all
                probabilities.nan_to_num_(0.0)
            dropped, kept = probabilities, scores.new_empty(0)
            if dropout:
                kept = (torch.rand_like(scores) >= dropout).to(wide).mul_(1.0 / (1.0 - dropout))
                dropped = probabilities * kept
            _scatter(out, bucket, torch.matmul(dropped.to(v.dtype), _gather(v, bucket)))
            saved += [probabilities, kept]
        ctx.save_for_backward(q, k, v, *saved)
        ctx.rest = (buckets, scale, dropout)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        q, k, v, *saved = ctx.saved_tensors
        buckets, scale, dropout = ctx.rest
        grad = grads[0]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for number, bucket in enumerate(buckets):
            probabilities, kept = saved[2 * number], saved[2 * number + 1]
            own = _gather(grad, bucket)
            if bucket.real is not None:
                own.mul_(bucket.real[:, None, :, None])
            dropped = (probabilities * kept if dropout else probabilities).to(v.dtype)
            _scatter(dv, bucket, torch.matmul(dropped.transpose(-1, -2), own))
            through = torch.matmul(own, _gather(v, bucket).transpose(-1, -2)).to(probabilities.dtype)
            if dropout:
                through.mul_(kept)
            through.sub_((through * probabilities).sum(dim=-1, keepdim=True)).mul_(probabilities).mul_(scale)
            scores = through.to(q.dtype)
            _scatter(dq, bucket, torch.matmul(scores, _gather(k, bucket)))
            _scatter(dk, bucket, torch.matmul(scores.transpose(-1, -2), _gather(q, bucket)))
        return dq, dk, dv, None, None, None, None

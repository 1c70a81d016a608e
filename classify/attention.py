"""Attention within the texts of a packed row, for training on CPUs: one autograd node a layer instead of hundreds.

torch's `scaled_dot_product_attention` has no fused CPU kernel with dropout: it takes apart into a dozen operations for
every group of texts of one length, and autograd keeps a node for each. Here texts of like length share one batched
product, padded to the longest of them; a few score entries more cost less than another dozen calls. Nothing but these
scores is ever padded.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from classify.dropout import kept
from classify.transfer import send

# Seconds of one bucket's calls, and of one score entry, forward and backward together (2-core CPU; the ratio matters).
_CALLS = 1.5e-4
_ENTRY = 6e-9
# Up to this length of texts, products in fp32 whatever the type of q, k and v: oneDNN, which computes those in bf16,
# makes code for each shape it has not met, and nearly every step brings new ones; that takes longer than the products.
_SHORT = 64


@dataclass(frozen=True)
class Bucket:
    """n texts that share a batched product, padded to the longest of them, of L tokens.

    `shape` is (n, heads, L). `sources` are its entries' rows in (T * heads, d), where filling reads the first row, and
    `targets` the rows they go back to, where filling goes to one row more. `real` (n, 1, L, 1) tells tokens from
    filling; None where nothing is filled. `first` holds each text's first token alone: who looks, where the other
    tokens' outputs are not needed.
    """

    shape: tuple[int, int, int]
    sources: torch.Tensor
    targets: torch.Tensor
    real: torch.Tensor | None
    first: Bucket | None = None

    def gather(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(T, heads, d) to (n * heads, L, d) of a type."""
        n, heads, longest = self.shape
        return tensor.flatten(0, 1).index_select(0, self.sources).view(n * heads, longest, -1).to(dtype)

    def scatter(self, into: torch.Tensor, values: torch.Tensor) -> None:
        """(n * heads, L, d) back to their places in (T * heads + 1, d), of whatever type."""
        into.index_copy_(0, self.targets, values.flatten(0, 1).to(into.dtype))


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
    _buckets: dict[int, list[Bucket]] = field(default_factory=dict, compare=False, repr=False)

    def buckets(self, heads: int) -> list[Bucket]:
        """How the texts are joined for training on a CPU; the same for all layers."""
        if heads not in self._buckets:
            self._buckets[heads] = make_buckets(self.groups, heads)
        return self._buckets[heads]

    def to(self, device: torch.device | str) -> Boundaries:
        """The same boundaries with their tensors on `device`; these themselves where they are there."""
        device = torch.device(device)  # Accelerate's hooks give a string
        if device == self.starts.device:
            return self
        return Boundaries(
            self.groups, send(self.starts, device), send(self.cumulative, device), self.longest, self.tokens
        )


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
    tokens = sum(count * length for _, count, length in runs)
    cuts = [len(runs)]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return [_bucket(runs[begin:end], heads, tokens) for end, begin in itertools.pairwise(cuts)]


def _bucket(runs: Sequence[tuple[int, int, int]], heads: int, tokens: int) -> Bucket:
    starts = torch.cat([start + length * torch.arange(count) for start, count, length in runs])
    lengths = torch.cat([torch.full((count,), length) for _, count, length in runs])
    along = torch.arange(int(lengths.max()))
    real = along[None, :] < lengths[:, None]
    head = torch.arange(heads)[None, :, None]
    rows = (starts[:, None] + along[None, :])[:, None, :] * heads + head
    firsts = rows[:, :, 0].flatten()
    first = Bucket((len(starts), heads, 1), firsts, firsts, None)
    shape = (len(starts), heads, len(along))
    if bool(real.all()):
        return Bucket(shape, rows.flatten(), rows.flatten(), None, first)
    among = real[:, None, :]
    sources, targets = torch.where(among, rows, 0), torch.where(among, rows, tokens * heads)
    return Bucket(shape, sources.flatten(), targets.flatten(), among[..., None], first)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    buckets: Sequence[Bucket],
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
        attended: torch.Tensor = _Attend.apply(q, k, v, buckets, scale, dropout, reach, first_only)
    return attended


def _hidden(bucket: Bucket, reach: int, first_only: bool) -> torch.Tensor | None:
    """Entries (n or 1, 1, L or 1, L) that a token may not see: filling, and what lies beyond its reach."""
    longest = bucket.shape[2]
    hidden = None if bucket.real is None else ~bucket.real.transpose(-1, -2)
    if 0 <= reach < longest - 1:
        along = torch.arange(longest)
        queries = along[:1] if first_only else along
        far = ((queries[:, None] - along[None, :]).abs() > reach)[None, None]
        hidden = far if hidden is None else hidden | far
    return hidden


def _rows_like(tensor: torch.Tensor, zero: bool = False) -> torch.Tensor:
    """(T * heads + 1, d) for a tensor (T, heads, d): a row an entry, and one that takes the filling."""
    shape = (tensor.shape[0] * tensor.shape[1] + 1, tensor.shape[2])
    return tensor.new_zeros(shape) if zero else tensor.new_empty(shape)


def _product(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Batched a @ b, scaled within the product: (N, i, j), (N, j, k) to (N, i, k)."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)


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
        first_only: bool,
    ) -> torch.Tensor:
        """Keeps each bucket's queries, keys, values and probabilities, and which of them dropout kept."""
        out = _rows_like(q, zero=first_only)
        wide = torch.promote_types(q.dtype, torch.float32)
        saved: list[torch.Tensor] = []
        for bucket in buckets:
            looking = bucket.first if first_only and bucket.first is not None else bucket
            dtype = wide if bucket.shape[2] <= _SHORT else q.dtype
            queries, keys, values = looking.gather(q, dtype), bucket.gather(k, dtype), bucket.gather(v, dtype)
            scores = _product(queries, keys.transpose(-1, -2), scale).to(wide)
            hidden = _hidden(bucket, reach, first_only)
            if hidden is not None:
                scores.unflatten(0, bucket.shape[:2]).masked_fill_(hidden, float("-inf"))
            probabilities = torch.softmax(scores, dim=-1)
            if hidden is not None and reach >= 0:  # filling that sees no token at all
                probabilities.nan_to_num_(0.0)
            dropped, mask = probabilities, scores.new_empty(0)
            if dropout:
                mask = kept(scores.shape, dropout, wide)
                dropped = probabilities * mask
            looking.scatter(out, _product(dropped.to(dtype), values))
            saved += [queries, keys, values, probabilities, mask]
        ctx.save_for_backward(*saved)
        ctx.rest = (buckets, scale, dropout, first_only, q.shape)
        return out[:-1].view(q.shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        saved = ctx.saved_tensors
        buckets, scale, dropout, first_only, shape = ctx.rest
        grad = grads[0].contiguous()
        dq, dk, dv = _rows_like(grad, zero=first_only), _rows_like(grad), _rows_like(grad)
        for number, bucket in enumerate(buckets):
            queries, keys, values, probabilities, mask = saved[5 * number : 5 * number + 5]
            looking = bucket.first if first_only and bucket.first is not None else bucket
            own = looking.gather(grad, queries.dtype)
            if looking.real is not None:
                own.unflatten(0, bucket.shape[:2]).mul_(looking.real)
            dropped = (probabilities * mask if dropout else probabilities).to(values.dtype)
            bucket.scatter(dv, _product(dropped.transpose(-1, -2), own))
            through = _product(own, values.transpose(-1, -2)).to(probabilities.dtype)
            if dropout:
                through.mul_(mask)
            through = torch.ops.aten._softmax_backward_data(through, probabilities, -1, probabilities.dtype)
            scores = through.to(queries.dtype)
            looking.scatter(dq, _product(scores, keys, scale))
            bucket.scatter(dk, _product(scores.transpose(-1, -2), queries, scale))
        return *(d[:-1].view(shape) for d in (dq, dk, dv)), None, None, None, None, None

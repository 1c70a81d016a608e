"""Attention of packed texts in training on a CPU, with few calls over tensors that fit the caches.

torch's kernel needs a call for each length; a step of 32 short texts has a dozen lengths. Here each call computes a
whole group of texts (see `classify.modeling.layout`), in the forward and the backward pass.

A long text is computed in blocks of queries, whose scores the backward pass recomputes (Dao et al., 2022,
"FlashAttention", section 3.1). So memory is linear in the length, and with a `window` time is, too. torch's kernel for
CPUs does the same, but not with dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from classify.modeling.kernels.base import AttentionArgs, AttentionKernel
from classify.modeling.kernels.dropout import draw_mask
from classify.modeling.layout import Block, Boundaries, BucketGroup, Layout


class CPUAttention(AttentionKernel):
    """Attention in training on a CPU."""

    name = "attention"

    def applies(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
    ) -> torch.Tensor | None:
        """Compute attention (T, heads, d); None without gradients, and on other devices."""
        if q.device.type != "cpu" or not q.requires_grad:
            return None
        scale = q.shape[-1] ** -0.5 if args.scale is None else args.scale
        layout = boundaries.layout(q.shape[1])
        return attend(q, k, v, layout, scale=scale, dropout=args.dropout, window=args.window, cls_only=args.cls_only)


@dataclass(frozen=True)
class _Case:
    """Arguments of attention: `dtype` is that of q, k and v; the others as in `attend`."""

    dtype: torch.dtype
    scale: float
    dropout: float
    window: int
    cls_only: bool

    @property
    def wide(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: Layout,
    *,
    scale: float,
    dropout: float,
    window: int,
    cls_only: bool = False,
) -> torch.Tensor:
    """Compute attention (T, heads, d) within each text, at a distance of at most `window` (-1: any).

    With `cls_only` only for first tokens; the other rows are zero.
    """
    with torch.autocast(q.device.type, enabled=False):
        attended: torch.Tensor = _Attend.apply(q, k, v, layout, _Case(q.dtype, scale, dropout, window, cls_only))
    return attended


def _multiply(
    into: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, scale: float, *, add: bool = False
) -> None:
    """Write scale * a @ b, computed in `dtype`, to `into`, or add it: (N, i, j), (N, j, k) to (N, i, k)."""
    if into.dtype == dtype:
        into.baddbmm_(a.to(dtype), b.to(dtype), beta=int(add), alpha=scale)
        return
    product = torch.baddbmm(a.new_empty((), dtype=dtype), a.to(dtype), b.to(dtype), beta=0, alpha=scale)
    if add:
        into.add_(product)
    else:
        into.copy_(product)


class _Attend(torch.autograd.Function):
    """Softmax attention with dropout (Vaswani et al., 2017, section 3.2.1), group by group; softmax in float32."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, case: _Case
    ) -> torch.Tensor:
        """Compute attention; save the entries' queries, keys, values and the results of `_forward`."""
        dtype = layout.product_type(q.dtype)
        queries = layout.gather(q, dtype, case.cls_only)
        keys, values = layout.gather(k, dtype), layout.gather(v, dtype)
        out = torch.empty_like(queries)
        results = [
            (_forward_long if group.is_long else _forward)(group, case, queries, keys, values, out)
            for group in layout.bucket_groups
        ]
        ctx.save_for_backward(queries, keys, values, *(tensor for *pair, _ in results for tensor in pair))
        ctx.constants = (layout, case, [factor for *_, factor in results])
        return layout.scatter(out, q, case.cls_only)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Compute gradients of q, k and v."""
        queries, keys, values, *saved = ctx.saved_tensors
        layout, case, factors = ctx.constants
        (grad,) = grads
        grad_out = layout.gather(grad, queries.dtype, case.cls_only)
        if layout.real is not None and not case.cls_only:
            grad_out.mul_(layout.real)
        inputs = (queries, keys, values)
        gradients = [torch.empty_like(x) for x in inputs]
        for group, probabilities, mask, factor in zip(
            layout.bucket_groups, saved[::2], saved[1::2], factors, strict=True
        ):
            if group.is_long:
                _backward_long(group, case, inputs, mask, grad_out, gradients)
            else:
                _backward(group, case, inputs, probabilities, mask, factor, grad_out, gradients)
        scattered = (
            layout.scatter(gradients[0], grad, case.cls_only),
            *(layout.scatter(x, grad) for x in gradients[1:]),
        )
        return *scattered, None, None


def _forward(
    group: BucketGroup, case: _Case, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Write a group's attention to its part of `out`.

    Returns probabilities, dropout mask and scale of kept entries for the backward pass.
    """
    cls_only = case.cls_only
    query, into = group.entries(queries, cls_only), group.entries(out, cls_only)
    key, value = group.entries(keys), group.entries(values)
    scores = queries.new_empty(group.count_scores(cls_only), dtype=case.wide)
    probabilities = torch.empty_like(scores)
    score, probability = group.scores(scores, cls_only), group.scores(probabilities, cls_only)
    for i, bucket in enumerate(group.buckets):
        _multiply(score[i], query[i], key[i].mT, bucket.product_type(case.dtype), case.scale)
        bias = bucket.attn_bias(case.window, bucket.whole(cls_only))
        if bias is not None:
            score[i].unflatten(0, bucket.shape[:2]).add_(bias)
        torch.softmax(score[i], -1, out=probability[i])
    mask, factor, dropped = scores.new_empty(0), 1.0, probabilities
    if case.dropout:
        mask, factor = draw_mask(scores.shape, case.dropout, case.wide)
        dropped = torch.mul(probabilities, mask, out=scores)
    share = group.scores(dropped, cls_only)
    for i, bucket in enumerate(group.buckets):
        _multiply(into[i], share[i], value[i], bucket.product_type(case.dtype), factor)
    stored_type = group.product_type(case.dtype)
    return probabilities.to(stored_type), mask.to(stored_type), factor


def _backward(
    group: BucketGroup,
    case: _Case,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    probabilities: torch.Tensor,
    mask: torch.Tensor,
    factor: float,
    grad_out: torch.Tensor,
    gradients: list[torch.Tensor],
) -> None:
    """Write the gradients of a group to its part of `gradients`, from those of the output, `grad_out`.

    `inputs` and `gradients` are queries, keys and values.
    """
    cls_only = case.cls_only
    (q, dq), grad = (group.entries(x, cls_only) for x in (inputs[0], gradients[0])), group.entries(grad_out, cls_only)
    k, v, dk, dv = (group.entries(x) for x in (*inputs[1:], *gradients[1:]))
    share = group.scores(probabilities * mask if len(mask) else probabilities, cls_only)
    through = torch.empty_like(probabilities, dtype=case.wide)
    score, probability = (group.scores(x, cls_only) for x in (through, probabilities.to(case.wide)))
    for i, bucket in enumerate(group.buckets):
        dtype = bucket.product_type(case.dtype)
        _multiply(dv[i], share[i].mT, grad[i], dtype, factor)
        _multiply(score[i], grad[i], v[i].mT, dtype, factor)
    if len(mask):
        through.mul_(mask.to(case.wide))
    for i, bucket in enumerate(group.buckets):
        dtype = bucket.product_type(case.dtype)
        change = torch.ops.aten._softmax_backward_data(score[i], probability[i], -1, case.wide).to(dtype)
        _multiply(dq[i], change, k[i], dtype, case.scale)
        _multiply(dk[i], change.mT, q[i], dtype, case.scale)


def _forward_long(
    group: BucketGroup, case: _Case, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Write a long text's attention to its part of `out`, block by block.

    Returns, instead of the dropout mask, the seed to redraw it in the backward pass.
    """
    (into,) = group.entries(out, case.cls_only)
    seed = torch.empty(1, dtype=torch.int64).random_()
    (value,) = group.entries(values)
    for block, probability, mask, factor in _blocks(group, case, queries, keys, seed):
        share = probability if mask is None else probability.mul_(mask)
        dtype = group.product_type(case.dtype)
        _multiply(into[:, block.queries], share, value[:, block.keys], dtype, factor)
    return queries.new_empty(0), seed, 1.0


def _blocks(
    group: BucketGroup, case: _Case, queries: torch.Tensor, keys: torch.Tensor, seed: torch.Tensor
) -> Iterator[tuple[Block, torch.Tensor, torch.Tensor | None, float]]:
    """Yield each block of a long text with its probabilities, dropout mask, if any, and scale of kept entries."""
    (bucket,), (all_queries,), (all_keys,) = group.buckets, group.entries(queries, case.cls_only), group.entries(keys)
    generator = torch.Generator().manual_seed(int(seed))
    for block in group.blocks(case.window, case.cls_only):
        query, key = all_queries[:, block.queries], all_keys[:, block.keys]
        scores = query.new_empty((*query.shape[:2], key.shape[1]), dtype=case.wide)
        _multiply(scores, query, key.mT, bucket.product_type(case.dtype), case.scale)
        bias = bucket.attn_bias(case.window, block)
        if bias is not None:
            scores.add_(bias[0])
        mask, factor = None, 1.0
        if case.dropout:
            mask, factor = draw_mask(scores.shape, case.dropout, case.wide, generator)
        yield block, torch.softmax(scores, -1), mask, factor


def _backward_long(
    group: BucketGroup,
    case: _Case,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seed: torch.Tensor,
    grad_out: torch.Tensor,
    gradients: list[torch.Tensor],
) -> None:
    """Do the same as `_backward` for a long text, recomputing its blocks."""
    dtype, cls_only = group.product_type(case.dtype), case.cls_only
    (q,), (dq,), (grad,) = (group.entries(x, cls_only) for x in (inputs[0], gradients[0], grad_out))
    (k,), (v,), (dk,), (dv,) = (group.entries(x) for x in (*inputs[1:], *gradients[1:]))
    key_sum, value_sum = (torch.zeros(x.shape, dtype=case.wide) for x in (k, v))
    for block, probability, mask, factor in _blocks(group, case, inputs[0], inputs[1], seed):
        query, key = block.queries, block.keys
        share = probability if mask is None else probability * mask
        _multiply(value_sum[:, key], share.mT, grad[:, query], dtype, factor, add=True)
        through = torch.empty_like(probability)
        _multiply(through, grad[:, query], v[:, key].mT, dtype, factor)
        if mask is not None:
            through.mul_(mask)
        change = torch.ops.aten._softmax_backward_data(through, probability, -1, case.wide).to(dtype)
        _multiply(dq[:, query], change, k[:, key], dtype, case.scale)
        _multiply(key_sum[:, key], change.mT, q[:, query], dtype, case.scale, add=True)
    dk.copy_(key_sum)
    dv.copy_(value_sum)

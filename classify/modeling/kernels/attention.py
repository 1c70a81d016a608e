"""Attention of packed texts in training on a CPU, with few calls over tensors that fit the caches.

torch's kernel needs a call for each length; a step of 32 short texts has a dozen lengths. Here each call computes a
whole group of texts (see `classify.modeling.layout`), in the forward and the backward pass.

Texts of more than about 512 tokens have too many scores to keep: with one of them in a micro-batch, torch's attention
computes its texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from classify.modeling.kernels.base import AttentionArgs, AttentionKernel
from classify.modeling.kernels.dropout import draw_mask
from classify.modeling.layout import Boundaries, BucketGroup, Layout


class CPUAttention(AttentionKernel):
    """Attention in training on a CPU."""

    name = "attention"

    def applies(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
    ) -> torch.Tensor | None:
        """Compute attention (T, heads, d); None without gradients, for long texts, and on other devices."""
        if q.device.type != "cpu" or not q.requires_grad:
            return None
        scale = q.shape[-1] ** -0.5 if args.scale is None else args.scale
        layout = boundaries.layout(q.shape[1])
        if any(group.is_long for group in layout.bucket_groups):
            return None
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


def _multiply(into: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, scale: float) -> None:
    """Write scale * a @ b, computed in `dtype`, to `into`: (N, i, j), (N, j, k) to (N, i, k)."""
    if into.dtype == dtype:
        into.baddbmm_(a.to(dtype), b.to(dtype), beta=0, alpha=scale)
    else:
        into.copy_(torch.baddbmm(a.new_empty((), dtype=dtype), a.to(dtype), b.to(dtype), beta=0, alpha=scale))


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
        results = [_forward(group, case, queries, keys, values, out) for group in layout.bucket_groups]
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
        bias = bucket.attn_bias(case.window, cls_only)
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

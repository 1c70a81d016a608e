"""Attention within each text of a packed row.

Token-wise layers see one row of T tokens, without padding. Only attention needs the boundaries of texts: a function
registered with transformers' `AttentionInterface` receives them as a keyword. It computes attention in the way of the
device, where there is one (`cpu_attention`, `gpu_attention`), else by torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from classify.modeling import cpu_attention, gpu_attention
from classify.modeling.packing import Boundaries

# Names of attention over packed texts for transformers: in the way of the device, and by torch only.
BY_DEVICE = "classify_packed"
BY_TORCH = "classify_packed_torch"
# By type of device: the name in run.json, and the function, which returns None for what it does not support.
KERNELS = {"cpu": ("attention", cpu_attention.attend), "cuda": ("ragged attention", gpu_attention.attend)}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    boundaries: Boundaries,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    by_device: bool,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention within each text of a packed row.

    query, key, value: (1, heads, T, d). Returns (1, T, heads, d). With a `sliding_window` w a token attends to those at
    a distance of at most w - 1, as in transformers' masks for ModernBERT.
    """
    assert attention_mask is None, "packed texts carry boundaries instead of a mask"
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    window = -1 if sliding_window is None or sliding_window > boundaries.longest else sliding_window - 1
    # `cls_hooks` sets cls_only where the output is needed at each text's first token only.
    cls_only = getattr(module, "cls_only", False)
    if by_device and q.device.type in KERNELS:
        _name, attend = KERNELS[q.device.type]
        attended = attend(q, k, v, boundaries, scale=scale, dropout=dropout, window=window, cls_only=cls_only)
        if attended is not None:
            return attended[None], None
    return _attend_by_length(q, k, v, boundaries, scale, dropout, window, cls_only)[None], None


def _attend_by_length(
    q: Tensor, k: Tensor, v: Tensor, bounds: Boundaries, scale: float, dropout: float, window: int, cls_only: bool
) -> Tensor:
    """Call torch's attention once for neighbouring texts of equal length: (T, heads, d) each."""
    outputs = []
    for start, count, length in bounds.groups:
        stop = start + count * length
        queries, keys, values = (t[start:stop].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v))
        mask = None
        if 0 <= window < length - 1:
            places = torch.arange(length, device=q.device)
            mask = (places[:, None] - places[None, :]).abs() <= window
        if cls_only:
            queries, mask = queries[:, :, :1], None if mask is None else mask[:1]
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if not cls_only:
        return joined
    starts = bounds.starts  # excludes the padding
    return joined.new_zeros(q.shape).index_copy(0, starts, joined[: len(starts)])


AttentionInterface.register(BY_DEVICE, partial(packed_attention, by_device=True))
AttentionInterface.register(BY_TORCH, partial(packed_attention, by_device=False))

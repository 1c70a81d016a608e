"""Attention of packed texts on CUDA in one call per layer.

Flash attention supports ragged texts. In fp32 and on older GPUs, which it does not support, texts are padded for
attention only, and torch's memory-efficient kernel gets a mask.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from classify.modeling.packing import Boundaries

# Padded size per token above which each length gets a separate call instead.
_MOST_PADDING = 4

varlen_attn: Any = None
with contextlib.suppress(ImportError):  # missing in some builds of torch
    from torch.nn.attention.varlen import varlen_attn


def flash_applies(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Whether torch's flash attention over ragged texts can be used: it has no dropout.

    It needs CUDA, half precision, an Ampere or newer GPU, and a supported head size.
    """
    return (
        varlen_attn is not None
        and device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and head_size % 8 == 0
        and head_size <= 256
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, bounds: Boundaries, *, scale: float, dropout: float, window: int, cls_only: bool
) -> Tensor | None:
    """Compute attention (T, heads, d); None without flash attention where there is a window or much padding."""
    if flash_applies(q.device, q.dtype, q.shape[-1]):
        near: dict[str, Any] = {} if window < 0 else {"window_size": (window, window)}
        ends, longest = bounds.cumulative, bounds.longest
        attended: Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scale, **near)
        return attended
    slots = (len(bounds.cumulative) - 1) * bounds.longest
    if window >= 0 or slots > _MOST_PADDING * bounds.tokens:
        return None
    return padded_attention(q, k, v, bounds, scale=scale, dropout=dropout, cls_only=cls_only)


def padded_attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Boundaries, *, scale: float, dropout: float, cls_only: bool
) -> Tensor:
    """Compute attention (T, heads, d) of all texts in one call, padded to the longest and masked; without a window."""
    slots = bounds.slots
    count, longest = len(bounds.cumulative) - 1, bounds.longest

    def spread(tensor: Tensor) -> Tensor:
        """Pad (T, heads, d) to (N, heads, L, d) with zeros."""
        filled = tensor.new_zeros((count * longest, *tensor.shape[1:])).index_copy(0, slots, tensor)
        return filled.unflatten(0, (count, longest)).transpose(1, 2)

    # The memory-efficient kernel needs a mask in the dtype of scores. No text is empty, so all rows have a key.
    mask = q.new_full((count * longest,), -torch.inf).index_fill(0, slots, 0.0).view(count, 1, 1, longest)
    query = spread(q)[:, :, :1] if cls_only else spread(q)
    out = scaled_dot_product_attention(query, spread(k), spread(v), attn_mask=mask, dropout_p=dropout, scale=scale)
    if cls_only:
        firsts = bounds.cumulative[:-1].long()
        return q.new_zeros(q.shape).index_copy(0, firsts, out.squeeze(2).to(q.dtype))
    return out.transpose(1, 2).flatten(0, 1).index_select(0, slots)

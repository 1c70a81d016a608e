"""Attention of packed texts on CUDA in one call per layer.

Flash attention supports ragged texts. In fp32 and on older GPUs, which it does not support, texts are padded for
attention only, and torch's memory-efficient kernel gets a mask.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from classify.modeling.kernels.base import AttentionArgs, AttentionKernel
from classify.modeling.layout import Boundaries

# Padded size per token above which each length gets a separate call instead.
_MOST_PADDING = 4

varlen_attn: Any = None
with contextlib.suppress(ImportError):  # missing in some builds of torch
    from torch.nn.attention.varlen import varlen_attn


class RaggedAttention(AttentionKernel):
    """Flash attention where torch supports it, else one masked call over padded texts."""

    name = "ragged attention"

    def applies(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def loses_dropout(self, device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
        """True if flash attention is used: it has no dropout over ragged texts."""
        return flash_applies(device, dtype, head_size)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
    ) -> torch.Tensor | None:
        """Compute attention (T, heads, d); None on other devices and, without flash, for windows or much padding."""
        if flash_applies(q.device, q.dtype, q.shape[-1]):
            window: dict[str, Any] = {} if args.window < 0 else {"window_size": (args.window, args.window)}
            ends, longest = boundaries.cumulative, boundaries.longest
            attended: torch.Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, scale=args.scale, **window)
            return attended
        slots = (len(boundaries.cumulative) - 1) * boundaries.longest
        if q.device.type != "cuda" or args.window >= 0 or slots > _MOST_PADDING * boundaries.tokens:
            return None
        return padded_attention(q, k, v, boundaries, args)


def flash_applies(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Whether torch's flash attention over ragged texts can be used.

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


def padded_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
) -> torch.Tensor:
    """Compute attention (T, heads, d) of all texts in one call, padded to the longest and masked; without a window."""
    slots = boundaries.slots
    count, longest = len(boundaries.cumulative) - 1, boundaries.longest

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        """Pad (T, heads, d) to (N, heads, L, d) with zeros."""
        filled = tensor.new_zeros((count * longest, *tensor.shape[1:])).index_copy(0, slots, tensor)
        return filled.unflatten(0, (count, longest)).transpose(1, 2)

    # The memory-efficient kernel needs a mask in the dtype of scores. No text is empty, so all rows have a key.
    mask = q.new_full((count * longest,), -torch.inf).index_fill(0, slots, 0.0).view(count, 1, 1, longest)
    query = spread(q)[:, :, :1] if args.cls_only else spread(q)
    out = scaled_dot_product_attention(
        query, spread(k), spread(v), attn_mask=mask, dropout_p=args.dropout, scale=args.scale
    )
    if args.cls_only:
        firsts = boundaries.cumulative[:-1].long()
        return q.new_zeros(q.shape).index_copy(0, firsts, out.squeeze(2).to(q.dtype))
    return out.transpose(1, 2).flatten(0, 1).index_select(0, slots)

"""Attention of packed texts on CUDA: one call a layer, whatever the texts' lengths."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from classify.modeling.kernels.base import Asked, AttentionKernel
from classify.modeling.layout import Boundaries

varlen_attn: Any = None
with contextlib.suppress(ImportError):  # flash attention over ragged texts, which some builds of torch lack
    from torch.nn.attention.varlen import varlen_attn


class RaggedAttention(AttentionKernel):
    """Flash attention where torch has code for it, else its memory-efficient attention over nested tensors."""

    name = "ragged attention"

    def applies(self, device: torch.device) -> bool:
        """On CUDA, whose kernels both are."""
        return device.type == "cuda"

    def loses_dropout(self, device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
        """Flash attention over ragged texts knows no dropout."""
        return flash_applies(device, dtype, head_size)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, asked: Asked
    ) -> torch.Tensor | None:
        """Attention (T, heads, d); None on other devices, and in a window where flash attention has no code."""
        if flash_applies(q.device, q.dtype, q.shape[-1]):
            window: dict[str, Any] = {} if asked.reach < 0 else {"window_size": (asked.reach, asked.reach)}
            ends, longest = boundaries.cumulative, boundaries.longest
            attended: torch.Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, scale=asked.scale, **window)
            return attended
        return nested(q, k, v, boundaries, asked) if q.device.type == "cuda" and asked.reach < 0 else None


def flash_applies(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Whether torch's flash attention over ragged texts can be used.

    It needs CUDA, half precision, a GPU of the Ampere generation or newer, and a head size it has code for.
    """
    return (
        varlen_attn is not None
        and device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and head_size % 8 == 0
        and head_size <= 256
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def nested(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, asked: Asked) -> torch.Tensor:
    """Attention (T, heads, d) by torch's nested tensors, with dropout; a window is not known there."""
    queries, keys, values = (
        torch.nested.nested_tensor_from_jagged(
            tensor, boundaries.offsets, min_seqlen=boundaries.shortest, max_seqlen=boundaries.longest
        ).transpose(1, 2)
        for tensor in (q, k, v)
    )
    attended = scaled_dot_product_attention(queries, keys, values, dropout_p=asked.dropout, scale=asked.scale)
    joined: torch.Tensor = attended.transpose(1, 2).values()
    return joined

"""The packed forward: texts of a step end to end through a stock transformers model, no padding computed.

Every layer that works token by token sees one row of T tokens. Attention alone must know where texts begin and end:
a function registered with transformers' `AttentionInterface` receives the boundaries as an extra keyword.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from classify.data.tokenize import Tokens
from classify.modeling.first_tokens import cls_only, install_cls_hooks, packed_batch
from classify.modeling.kernels.base import AttentionArgs, AttentionKernel
from classify.modeling.kernels.registry import ATTENTION
from classify.modeling.layout import Boundaries, send
from classify.modeling.precision import FP32, Masters, restore_fp32

# Attention of packed texts: by kernels where one applies, and by torch's own alone.
_BY_KERNELS, _BY_TORCH = "classify_packed", "classify_packed_torch"


@dataclass(frozen=True)
class PackedBatch:
    """N texts end to end: ids and positions (1, T), and the boundaries."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    boundaries: Boundaries

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on `device`."""
        return PackedBatch(send(self.input_ids, device), send(self.position_ids, device), self.boundaries.to(device))

    def inputs(self) -> dict[str, Any]:
        """Keywords of the model's forward."""
        return {"input_ids": self.input_ids, "position_ids": self.position_ids, "boundaries": self.boundaries}


@dataclass(frozen=True)
class PaddedBatch:
    """N texts as (N, L) ids and mask, for architectures that cannot be packed."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor

    def to(self, device: torch.device) -> PaddedBatch:
        """The same batch on `device`."""
        return PaddedBatch(send(self.input_ids, device), send(self.attention_mask, device))

    def inputs(self) -> dict[str, Any]:
        """Keywords of the model's forward."""
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}


Batch = PackedBatch | PaddedBatch


def pack(tokens: Tokens, rows: npt.NDArray[np.int64], first_position: int) -> PackedBatch:
    """Pack rows in the order given; rows of equal length that stand together share one attention call."""
    flat, lengths = tokens.collate(rows)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(flat)) - np.repeat(starts, lengths) + first_position
    changes = np.flatnonzero(np.diff(lengths)) + 1
    runs = zip(np.concatenate([[0], changes]), np.concatenate([changes, [len(lengths)]]), strict=True)
    groups = tuple((int(starts[a]), int(b - a), int(lengths[a])) for a, b in runs)
    cumulative = np.concatenate([starts, [len(flat)]]).astype(np.int32)
    return PackedBatch(
        torch.from_numpy(flat)[None],
        torch.from_numpy(positions)[None],
        Boundaries(groups, torch.from_numpy(starts), torch.from_numpy(cumulative), int(lengths.max()), len(flat)),
    )


def pad_to_multiple(batch: PackedBatch, tokens: int, longest: int) -> PackedBatch:
    """The batch with one more text at its end, of filling, so that it has so many tokens, the longest text `longest`.

    Its boundaries still name the real texts' first tokens alone, so there are as many logits as before; the others do
    not see the filling and nobody reads it, so gradients are what they were.
    """
    bounds = batch.boundaries
    filling = tokens - bounds.tokens
    return PackedBatch(
        nn.functional.pad(batch.input_ids, (0, filling), value=int(batch.input_ids[0, 0])),
        nn.functional.pad(batch.position_ids, (0, filling), value=int(batch.position_ids[0, 0])),
        Boundaries(
            (*bounds.groups, (bounds.tokens, 1, filling)),
            bounds.starts,
            nn.functional.pad(bounds.cumulative, (0, 1), value=tokens),
            longest,
            tokens,
        ),
    )


def pad(
    tokens: Tokens, rows: npt.NDArray[np.int64], pad_token_id: int, count: int | None = None, length: int | None = None
) -> PaddedBatch:
    """Pad rows on the right to the longest of them, or to `length`; then fill up with empty rows to `count`."""
    flat, lengths = tokens.collate(rows)
    wide = np.concatenate([lengths, np.zeros((count or len(rows)) - len(rows), dtype=lengths.dtype)])
    mask = np.arange(length or int(lengths.max()))[None, :] < wide[:, None]
    ids = np.full(mask.shape, pad_token_id, dtype=np.int64)
    ids[mask] = flat
    mask[len(rows) :, 0] = True  # attention over nothing would be no number
    return PaddedBatch(torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64)))


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    boundaries: Boundaries,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    kernels: Sequence[AttentionKernel] = (),
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within each text of a packed row.

    query, key, value: (1, heads, T, d). Returns (1, T, heads, d). A `sliding_window` w lets a token see those at a
    distance of at most w - 1, as transformers' masks for ModernBERT do. The first of the `kernels` that applies is
    used, torch's own attention where none does.
    """
    assert attention_mask is None, "packed texts carry boundaries instead of a mask"
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    reach = -1 if sliding_window is None or sliding_window > boundaries.longest else sliding_window - 1
    asked = AttentionArgs(scaling, dropout, reach, cls_only(module))
    for kernel in kernels:
        attended = kernel.attend(q, k, v, boundaries, asked)
        if attended is not None:
            return attended[None], None
    return _text_by_text(q, k, v, boundaries, asked)[None], None


def _text_by_text(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, asked: AttentionArgs
) -> torch.Tensor:
    """torch's attention, one call for texts of equal length: (T, heads, d) each."""
    outputs = []
    for start, count, length in boundaries.groups:
        stop = start + count * length
        one, two, three = (t[start:stop].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v))
        mask = _band(length, asked.reach, q.device) if 0 <= asked.reach < length - 1 else None
        if asked.first_only:
            one, mask = one[:, :, :1], None if mask is None else mask[:1]
        out = scaled_dot_product_attention(one, two, three, attn_mask=mask, dropout_p=asked.dropout, scale=asked.scale)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if not asked.first_only:
        return joined
    starts = boundaries.starts  # none for the filling
    return joined.new_zeros(q.shape).index_copy(0, starts, joined[: len(starts)])


def _band(length: int, reach: int, device: torch.device) -> torch.Tensor:
    """(length, length) True where two positions lie at most `reach` apart."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place[None, :]).abs() <= reach


AttentionInterface.register(_BY_TORCH, packed_attention)
AttentionInterface.register(_BY_KERNELS, partial(packed_attention, kernels=ATTENTION))


class TextClassifier(nn.Module):
    """A stock `...ForSequenceClassification` that takes packed or padded batches and returns logits (N, classes)."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.precision = FP32
        self.halved = False
        self.packed_attention = _BY_TORCH
        install_cls_hooks(model)

    def attend_by_kernels(self) -> None:
        """Have packed attention ask the kernels before torch's own."""
        self.packed_attention = _BY_KERNELS

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits (N, classes) of the batch's N texts, in its order.

        Autocast is entered here and not by the caller: DataParallel's threads would not inherit its type.
        """
        with contextlib.nullcontext() if self.halved else self.precision.autocast(self.training):
            return self.logits(batch)

    def cast_to_half(self) -> Masters:
        """Compute with half weights from here on, where the precision says so; see `Precision.cast_to_half`."""
        self.halved = self.precision.level > 1
        return self.precision.cast_to_half(self.model)

    def restore_fp32(self, masters: Masters) -> None:
        """All weights in fp32 again; forward passes go through autocast then."""
        if self.halved:
            restore_fp32(self.model, masters)
        self.halved = False

    def logits(self, batch: Batch) -> torch.Tensor:
        """The same in the precision that is in force, whatever the model's own."""
        if not isinstance(batch, PackedBatch):
            return self.model(**batch.inputs(), return_dict=True).logits
        with packed_batch(batch.boundaries):
            return self.model(**batch.inputs(), return_dict=True).logits

"""Packed and padded batches, and attention within each text of a packed row.

Token-wise layers see one row of T tokens, without padding. Only attention needs the boundaries of texts: a function
registered with transformers' `AttentionInterface` receives them as a keyword.
"""

from __future__ import annotations

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

from classify.data.sampler import Rows, batch_by_tokens, split_by_length
from classify.data.tokenize import Collated
from classify.modeling.kernels.base import AttentionArgs, AttentionKernel
from classify.modeling.kernels.registry import ATTENTION
from classify.modeling.layout import Boundaries, send

# Attention over packed texts: by the first kernel that applies, and by torch only.
BY_KERNELS, BY_TORCH = "classify_packed", "classify_packed_torch"
# Most tokens of a batch whose kernels take longer to start than to run.
MOST_ROUNDED = 16_384


@dataclass(frozen=True)
class SequenceRows:
    """The rows that sequences belong to: `index` (sequences,), and how many rows there are."""

    index: torch.Tensor
    count: int

    def to(self, device: torch.device) -> SequenceRows:
        return SequenceRows(send(self.index, device), self.count)

    def mean(self, outputs: torch.Tensor) -> torch.Tensor:
        """(count, width) the mean of each row's outputs (sequences, width), without padding sequences."""
        sums = outputs.new_zeros(self.count + 1, outputs.shape[1]).index_add(0, self.index, outputs)
        sequences = outputs.new_zeros(self.count + 1).index_add(0, self.index, outputs.new_ones(len(self.index)))
        return (sums / sequences.clamp(min=1)[:, None])[: self.count]


@dataclass(frozen=True)
class Batch:
    """N sequences: the tensors of the model's forward by name.

    They are (1, T) end to end within `boundaries`, or (N, L) padded, for architectures that cannot be packed. `rows`
    are given where a row has several sequences.
    """

    tensors: dict[str, torch.Tensor]
    boundaries: Boundaries | None = None
    rows: SequenceRows | None = None

    def to(self, device: torch.device) -> Batch:
        tensors = {name: send(tensor, device) for name, tensor in self.tensors.items()}
        return Batch(tensors, self.boundaries and self.boundaries.to(device), self.rows and self.rows.to(device))


def pack(rows: Collated, first_position: int) -> Batch:
    """Pack sequences in order; neighbouring ones of equal length share one attention call."""
    ids, lengths = rows.ids, rows.lengths
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(ids)) - np.repeat(starts, lengths) + first_position
    changes = np.flatnonzero(np.diff(lengths)) + 1
    runs = zip(np.concatenate([[0], changes]), np.concatenate([changes, [len(lengths)]]), strict=True)
    groups = tuple((int(starts[a]), int(b - a), int(lengths[a])) for a, b in runs)
    cumulative = np.concatenate([starts, [len(ids)]]).astype(np.int32)
    arrays = {"input_ids": ids, "position_ids": positions}
    if rows.types is not None:
        arrays["token_type_ids"] = rows.types
    return Batch(
        {name: torch.from_numpy(array)[None] for name, array in arrays.items()},
        Boundaries(groups, torch.from_numpy(starts), torch.from_numpy(cumulative), int(lengths.max()), len(ids)),
        None if rows.rows is None else SequenceRows(torch.from_numpy(rows.rows), int(rows.rows[-1]) + 1),
    )


def round_tokens(tokens: int) -> int:
    """Round a number of tokens up to one of few, four per power of two; more than `MOST_ROUNDED` stay as they are."""
    if tokens > MOST_ROUNDED:
        return tokens
    step = max(64, (1 << tokens.bit_length()) >> 3)
    return -(-tokens // step) * step


def pad_packed(batch: Batch, tokens: int) -> Batch:
    """Append a sequence of padding to a packed batch, up to a number of tokens.

    `starts` lists the real sequences only, so the number of logits is unchanged. Attention stays within sequences, so
    gradients are unchanged, too.
    """
    bounds = batch.boundaries
    assert bounds is not None, "a packed batch has boundaries"
    padding = tokens - bounds.tokens
    if not padding:
        return batch
    return Batch(
        {
            name: nn.functional.pad(tensor, (0, padding), value=int(tensor[0, 0]))
            for name, tensor in batch.tensors.items()
        },
        Boundaries(
            (*bounds.groups, (bounds.tokens, 1, padding)),
            bounds.starts,
            nn.functional.pad(bounds.cumulative, (0, 1), value=bounds.tokens + padding),
            max(bounds.longest, padding),
            bounds.tokens + padding,
        ),
        batch.rows,
    )


def pad(
    rows: Collated, pad_token_id: int, count: int | None = None, length: int | None = None, num_rows: int | None = None
) -> Batch:
    """Pad sequences on the right to the longest, or to `length`; then add empty ones up to `count`.

    `num_rows` is the number of outputs, with some for empty ones, where rows have several sequences.
    """
    lengths, missing = rows.lengths, (count or len(rows.lengths)) - len(rows.lengths)
    wide = np.concatenate([lengths, np.zeros(missing, dtype=lengths.dtype)])
    mask = np.arange(length or int(lengths.max()))[None, :] < wide[:, None]
    ids = np.full(mask.shape, pad_token_id, dtype=np.int64)
    ids[mask] = rows.ids
    arrays = {"input_ids": ids}
    if rows.types is not None:
        arrays["token_type_ids"] = np.zeros(mask.shape, dtype=np.int64)
        arrays["token_type_ids"][mask] = rows.types
    mask[len(lengths) :, 0] = True  # attention over no token would be NaN
    arrays["attention_mask"] = mask.astype(np.int64)
    several = None
    if rows.rows is not None:
        outputs = num_rows or int(rows.rows[-1]) + 1
        several = SequenceRows(torch.from_numpy(np.pad(rows.rows, (0, missing), constant_values=outputs)), outputs)
    return Batch({name: torch.from_numpy(array) for name, array in arrays.items()}, rows=several)


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
    """Compute attention within each text of a packed row.

    query, key, value: (1, heads, T, d). Returns (1, T, heads, d). With a `sliding_window` w a token attends to those at
    a distance of at most w - 1, as in transformers' masks for ModernBERT. The first of the `kernels` that applies is
    used, else torch's attention.
    """
    assert attention_mask is None, "packed texts carry boundaries instead of a mask"
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    window = -1 if sliding_window is None or sliding_window > boundaries.longest else sliding_window - 1
    # `cls_hooks` sets cls_only where the output is needed at each text's first token only.
    args = AttentionArgs(scaling, dropout, window, getattr(module, "cls_only", False))
    for kernel in kernels:
        attended = kernel.attend(q, k, v, boundaries, args)
        if attended is not None:
            return attended[None], None
    return _attend_by_length(q, k, v, boundaries, args)[None], None


def _attend_by_length(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
) -> torch.Tensor:
    """Call torch's attention once for neighbouring texts of equal length: (T, heads, d) each."""
    outputs = []
    for start, count, length in boundaries.groups:
        stop = start + count * length
        queries, keys, values = (t[start:stop].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v))
        mask = _band(length, args.window, q.device) if 0 <= args.window < length - 1 else None
        if args.cls_only:
            queries, mask = queries[:, :, :1], None if mask is None else mask[:1]
        out = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=args.dropout, scale=args.scale
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if not args.cls_only:
        return joined
    starts = boundaries.starts  # excludes the padding
    return joined.new_zeros(q.shape).index_copy(0, starts, joined[: len(starts)])


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """A mask (length, length), True where two positions are at most `window` apart."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place[None, :]).abs() <= window


class Padding:
    """Padded batches, each as long as its longest text."""

    def batch(self, collated: Collated, pad_token_id: int, rows: int) -> Batch:
        """Pad the sequences of `rows` rows."""
        return pad(collated, pad_token_id)

    def targets(self, targets: npt.NDArray[Any], ignored: float) -> npt.NDArray[Any]:
        """The targets of a batch's rows (n, ...), with `ignored` for rows of padding."""
        return targets

    def divide(self, lengths: Rows, count: int, replicas: int, max_tokens: int | None) -> list[list[Rows]]:
        """Divide texts into `count` micro-batches of similar length, or more of at most about `max_tokens`.

        Each lists the indices of up to `replicas` devices.
        """
        pieces = split_by_length(lengths, count)
        if max_tokens is not None:
            pieces = max(pieces, batch_by_tokens(lengths, max_tokens, padded=True), key=len)
        return [[piece[part] for part in split_by_length(lengths[piece], replicas)] for piece in pieces]


AttentionInterface.register(BY_TORCH, packed_attention)
AttentionInterface.register(BY_KERNELS, partial(packed_attention, kernels=ATTENTION))

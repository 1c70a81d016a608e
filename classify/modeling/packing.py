"""Batches of texts: packed end to end into one row, or padded.

Packed texts have no padding, so none is computed. Architectures that cannot be packed, and devices that compile a
program for each shape, get padded ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from classify.data.sampler import Rows, batch_by_tokens, split_by_length
from classify.data.tokenize import Collated
from classify.launch.devices import Accelerator, accelerator_of

# Architectures, by config.json's model_type, whose packed texts have the logits and gradients of padded ones.
# tests/modeling/test_architectures.py shows it of each; another one is added here and there.
PACKABLE = frozenset(
    {"albert", "bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"}
)  # fmt: skip
# Most tokens of a batch whose kernels take longer to start than to run.
MOST_ROUNDED = 16_384
# Least step between sizes of packed batches that are rounded.
_LEAST_STEP = 64


@dataclass(frozen=True)
class Boundaries:
    """Boundaries of the texts in a packed row of T tokens.

    `groups` are runs of n texts of equal length L: (start token, n, L). `starts` (N,) are the texts' first tokens;
    `cumulative` (N + 1,) int32 is the format of flash attention. Padding is one more text, which `starts` leaves out.
    """

    groups: tuple[tuple[int, int, int], ...]
    starts: Tensor
    cumulative: Tensor
    longest: int
    tokens: int
    _cache: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def slots(self) -> Tensor:
        """Each token's index (T,) among N texts padded to the longest."""
        ends = self.cumulative.long()
        text = torch.repeat_interleave(ends.diff(), output_size=self.tokens)
        return text * self.longest + torch.arange(self.tokens, device=ends.device) - ends[text]

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` returned when it was first called for this key: all layers share it."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def to(self, device: torch.device | str) -> Boundaries:
        """The boundaries with their tensors on `device`, cached."""
        device = torch.device(device)  # Accelerate's hooks give a string
        if device == self.starts.device:
            return self
        if device not in self._cache:
            starts, cumulative = send(self.starts, device), send(self.cumulative, device)
            self._cache[device] = Boundaries(self.groups, starts, cumulative, self.longest, self.tokens)
        moved: Boundaries = self._cache[device]
        return moved


@dataclass(frozen=True)
class SequenceRows:
    """The rows that sequences belong to: `index` (sequences,), and how many rows there are."""

    index: Tensor
    count: int

    def mean(self, outputs: Tensor) -> Tensor:
        """(count, width) the mean of each row's outputs (sequences, width), without padding sequences."""
        sums = outputs.new_zeros(self.count + 1, outputs.shape[1]).index_add(0, self.index, outputs)
        sequences = outputs.new_zeros(self.count + 1).index_add(0, self.index, outputs.new_ones(len(self.index)))
        return (sums / sequences.clamp(min=1)[:, None])[: self.count]


@dataclass(frozen=True)
class Batch:
    """N sequences: the tensors of the model's forward by name.

    They are (1, T) end to end within `boundaries`, or (N, L) padded. `rows` are given where a row has several
    sequences.
    """

    tensors: dict[str, Tensor]
    boundaries: Boundaries | None = None
    rows: SequenceRows | None = None

    def to(self, device: torch.device) -> Batch:
        tensors = {name: send(tensor, device) for name, tensor in self.tensors.items()}
        rows = self.rows and SequenceRows(send(self.rows.index, device), self.rows.count)
        return Batch(tensors, self.boundaries and self.boundaries.to(device), rows)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to `device`; to a GPU from pinned memory, without blocking the host."""
    if accelerator_of(device.type).pins_memory and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


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
    step = max(_LEAST_STEP, (1 << tokens.bit_length()) >> 3)
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
    groups = (*bounds.groups, (bounds.tokens, 1, padding))
    cumulative = pad_tensor(bounds.cumulative, (0, 1), value=tokens)
    return Batch(
        {name: pad_tensor(tensor, (0, padding), value=int(tensor[0, 0])) for name, tensor in batch.tensors.items()},
        Boundaries(groups, bounds.starts, cumulative, max(bounds.longest, padding), tokens),
        batch.rows,
    )


def pad(collated: Collated, pad_token_id: int, rows: int, shapes: Accelerator | None = None) -> Batch:
    """Pad the sequences of `rows` rows on the right to the longest.

    With `shapes` length, sequences and rows are padded to the sizes of that device. An empty sequence attends to one
    token: attention over none would be NaN.
    """
    lengths, longest, count = collated.lengths, int(collated.lengths.max()), len(collated.lengths)
    if shapes is not None:
        longest, count, rows = shapes.padded_length(longest), shapes.padded_rows(count), shapes.padded_rows(rows)
    empty = (0, count - len(lengths))
    mask = np.arange(longest)[None, :] < np.pad(lengths, empty)[:, None]
    ids = np.full(mask.shape, pad_token_id, dtype=np.int64)
    ids[mask] = collated.ids
    arrays = {"input_ids": ids}
    if collated.types is not None:
        arrays["token_type_ids"] = np.zeros(mask.shape, dtype=np.int64)
        arrays["token_type_ids"][mask] = collated.types
    mask[len(lengths) :, 0] = True
    arrays["attention_mask"] = mask.astype(np.int64)
    several = None
    if collated.rows is not None:
        several = SequenceRows(torch.from_numpy(np.pad(collated.rows, empty, constant_values=rows)), rows)
    return Batch({name: torch.from_numpy(array) for name, array in arrays.items()}, rows=several)


def pad_targets(targets: npt.NDArray[Any], ignored: float, shapes: Accelerator | None) -> npt.NDArray[Any]:
    """The targets of a batch's rows (n, ...), with `ignored` for the rows that `pad` adds for `shapes`."""
    if shapes is None:
        return targets
    widths = [(0, shapes.padded_rows(len(targets)) - len(targets)), *[(0, 0)] * (targets.ndim - 1)]
    return np.pad(targets, widths, constant_values=ignored)


def divide_padded(
    lengths: Rows, count: int, replicas: int, max_tokens: int | None, shapes: Accelerator | None
) -> list[list[Rows]]:
    """Divide texts into `count` micro-batches of similar length, or more of at most about `max_tokens`.

    Each lists the indices of up to `replicas` devices. With `shapes` the texts of a micro-batch have one padded length.
    """
    if shapes is not None:
        sizes = np.array([shapes.padded_length(length) for length in lengths.tolist()])
        alike = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return [[cut] for group in alike for cut in np.array_split(group, count) if len(cut)]
    pieces = split_by_length(lengths, count)
    if max_tokens is not None:
        pieces = max(pieces, batch_by_tokens(lengths, max_tokens, padded=True), key=len)
    return [[piece[part] for part in split_by_length(lengths[piece], replicas)] for piece in pieces]

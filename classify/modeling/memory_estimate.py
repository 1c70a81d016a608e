"""Estimate the memory and disk space of training from a model's files alone, without torch."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from classify.errors import InputError
from classify.launch.accelerator import Accelerator

MIB = 1 << 20
# Bytes per trained weight in fp32: weight, gradient, AdamW's two moments.
TRAINED = 16
FROZEN = 4
# Elements of a packed micro-batch's hidden state on a CPU, but no fewer tokens than these. Steps with eight to sixteen
# times as many took up to 1.7 times as long: the backward pass then outgrows the memory that the C library reuses
# between steps. Twice as many take as long (384 wide), and more memory; half of 2,048 tokens cost 5 to 10 % (768 wide).
_STATE, _LEAST_TOKENS = 3 << 18, 2048
# Tokens of a padded micro-batch on a CPU, with padding; texts of similar length share one. Relative to micro-batches of
# 8 rows, a DeBERTa step of 32 texts took 0.8 (long) to 1.06 (short) of the time, with half as many tokens 0.85 to 1.0,
# and with all texts at once 1.2 to 1.6, most of it for padding.
PADDED_TOKENS = 1024
# Share of activations that a layer keeps with checkpointing: little more than its input.
KEPT_INPUT = 1 / 16
# Configuration names, by architecture: hidden size, width inside the feed-forward part, attention heads, layers.
_WIDTH = ("hidden_size", "dim", "d_model")
_INNER = ("intermediate_size", "hidden_dim", "d_ff")
_HEADS = ("num_attention_heads", "n_heads", "n_head")
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer")
# Bytes per weight, gradient, and optimizer state (with the fp32 master weight) under Apex's O2 and O3.
_BYTES_BY_LEVEL = {"O2": (2, 2 + 4, 8 + 4), "O3": (2, 2, 4)}


@dataclass(frozen=True)
class Need:
    """Bytes of a training run on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    def divide(self, by: int, *parts: str) -> Need:
        """Return the need per device if these parts are sharded over `by` devices."""
        return dataclasses.replace(self, **{part: math.ceil(getattr(self, part) / by) for part in parts})

    def describe(self) -> str:
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "AdamW": self.optimizer,
            "activations": self.activations,
        }
        listed = ", ".join(f"{name} {value / MIB:,.0f}" for name, value in parts.items())
        return f"about {self.total / MIB:,.0f} MiB per device ({listed})"


def count_weights(counts: Mapping[str, int], added_layers: int = 0) -> int:
    """Add up parameters by name of the tensor, plus `added_layers` copies of the last layer."""
    layers = {name: int(match[1]) for name in counts if (match := re.search(r"\.(\d+)\.", name)) is not None}
    last = max(layers.values(), default=-1)
    return sum(counts.values()) + added_layers * sum(counts[name] for name, layer in layers.items() if layer == last)


def disk_need(counts: Mapping[str, int], checkpoints: int, added_layers: int = 0) -> tuple[int, int]:
    """Return the bytes that a run writes: the saved model, and model plus `checkpoints`; `counts` as above.

    A checkpoint holds the weights and AdamW's two moments in fp32; the model is saved in fp32, too.
    """
    model = 4 * count_weights(counts, added_layers)
    return model, model + 3 * model * checkpoints


def size_words(size: float) -> str:
    """Format bytes, e.g. "512 kB" or "1.4 GB"."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def limits_tokens(accelerator: Accelerator, *, half_weights: bool, batch_norm: bool) -> bool:
    """Return whether a step on such a device is split into micro-batches of `tokens_at_once`.

    Not with half weights, since each sum of gradients rounds, nor with BatchNorm, whose statistics would depend on
    micro-batches.
    """
    return accelerator.limits_micro_batch_tokens and not half_weights and not batch_norm


def tokens_at_once(width: int, *, packed: bool) -> int:
    """Return the most tokens of a micro-batch, with padding; packed ones by hidden size: 2,048 from 384 on."""
    return max(_LEAST_TOKENS, _STATE // width) if packed else PADDED_TOKENS


def read_hidden_size(config: Mapping[str, Any]) -> int:
    """Return the hidden size of an encoder."""
    return int(_number(config, _WIDTH))


def read_inner_size(config: Mapping[str, Any]) -> int:
    """Return the width inside the feed-forward part of a layer: usually four times the hidden size."""
    return int(_number(config, _INNER, 4 * read_hidden_size(config)))


def layer_count(config: Mapping[str, Any]) -> int | None:
    """Count the encoder layers with separate weights; None if config.json does not say.

    ALBERT's layers share the weights of their group. A single layer counts as 0: it cannot be identified as repeated.
    """
    names = ("num_hidden_groups", *_LAYERS)
    count = next((config[name] for name in names if name in config), None)
    if not isinstance(count, int):
        return None
    return count if count > 1 else 0


def check_frozen(requested: int, layers: int | None) -> None:
    """Raise InputError where more layers are to be frozen than the model has; None: not known yet."""
    if layers is not None and requested > layers:
        raise InputError(f"--freeze-layers {requested}: the model has {layers} layers; give that or less.")


def layer_activations(
    config: Mapping[str, Any], tokens: float, length: float, half: bool, level: str | None = None
) -> float:
    """Return the bytes one layer keeps for the backward pass of `tokens` tokens in texts of `length` tokens.

    Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.1: s b h (34 +
    5 a s / h) in half precision; in fp32 all but the dropout masks takes twice that. Measured, 34 becomes 42 with half
    weights (`level` O2 or O3), since a CPU computes attention of short texts in fp32. Under autocast it becomes 58,
    with residual stream, norms and half-precision copies of the weights.
    """
    wide, heads = read_hidden_size(config), _number(config, _HEADS)
    linear, scores = (42, 5) if level in _BYTES_BY_LEVEL else (58, 5) if half else (66, 9)
    return tokens * wide * (linear + scores * heads * length / wide)


def training_need(
    config: Mapping[str, Any],
    weights: tuple[int, int],
    rows: float,
    length: float,
    *,
    half: bool = False,
    level: str | None = None,
    frozen_layers: int = 0,
    added_layers: int = 0,
    checkpointing: bool = False,
) -> Need:
    """Estimate conservatively the memory of a step of `rows` texts of `length` tokens.

    `weights` counts (trained, frozen) parameters; `half` is autocast in bf16 or fp16; frozen layers keep nothing for
    the backward pass. Vocabulary compaction, which halves a small model, is not included.
    """
    trained, frozen = weights
    weight, gradient, moments = _BYTES_BY_LEVEL.get(level or "", (FROZEN, 4, 8))
    layers = max(0.0, _number(config, _LAYERS) + added_layers - frozen_layers)
    activations = layers * layer_activations(config, rows * length, length, half, level)
    activations *= KEPT_INPUT if checkpointing else 1.0
    return Need(weight * (trained + frozen), gradient * trained, moments * trained, int(activations))


def _number(config: Mapping[str, Any], names: tuple[str, ...], default: float = 1) -> float:
    return float(next((config[name] for name in names if name in config), default))


@dataclass(frozen=True)
class Piece:
    """A part of a model, in forward order, that stays on one device.

    `needs` are its bytes in training; `bytes` its weights alone, which suffice if it can be offloaded: `frozen`, with
    nothing trained below it.
    """

    name: str
    needs: int
    bytes: int
    frozen: bool


def spread(pieces: list[Piece], budgets: Mapping[str, int]) -> tuple[dict[str, str], list[str]] | None:
    """Place pieces on devices within their byte budgets, in order and evenly: ({piece: device}, offloaded pieces).

    Frozen pieces at the bottom are offloaded as needed, first ones first. They are computed on the first device, so
    the largest of them must fit there as well. None if the trained pieces do not fit.
    """
    below = next((number for number, piece in enumerate(pieces) if not piece.frozen), len(pieces))
    for left in range(below + 1):
        room = dict(budgets)
        first = next(iter(room))
        room[first] -= max((piece.bytes for piece in pieces[:left]), default=0)
        placed = _fill(pieces[left:], room)
        if placed is not None:
            return placed, [piece.name for piece in pieces[:left]]
    return None


def _fill(pieces: list[Piece], room: dict[str, int]) -> dict[str, str] | None:
    """Give each device an even share of the remaining pieces, within its room; None if they do not fit."""
    placed: dict[str, str] = {}
    remaining = list(pieces)
    for number, (device, bytes_) in enumerate(room.items()):
        left, later = sum(piece.needs for piece in remaining), sum(list(room.values())[number + 1 :])
        share = max(left / (len(room) - number), left - later)
        used = 0
        while (
            remaining and used + remaining[0].needs <= bytes_ and (used + remaining[0].needs / 2 <= share or later == 0)
        ):
            placed[remaining[0].name] = device
            used += remaining.pop(0).needs
    return None if remaining else placed

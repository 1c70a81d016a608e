"""How much memory and disk training takes, from a model's files alone; no torch is needed to say so."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classify.modeling import safetensors_file

MIB = 1 << 20
# Bytes a trained weight takes in fp32: itself, its gradient, AdamW's two moments.
TRAINED = 16
FROZEN = 4
# Numbers in a hidden state of a micro-batch on a CPU. Steps of two to four times as many took up to 1.7 times as long
# as in micro-batches of that size, and twice the memory: what a backward pass needs then outgrows what the C library
# keeps of one step's memory for the next.
STATE = 3 << 20
# Tokens of a padded micro-batch on a CPU, padding too, where texts of like length share one. A DeBERTa step of 32 texts
# took 0.8 (long) to 1.06 (short) of the time that micro-batches of 8 rows took, with half as many tokens 0.85 to 1.0,
# and with all texts at once 1.2 to 1.6, most of it for padding.
PADDED_TOKENS = 1024
# With checkpointing a layer keeps little more than its input: one of some dozens of such tensors.
KEPT_INPUT = 1 / 16
# What architectures call the width of a layer, its attention heads, and how many layers there are.
_WIDTH = ("hidden_size", "dim", "d_model")
_HEADS = ("num_attention_heads", "n_heads", "n_head")
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer")
# Bytes a weight, its gradient, its moments and its fp32 master take under Apex's levels 2 and 3.
_OF_LEVEL = {"O2": (2, 2 + 4, 8 + 4), "O3": (2, 2, 4)}


@dataclass(frozen=True)
class Need:
    """Bytes of a training run on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def divided(self, by: int, *parts: str) -> Need:
        """What one of `by` devices holds where these parts are cut over them."""
        return dataclasses.replace(self, **{part: math.ceil(getattr(self, part) / by) for part in parts})

    def words(self) -> str:
        """The parts and their sum in MiB."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "AdamW": self.optimizer,
            "activations": self.activations,
        }
        listed = ", ".join(f"{name} {value / MIB:,.0f}" for name, value in parts.items())
        return f"about {self.total / MIB:,.0f} MiB a device ({listed})"


def count_weights(folder: Path, added_layers: int = 0) -> int:
    """Count the parameters in a folder's safetensors files, and those of layers added like its last one."""
    counts = {
        name: math.prod(one["shape"])
        for path in weight_files(folder)
        for name, one in safetensors_file.header(path).items()
    }
    layers = {name: int(match[1]) for name in counts if (match := re.search(r"\.(\d+)\.", name)) is not None}
    last = max(layers.values(), default=-1)
    return sum(counts.values()) + added_layers * sum(counts[name] for name, layer in layers.items() if layer == last)


def disk_need(folder: Path, checkpoints: int, added_layers: int = 0) -> tuple[int, int]:
    """Bytes that a run from the model in `folder` writes: the saved model alone, and with `checkpoints` beside it.

    A checkpoint holds the weights and AdamW's two moments, in fp32; the model is saved in fp32, too.
    """
    model = 4 * count_weights(folder, added_layers)
    return model, model + 3 * model * checkpoints


def size_words(size: float) -> str:
    """Bytes as a person reads them: "512 kB", "1.4 GB"."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def weight_files(folder: Path) -> list[Path]:
    """The files that a model's weights are loaded from."""
    whole = folder / "model.safetensors"
    return [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))


def tokens_at_once(width: int) -> int:
    """Tokens that a micro-batch holds on a CPU, at most, in an encoder of that width: 8,192 at 384."""
    return STATE // width


def width_of(config: Mapping[str, Any]) -> int:
    """Width of an encoder's hidden states."""
    return int(_number(config, _WIDTH))


def layer_count(config: Mapping[str, Any]) -> int | None:
    """How many layers with weights of their own an encoder has; None where its config.json does not say.

    ALBERT's layers share the weights of their group. One layer alone is none that can be told from the rest of a model.
    """
    names = ("num_hidden_groups", *_LAYERS)
    count = next((config[name] for name in names if name in config), None)
    if not isinstance(count, int):
        return None
    return count if count > 1 else 0


def layer_activations(
    config: Mapping[str, Any], tokens: float, length: float, half: bool, level: str | None = None
) -> float:
    """Bytes one layer keeps for the backward pass of `tokens` tokens in texts of `length` tokens.

    Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.1: s b h (34 +
    5 a s / h) in half precision; in fp32 all but the dropout masks takes twice that. Measured it is 42 instead of 34 in
    half weights (`level` O2 or O3), since a CPU computes attention of short texts in fp32, and 58 under autocast, which
    keeps the residual stream, norms and its own copies of the weights besides.
    """
    wide, heads = width_of(config), _number(config, _HEADS)
    linear, scores = (42, 5) if level in _OF_LEVEL else (58, 5) if half else (66, 9)
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
    """What a step of `rows` texts of `length` tokens takes. An estimate, rather too high.

    `weights` are (trained, frozen) parameters; `half` is autocast in bf16 or fp16; frozen layers keep nothing for the
    backward pass. Vocabulary compaction, which halves a small model, is not in it.
    """
    trained, frozen = weights
    own, gradient, moments = _OF_LEVEL.get(level or "", (FROZEN, 4, 8))
    layers = max(0.0, _number(config, _LAYERS) + added_layers - frozen_layers)
    kept = layers * layer_activations(config, rows * length, length, half, level)
    kept *= KEPT_INPUT if checkpointing else 1.0
    return Need(own * (trained + frozen), gradient * trained, moments * trained, int(kept))


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> float:
    return float(next((config[name] for name in names if name in config), 1))


@dataclass(frozen=True)
class Piece:
    """A part of a model that is computed in one go, in forward order.

    `needs` are its bytes in training on a device; `bytes` its weights alone, which is all that comes and goes where it
    is `frozen` with nothing trained below it.
    """

    name: str
    needs: int
    bytes: int
    frozen: bool


def spread(pieces: list[Piece], budgets: Mapping[str, int]) -> tuple[dict[str, str], list[str]] | None:
    """Place pieces on devices with so many bytes each, in order and evenly: ({piece: device}, those left out).

    Frozen pieces at the bottom are left out as far as need be, the first ones first; they are computed on the first
    device, where the largest of them must fit beside the rest. None where the trained ones do not fit.
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
    """Each device gets its even share of what is left, as far as it has room; None where it does not go in."""
    placed: dict[str, str] = {}
    rest = list(pieces)
    for number, (device, bytes_) in enumerate(room.items()):
        left, later = sum(piece.needs for piece in rest), sum(list(room.values())[number + 1 :])
        share = max(left / (len(room) - number), left - later)
        used = 0
        while rest and used + rest[0].needs <= bytes_ and (used + rest[0].needs / 2 <= share or later == 0):
            placed[rest[0].name] = device
            used += rest.pop(0).needs
    return None if rest else placed

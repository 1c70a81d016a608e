"""Sizes that a model's config.json names, and the tokens that a micro-batch on a CPU may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classify.errors import InputError
from classify.launch.devices import Accelerator

# Elements of a packed micro-batch's hidden state on a CPU, but no fewer tokens than these. Steps with eight to sixteen
# times as many took up to 1.7 times as long: the backward pass then outgrows the memory that the C library reuses
# between steps. Twice as many take as long (384 wide), and more memory; half of 2,048 tokens cost 5 to 10 % (768 wide).
_STATE, _LEAST_TOKENS = 3 << 18, 2048
# Tokens of a padded micro-batch on a CPU, with padding; texts of similar length share one. Relative to micro-batches of
# 8 rows, a DeBERTa step of 32 texts took 0.8 (long) to 1.06 (short) of the time, with half as many tokens 0.85 to 1.0,
# and with all texts at once 1.2 to 1.6, most of it for padding.
PADDED_TOKENS = 1024
# Configuration names, by architecture: hidden size, layers.
_WIDTH = ("hidden_size", "dim", "d_model")
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer")


def limits_tokens(accelerator: Accelerator, *, half_weights: bool, batch_norm: bool) -> bool:
    """Whether a step on such a device is split into micro-batches of `tokens_at_once`.

    Not with half weights, since each sum of gradients rounds, nor with BatchNorm, whose statistics would depend on
    micro-batches.
    """
    return accelerator.is_host and not half_weights and not batch_norm


def tokens_at_once(width: int, *, packed: bool) -> int:
    """The most tokens of a micro-batch, with padding; packed ones by hidden size: 2,048 from 384 on."""
    return max(_LEAST_TOKENS, _STATE // width) if packed else PADDED_TOKENS


def read_hidden_size(config: Mapping[str, Any]) -> int:
    """The hidden size of an encoder."""
    return int(_number(config, _WIDTH))


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


def _number(config: Mapping[str, Any], names: tuple[str, ...], default: float = 1) -> float:
    return float(next((config[name] for name in names if name in config), default))

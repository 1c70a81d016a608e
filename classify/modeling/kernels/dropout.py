"""Dropout on CPUs, where torch draws a double-precision number for every entry: here 64 random bits serve eight.

The share dropped is a 256th below or above the rate, by chance, so that each entry is dropped with a probability of
exactly the rate; what is kept is scaled by the share that was drawn, so the mean stays. The bits come from torch's
generator: seeding it seeds this, and recomputing a layer for its backward pass repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from classify.launch import accelerators
from classify.modeling.kernels.base import Host, Kernel

_LEVELS = 1 << 8


class CPUDropout(Kernel):
    """`Dropout` in the place of torch's."""

    name = "dropout"

    def applies(self, device: torch.device) -> bool:
        """On CPUs; other devices draw fast themselves."""
        return device.type == "cpu"

    def install(self, host: Host) -> None:
        """In every layer."""
        replace_dropout(host.model)


def drawn(
    shape: Sequence[int], rate: float, dtype: torch.dtype, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, float]:
    """A mask on the CPU, 0 with probability `rate`, else 1; and what scales the entries kept.

    `rate` is from 0 to 255/256; at least one bit pattern of 256 is kept.
    """
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8 + 1, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    chance = int(words[-1]) / (1 << 64) + 0.5
    dropped = min(math.floor(rate * _LEVELS + chance), _LEVELS - 1)
    eight = words.view(torch.int8)[:count].view(*shape)
    # Straight into `dtype`: a comparison into bools, and bools into numbers, take six times as long.
    mask = torch.ge(eight, dropped - _LEVELS // 2, out=torch.empty(shape, dtype=dtype))
    return mask, _LEVELS / (_LEVELS - dropped)


def kept(shape: Sequence[int], rate: float, dtype: torch.dtype) -> torch.Tensor:
    """The mask times its scale, on average 1."""
    mask, scale = drawn(shape, rate, dtype)
    return mask.mul_(scale)


class Dropout(nn.Dropout):
    """torch's Dropout (Srivastava et al., 2014) but for how a CPU draws it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Input of any shape; on other devices, and out of training, torch's own."""
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        return input * kept(input.shape, self.p, input.dtype)


def replace_dropout(model: nn.Module) -> None:
    """Put this Dropout in the place of every torch one; they hold no weights, so nothing that is saved changes."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))


def seed_draws(seed: int, epoch: int, step: int, micro_batch: int, rank: int, device: str = "cpu") -> None:
    """Seed torch for one micro-batch: dropout is a function of these five numbers alone."""
    sequence = np.random.SeedSequence([seed, epoch, step, micro_batch, rank])
    number = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
    torch.manual_seed(number)
    accelerators.of(device).seed(number)

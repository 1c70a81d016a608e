"""Dropout on CPUs, where torch draws a double-precision number for every entry: here 64 random bits serve four.

The share dropped is rounded to a 65,536th and what is kept is scaled by exactly that share, so the mean stays. The
bits come from torch's generator: seeding it seeds this, and recomputing a layer for its backward pass repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

_LEVELS = 1 << 16


def _dropped(rate: float) -> int:
    return min(round(rate * _LEVELS), _LEVELS - 1)


def scale_of(rate: float) -> float:
    """What is kept is multiplied by this."""
    return _LEVELS / (_LEVELS - _dropped(rate))


def drawn(shape: Sequence[int], rate: float, dtype: torch.dtype) -> torch.Tensor:
    """A mask on the CPU: 0 with probability `rate` (from 0 to below 1), else 1."""
    count = math.prod(shape)
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    sixteen = bits.view(torch.int16)[:count].view(*shape)
    # Straight into `dtype`: a comparison into bools, and bools into numbers, take six times as long.
    return torch.ge(sixteen, _dropped(rate) - _LEVELS // 2, out=torch.empty(shape, dtype=dtype))


def kept(shape: Sequence[int], rate: float, dtype: torch.dtype) -> torch.Tensor:
    """The mask times its scale: 0 with probability `rate` (from 0 to below 1), else 1 / (1 - rate)."""
    return drawn(shape, rate, dtype).mul_(scale_of(rate))


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

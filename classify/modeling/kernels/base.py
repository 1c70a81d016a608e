"""The interface of kernels: optional, faster implementations of torch operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from classify.modeling.layout import Boundaries


class Kernel(ABC):
    """A faster implementation. Installing it changes no weights, names or hooks of the model."""

    name: str

    @abstractmethod
    def applies(self, device: torch.device) -> bool:
        """Whether the kernel is faster on this device."""

    def install(self, model: Any) -> None:  # noqa: B027 - attention kernels replace no module
        """Replace modules of a stock classifier, if that is the kernel's way."""

    def loses_dropout(self, device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
        """Whether the kernel skips attention dropout on this device, for this dtype (None: fp32)."""
        return False


@dataclass(frozen=True)
class AttentionArgs:
    """Arguments of attention within each text, to tokens at a distance of at most `window` (-1: any).

    `scale` None is 1 / sqrt(head size). With `cls_only` only the outputs of first tokens are needed; the others are
    undefined.
    """

    scale: float | None
    dropout: float
    window: int
    cls_only: bool


class AttentionKernel(Kernel):
    """A faster implementation of attention over packed texts."""

    @abstractmethod
    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
    ) -> torch.Tensor | None:
        """Compute attention (T, heads, d) of q, k and v of that shape; None if not supported."""

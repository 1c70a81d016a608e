"""What a kernel is: a faster form of something torch does, which a model can do without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from classify.modeling.layout import Boundaries


class Host(Protocol):
    """The module that kernels are put into."""

    model: Any

    def attend_by_kernels(self) -> None:
        """Have packed attention ask the kernels before torch's own."""
        ...


class Kernel(ABC):
    """One faster form. Installing it changes no weight, no name and no hook of the model."""

    name: str

    @abstractmethod
    def applies(self, device: torch.device) -> bool:
        """Whether it is of use on this device."""

    @abstractmethod
    def install(self, host: Host) -> None:
        """Put it in the place of what it is faster than."""

    def loses_dropout(self, device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
        """Whether attention on this device, of this type (None: fp32), goes without dropout because of it."""
        return False


@dataclass(frozen=True)
class AttentionArgs:
    """What is args of attention within each text: to tokens at a distance of at most `window` (-1: any).

    `scale` of the scores is one over the root of a head's width if None. With `cls_only` the outputs of each text's
    first token alone are needed; the others may be anything.
    """

    scale: float | None
    dropout: float
    window: int
    cls_only: bool


class AttentionKernel(Kernel):
    """A faster form of attention over packed texts."""

    def install(self, host: Host) -> None:
        """Packed attention asks it."""
        host.attend_by_kernels()

    @abstractmethod
    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, args: AttentionArgs
    ) -> torch.Tensor | None:
        """Attention (T, heads, d) of q, k and v of that shape; None where it has no code for them."""

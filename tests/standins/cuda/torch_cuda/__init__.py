"""A stand-in for what a torch built for CUDA has of its own; torch finds it as it finds vendors' packages.

It is a GPU of the Turing generation: no flash attention, and bf16 only as an emulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    import torch

    from tests.standins.accelerator import begin

    begin("cuda", "nccl")
    # What DataParallel copies weights and collects outputs with (torch/csrc/cuda/comm.h).
    torch._C._broadcast_coalesced = _broadcast_coalesced  # type: ignore[attr-defined]
    torch._C._scatter = _scatter  # type: ignore[attr-defined]
    torch._C._gather = _gather  # type: ignore[attr-defined]


def _broadcast_coalesced(tensors: Sequence[Any], devices: Sequence[int], buffer_size: int) -> list[list[Any]]:
    """The tensors themselves for the first device, copies for each of the others."""
    return [list(tensors)] + [[tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices[1:]]


def _scatter(tensor: Any, devices: Sequence[int], sizes: Sequence[int], dim: int, streams: Any) -> list[Any]:
    """A piece of a tensor for each device, of these sizes along a dimension."""
    return [piece.to(f"cuda:{device}") for piece, device in zip(tensor.split(sizes, dim), devices, strict=True)]


def _gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
    """All tensors on one device, joined along a dimension."""
    import torch

    return torch.cat([tensor.to(f"cuda:{destination or 0}") for tensor in tensors], dim)

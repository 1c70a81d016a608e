"""Gather and shard tensors (torch's DTensor); no-ops on tensors that are not sharded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights are sharded, so that a forward pass is a collective."""
    return any(is_shard(parameter) for parameter in model.parameters())


def is_shard(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # not imported here: that takes half a second
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a shard. A collective if it is sharded."""
    shard: Any = tensor
    return shard.full_tensor() if is_shard(tensor) else tensor


def shard_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Shard a full tensor, which every rank has, like a parameter of the same shape."""
    if not is_shard(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    like: Any = parameter
    tensor = tensor.to(like.device, like.dtype)
    # No communication: all ranks have the same data.
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def gather_full(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Gather full tensors in main memory on ranks that `keep` them; empty elsewhere. A collective if sharded.

    Gathers one tensor at a time to limit device memory.
    """
    full_tensors: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if keep:
            full_tensors[name] = full.cpu().contiguous()
    return full_tensors

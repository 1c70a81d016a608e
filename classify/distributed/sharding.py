"""Tensors of which each rank holds a part (torch's DTensor). Where none is sharded, each gives back what it got."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost module lists that repeat one class: a transformer's layers."""
    layers: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList) and len(child) > 1 and len({type(part) for part in child}) == 1:
            layers.extend(child)
        else:
            layers.extend(repeated_layers(child))
    return layers


def is_sharded(model: nn.Module) -> bool:
    """Whether each rank holds a part of the weights only, so that a forward pass waits for the others."""
    return any(is_part(parameter) for parameter in model.parameters())


def is_part(tensor: torch.Tensor) -> bool:
    """Whether this rank holds a part of the tensor only."""
    module = sys.modules.get("torch.distributed.tensor")  # its import takes half a second, which sharded runs pay
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of which each rank holds a part. A collective where it is cut."""
    part: Any = tensor
    return part.full_tensor() if is_part(tensor) else tensor


def cut_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a full tensor, cut as a parameter of the same shape is. Every rank holds the full tensor."""
    if not is_part(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    like: Any = parameter
    tensor = tensor.to(like.device, like.dtype)
    # No rank's data is sent: all have the same.
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def gathered(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Named tensors in full, in main memory, on ranks that `keep` them; empty elsewhere. A collective if cut.

    One tensor is gathered at a time, so that no device has to hold them all.
    """
    whole_tensors: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            whole_tensors[name] = full.cpu().contiguous()
    return whole_tensors

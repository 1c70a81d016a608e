"""From the host to a device, without waiting."""

from __future__ import annotations

import torch


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`; to a GPU from pinned memory, so that the host need not wait for the copy."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)

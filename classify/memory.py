"""Memory: how a device, or the machine, says that it has no more."""

from __future__ import annotations

import torch

# How torch, C++, oneDNN and CUDA's libraries say so, besides torch's own error class for devices.
_NO_ROOM = (
    "can't allocate memory",
    "bad_alloc",
    "could not create a primitive",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "RESOURCE_EXHAUSTED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory, or the machine's, could not hold what was asked for."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _NO_ROOM)


def release_cache(device: torch.device) -> None:
    """Give back what a device's allocator keeps for later, so that another division of it can succeed."""
    if device.type not in ("cpu", "xla"):
        # The device's own module: torch.accelerator.empty_cache() asks for an allocator that not every vendor has.
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()

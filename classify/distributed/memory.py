"""Detect out-of-memory errors, and measure the memory in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psutil
import torch

from classify.launch.devices import accelerator_of

T = TypeVar("T")


# Out-of-memory messages of torch, C++ and CUDA's libraries, besides torch.OutOfMemoryError.
_NO_ROOM = (
    "can't allocate memory",
    "could not create a primitive",  # of oneDNN
    "bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # the handle's workspace did not fit
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "Cuda failure 2 'out of memory'",  # of NCCL
    "RESOURCE_EXHAUSTED",
)


def out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _NO_ROOM)


def attempt(compute: Callable[[], T], device: torch.device, *, reraise: bool = False) -> tuple[T | None, str]:
    """A computation's result and "", or None and the error message if memory ran out.

    On failure activations and the device's cache are released, so that a smaller attempt can succeed. With `reraise`
    the error is raised.
    """
    try:
        return compute(), ""
    except (RuntimeError, MemoryError) as error:
        if reraise or not out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
    release_cache(device)
    return None, reason


def used_memory(device: torch.device) -> int:
    """The bytes of a device's memory that this process has allocated; the process's own memory if that is not known."""
    allocated = None
    if accelerator_of(device.type).in_torch_accelerator:
        allocated = getattr(torch.get_device_module(device), "memory_allocated", None)
    return int(psutil.Process().memory_info().rss if allocated is None else allocated())


def release_cache(device: torch.device) -> None:
    if accelerator_of(device.type).in_torch_accelerator:
        # torch.accelerator.empty_cache() needs an allocator that not every vendor has.
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()

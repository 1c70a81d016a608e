"""Memory: how much of it the machine has for this process, and how it, or a device, says that there is no more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

import psutil
import torch

from classify.launch import accelerators

T = TypeVar("T")

_CONTROL_GROUPS = Path("/sys/fs/cgroup")

# How torch, C++ and CUDA's libraries say so, besides torch's own error class for devices.
_NO_ROOM = (
    "can't allocate memory",
    "bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "RESOURCE_EXHAUSTED",
)
# What oneDNN says where it has no memory for an operation, and also where the processor has no such operation.
_NO_PRIMITIVE = "could not create a primitive"
# With less memory left than this, it is the memory.
_SHORT = 1 << 30


def out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory, or the machine's, could not hold what was asked for."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in text for sign in _NO_ROOM):
        return True
    return _NO_PRIMITIVE in text and _memory_left() < _SHORT


def attempt(compute: Callable[[], T], device: torch.device, *, last: bool = False) -> tuple[T | None, str]:
    """What a computation returns, and ""; or None and the reason, where memory ran out.

    Nothing holds the failed attempt's activations any more then, and the device's cache is given back, so that a
    smaller one can succeed. With `last` there is no smaller one: the error is raised.
    """
    try:
        return compute(), ""
    except (RuntimeError, MemoryError) as error:
        if last or not out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
    release_cache(device)
    return None, reason


def _memory_left() -> int:
    """Bytes of main memory that are free, or less where the address space of this process is limited (ulimit -v)."""
    left = int(psutil.virtual_memory().available)
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux and FreeBSD
        limit, _ = process.rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            left = min(left, limit - process.memory_info().vms)
    return left


def main_memory(own: Path = Path("/proc/self/cgroup"), groups: Path = _CONTROL_GROUPS) -> int:
    """Bytes of main memory that this process may use: the machine's, or less where a container or a job is limited.

    Linux keeps such limits for groups of processes, `own` names this one's (cgroups(7), both versions); a limit of a
    group above counts too.
    """
    limits = [int(psutil.virtual_memory().total)]
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own.read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        group = PurePosixPath(path)
        for one in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group here, or no limit ("max")
                limits.append(int((root / one.relative_to("/") / name).read_text(encoding="ascii")))
    return min(limits)


def release_cache(device: torch.device) -> None:
    """Give back what a device's allocator keeps for later, so that another division of it can succeed."""
    if accelerators.of(device.type).built_into_torch:
        # The device's own module: torch.accelerator.empty_cache() asks for an allocator that not every vendor has.
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()

"""Gradients of processes that share a machine's main memory, added up there instead of through sockets.

gloo sends them through the kernel's network, also from one process of a machine to the next: for MiniLM's 14 million
gradients a sixth of a training step. Here each process writes its own where all see them, adds up its share of each
bucket and reads the sums of all shares: a reduce-scatter and an all-gather (Thakur et al., 2005, "Optimization of
Collective Communication Operations in MPICH", section 4.5). All get the same bits, summed in the order of ranks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, Protocol

import psutil
import torch
from torch.nn.parallel import DistributedDataParallel

# Buckets begin at multiples of so many bytes: a cache line, and whole numbers of any type.
_ALIGNED = 64
_NAME = "classify-gradients"
# At most one part in so many is taken of the machine's memory; not of what is free, so that a run resumed there adds up
# in the same order.
_SHARE = 16
# Bytes by which a process knows the memory to be that of its own run.
_TOKEN = 16


class Group(Protocol):
    """What is asked of the processes, see `classify.runtime.Runtime`."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def is_main(self) -> bool: ...

    def broadcast(self, value: Any) -> Any: ...

    def any(self, flag: bool) -> bool: ...

    def barrier(self) -> None: ...


def exchange_in_memory(wrapped: DistributedDataParallel, group: Group) -> bool:
    """Have the processes average a wrapped model's gradients in memory that all of them see. A collective.

    False, and nothing changed, where they do not: in containers of their own, say, or on another system than Linux,
    and where it would be much of the machine's. It takes as much as the trained weights, once a process and once more,
    has no name in any folder, and is given back when the last process has ended, however that was.
    """
    row = sum(_aligned(parameter.nbytes) for parameter in wrapped.parameters() if parameter.requires_grad)
    memory = common_memory(group, (group.world_size + 1) * row)
    if memory is None:
        return False
    exchange = _Exchange(memory.view(group.world_size + 1, -1), group)

    def hook(_: None, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own, not as text
        return exchange.take(bucket)

    wrapped.register_comm_hook(None, hook)
    return True


def common_memory(group: Group, size: int) -> torch.Tensor | None:
    """`size` bytes, zero at first, that all processes of the group see. A collective.

    None where one of them cannot, or where that much would be a large part of the machine's memory.
    """
    memory: torch.Tensor | None = None
    place: Any = None
    with contextlib.ExitStack() as opened:
        affordable = size < psutil.virtual_memory().total / _SHARE
        if group.is_main and affordable and hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                number = os.memfd_create(_NAME)
                opened.callback(os.close, number)
                os.ftruncate(number, size + _TOKEN)
                memory = _mapped(number)
                token = os.urandom(_TOKEN)
                memory[size:] = _bytes(token)
                place = [os.getpid(), number, token.hex()]
        place = group.broadcast(place)
        if place is not None and not group.is_main:
            process, number, token = place
            memory = _found(f"/proc/{process}/fd/{number}", bytes.fromhex(token), size)
        missing = group.any(memory is None)  # once all have answered, nobody needs the number any more
    return None if memory is None or missing else memory[:size]


def _found(path: str, token: bytes, size: int) -> torch.Tensor | None:
    """The memory that the main process has open, by its path; None where it cannot be seen.

    In another container the path may be that of another process and its file, which is left alone.
    """
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(f"/memfd:{_NAME}") and os.stat(path).st_size == size + _TOKEN:
            opened = os.open(path, os.O_RDWR)
            try:
                memory = _mapped(opened)
            finally:
                os.close(opened)
            if torch.equal(memory[size:], _bytes(token)):
                return memory
    return None


def _mapped(number: int) -> torch.Tensor:
    """All bytes of an open file as a tensor; what is written there is what every other process reads."""
    return torch.frombuffer(mmap.mmap(number, 0), dtype=torch.uint8)


def _bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Exchange:
    """The buckets of a backward pass, as DistributedDataParallel hands them out: alike on all ranks, in one order.

    On a CPU nothing is gained by sending a bucket while the next one is computed, which takes the same cores. So each
    is written when it is full, and the ranks meet twice a step: when all have written, and when all have added up.
    Neither meeting lets a rank write what another one still reads: its own row is read between the two, the sums after
    the second and before the next step's first.
    """

    def __init__(self, memory: torch.Tensor, group: Group) -> None:
        """`memory`: (ranks + 1, bytes). Each rank writes its row, and its share of the last, which holds the sums."""
        self._memory = memory
        self._group = group
        self._end = 0
        self._taken: list[tuple[torch.Tensor, torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def take(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Write a bucket where all see it; with the last one of a step, turn all into the ranks' mean."""
        own = bucket.buffer()
        rows = self._memory[:, self._end : self._end + own.nbytes].view(own.dtype)
        self._end += _aligned(own.nbytes)
        rows[self._group.rank].copy_(own)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._taken.append((own, rows, future))
        if bucket.is_last():
            self._average()
        return future

    def _average(self) -> None:
        rank, ranks = self._group.rank, self._group.world_size
        self._group.barrier()
        for _, rows, _ in self._taken:
            *parts, total = (row.tensor_split(ranks)[rank] for row in rows)
            torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total.add_(part)
        self._group.barrier()
        for own, rows, future in self._taken:
            future.set_result(torch.div(rows[-1], ranks, out=own))
        self._taken.clear()
        self._end = 0

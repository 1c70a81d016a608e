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

import torch
from torch.nn.parallel import DistributedDataParallel

from classify.memory import main_memory

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
    memory = common_memory(group, row)
    if memory is None:
        return False
    exchange = _Exchange(memory, group)

    def hook(_: None, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own, not as text
        return exchange.take(bucket)

    wrapped.register_comm_hook(None, hook)
    return True


def common_memory(group: Group, row: int) -> torch.Tensor | None:
    """(ranks + 1, `row`) bytes that all processes of the group see, the first row for all, then one each. A collective.

    None where one of them cannot, or where that much would be a large part of the machine's memory. Each process
    reserves its own row: a shortage shows here and not in a step, and the row lies near the cores that write it.
    """
    rows = group.world_size + 1
    memory: torch.Tensor | None = None
    place: Any = None
    with contextlib.ExitStack() as opened:
        if group.is_main and rows * row < main_memory() / _SHARE and hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                number = os.memfd_create(_NAME)
                opened.callback(os.close, number)
                os.ftruncate(number, rows * row + _TOKEN)
                token = os.urandom(_TOKEN)
                os.pwrite(number, token, rows * row)
                memory = _mapped(number, 0, 2 * row)
                place = [os.getpid(), number, token.hex()]
        place = group.broadcast(place)
        if place is not None and not group.is_main:
            process, number, token = place
            own = (group.rank + 1) * row
            memory = _found(f"/proc/{process}/fd/{number}", bytes.fromhex(token), rows * row, own, row)
        missing = group.any(memory is None)  # once all have answered, nobody needs the number any more
    return None if memory is None or missing else memory[:-_TOKEN].view(rows, row)


def _found(path: str, token: bytes, size: int, start: int, length: int) -> torch.Tensor | None:
    """The memory that the main process has open, by its path; None where it cannot be seen, or not be had.

    In another container the path may be that of another process and its file, which is left alone.
    """
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(f"/memfd:{_NAME}") and os.stat(path).st_size == size + len(token):
            number = os.open(path, os.O_RDWR)
            try:
                if os.pread(number, len(token), size) == token:
                    return _mapped(number, start, length)
            finally:
                os.close(number)
    return None


def _mapped(number: int, start: int, length: int) -> torch.Tensor:
    """All bytes of an open file as a tensor, `length` of them from `start` on reserved; raises OSError if not there."""
    os.posix_fallocate(number, start, length)
    return torch.frombuffer(mmap.mmap(number, 0), dtype=torch.uint8)


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
        """`memory`: (ranks + 1, bytes). Each rank writes its share of the first row, the sums, and a row of its own."""
        self._memory = memory
        self._group = group
        self._end = 0
        self._taken: list[tuple[torch.Tensor, torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def take(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Write a bucket where all see it; with the last one of a step, turn all into the ranks' mean."""
        own = bucket.buffer()
        rows = self._memory[:, self._end : self._end + own.nbytes].view(own.dtype)
        self._end += _aligned(own.nbytes)
        rows[1 + self._group.rank].copy_(own)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._taken.append((own, rows, future))
        if bucket.is_last():
            self._average()
        return future

    def _average(self) -> None:
        rank, ranks = self._group.rank, self._group.world_size
        self._group.barrier()
        for _, rows, _ in self._taken:
            total, *parts = (row.tensor_split(ranks)[rank] for row in rows)
            torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total.add_(part)
        self._group.barrier()
        for own, rows, future in self._taken:
            future.set_result(torch.div(rows[0], ranks, out=own))
        self._taken.clear()
        self._end = 0

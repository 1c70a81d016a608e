"""Collectives over the process group; all of them also work in a single process."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from classify.errors import InputError, RankError
from classify.launch import process
from classify.launch.devices import DOUBLE_BACKENDS, Accelerator, accelerator_of
from classify.launch.plan import DevicePlan, ParallelMode

# Time for gloo's threads to take the GIL before the end; they need microseconds, on a loaded machine more.
_GLOO_SECONDS = 0.1
# Share of the time-out after which a stalled rank writes its stack, so that it is there before the others end the job.
_STALL_SHARE = 0.8
# The ranks of a machine write one after the other: those that wait for the one that stalls write, too.
_SECONDS_APART = 0.1
# What torch's errors say where another process ended, or made no progress, while this one waited for it.
_LOST_PEER = ("connection closed by peer", "connection reset", "broken pipe", "timed out waiting")


@dataclass
class World:
    """This process's device, rank and collectives; ranks wait `timeout` seconds for each other."""

    plan: DevicePlan
    device: torch.device
    topology: list[dict[str, Any]] = field(default_factory=list)
    timeout: float = 0
    closed: bool = False
    _before_close: list[Callable[[], object]] = field(default_factory=list, repr=False)

    @property
    def rank(self) -> int:
        return self.plan.launch.rank

    @property
    def world_size(self) -> int:
        return self.plan.launch.world_size

    @property
    def is_main(self) -> bool:
        return self.plan.launch.is_main

    @property
    def is_local_main(self) -> bool:
        return self.plan.launch.is_local_main

    @property
    def replicas(self) -> int:
        return self.plan.replicas

    @property
    def num_devices(self) -> int:
        return self.world_size * self.replicas

    @property
    def accelerator(self) -> Accelerator:
        return accelerator_of(self.device.type)

    @property
    def distributed(self) -> bool:
        return self.plan.parallel_mode is ParallelMode.DISTRIBUTED

    @property
    def _exchange_device(self) -> torch.device:
        return torch.device("cpu") if self.plan.exchanges_in_main_memory else self.device

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Sum element-wise over all ranks, in double precision."""
        if not self.distributed:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        if self.plan.backend not in DOUBLE_BACKENDS:  # it can gather bytes
            parts = self.gather(total.view(torch.uint8)[None].to(self.device))
            return parts.cpu().view(torch.float64).sum(0).tolist()
        total = total.to(self._exchange_device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    def all_reduce_any(self, flag: bool) -> bool:
        return self.all_reduce_sum([float(flag)])[0] > 0

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate (n_i, ...) tensors of all ranks along dimension 0, in rank order; n_i may differ and may be 0."""
        if not self.distributed:
            return tensor
        place = tensor.device
        tensor = tensor.to(self._exchange_device)
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(self.world_size)]
        torch.distributed.all_gather(counts, torch.tensor([tensor.shape[0]], device=tensor.device))
        longest = max(int(count) for count in counts)
        if longest == 0:
            return tensor.to(place)
        padded = tensor.new_zeros((longest, *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)]).to(place)

    def broadcast(self, value: Any) -> Any:
        """The main process's JSON value on every rank. A collective."""
        if not self.distributed:
            return value
        kind = self._exchange_device
        # JSON, not pickle: data from the network is never executed.
        payload = torch.tensor(list(json.dumps(value).encode()) if self.is_main else [], dtype=torch.uint8, device=kind)
        size = torch.tensor([payload.numel()], dtype=torch.int64, device=kind)
        torch.distributed.broadcast(size, src=0)
        if not self.is_main:
            payload = torch.empty(int(size), dtype=torch.uint8, device=kind)
        torch.distributed.broadcast(payload, src=0)
        return json.loads(bytes(payload.tolist()))

    def gather_texts(self, text: str) -> list[str]:
        """Gather one string per rank, in rank order. A collective."""
        payload = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        sizes = self.gather(torch.tensor([payload.numel()], device=self.device)).tolist()
        joined = bytes(self.gather(payload).tolist())
        return [joined[sum(sizes[:rank]) : sum(sizes[: rank + 1])].decode() for rank in range(len(sizes))]

    def agree(self, fault: str | None) -> None:
        """Raise InputError with the `fault` of another rank, if this rank has none. A collective."""
        for rank, message in enumerate(self.gather_texts(fault or "")):
            if message and fault is None:
                raise InputError(f"rank {rank} on machine {self.topology[rank]['machine']} stopped: {message}")

    @contextlib.contextmanager
    def sync_errors(self) -> Iterator[None]:
        """After this block all ranks `agree`: an error of one ends all. A collective."""
        try:
            yield
        except BaseException as error:  # also Ctrl-C: the others may not have received it
            self.agree(str(error) or type(error).__name__)
            raise
        self.agree(None)

    def check_same(self, kinds: Mapping[str, str]) -> None:
        """Raise InputError if a rank's {kind: text} differs from rank 0's. A collective."""
        for kind, text in kinds.items():
            hashes = self.gather_texts(hashlib.sha256(text.encode()).hexdigest())
            different = [str(rank) for rank, text_hash in enumerate(hashes) if text_hash != hashes[0]]
            if different:
                raise InputError(
                    f"rank {', '.join(different)}: expected the same {kind} as on rank 0; start all processes with the "
                    "same command on the same files."
                )

    def broadcast_tensors(self, tensors: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        """The main process's named tensors on every rank; the others pass None. A collective.

        They are in main memory: a device holds one of them at a time, as a sharded model may fit there only in parts.
        """
        if not self.distributed:
            return tensors or {}
        given, received = tensors or {}, {}
        listed = [(name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in given.items()]
        for name, kind, shape in self.broadcast(listed):
            empty = torch.empty(shape, dtype=getattr(torch, kind), device=self._exchange_device)
            tensor = empty.copy_(given[name]) if self.is_main else empty
            torch.distributed.broadcast(tensor, src=0)
            received[name] = given[name] if self.is_main else tensor.cpu()
        return received

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum each gradient over all ranks, in place; a missing one counts as zero. A collective."""
        if not self.distributed:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch.distributed.all_reduce(total)
        for parameter, summed in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
            if parameter.grad is None:
                parameter.grad = summed.view_as(parameter)
            else:  # its address stays: recorded passes add to it
                parameter.grad.copy_(summed.view_as(parameter))

    def all_reduce_max(self, value: int) -> int:
        return int(self.gather(torch.tensor([value], device=self.device)).max())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)
        lost = isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _LOST_PEER)
        if lost and self.distributed:
            raise RankError(
                "another process of this run has ended, or made no progress (--ddp-timeout); its own error says why. "
                "If it was killed, memory may have run out. Continue with --resume."
            ) from error

    @contextlib.contextmanager
    def dump_if_stalled(self) -> Iterator[None]:
        """Write this rank's stacks to standard error if the block takes most of the time that the others wait.

        It stands around each step and each batch that is scored. faulthandler needs no lock of the interpreter, so it
        also sees a call that holds it. Its timer belongs to the process, so a caller's own process keeps it as it is.
        """
        if not self.distributed or not self.timeout or not process.is_program() or sys.__stderr__ is None:
            yield
            return
        seconds = _STALL_SHARE * self.timeout + _SECONDS_APART * max(0, self.plan.launch.local_rank)
        faulthandler.dump_traceback_later(seconds, file=sys.__stderr__)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def before_close(self, release: Callable[[], object]) -> None:
        self._before_close.append(release)

    def close(self, error: BaseException | None = None) -> None:
        """Destroy the process group; safe to call twice.

        After an `error` the others may wait for this rank in a collective on their devices, and destroying the group
        would wait, too. So it is aborted: this process exits at once, and its launcher ends the others. gloo's
        processes detect a lost peer themselves.
        """
        if self.closed:
            return
        self.closed = True
        up = self.distributed and torch.distributed.is_initialized()
        abort = up and error is not None and not self.plan.exchanges_in_main_memory
        if abort:
            # Aborts all groups, including FSDP's; torch 2.13 has no public function. Vendors' backends may not support
            # it.
            with contextlib.suppress(RuntimeError):
                torch.distributed.distributed_c10d._abort_process_group()
        for release in self._before_close:
            release()
        self._before_close.clear()
        if up and not abort:
            if self.plan.exchanges_in_main_memory:
                # Its threads take the GIL to release the last tensors. A thread that has not when the interpreter ends
                # aborts the process ("terminate called without an active exception").
                time.sleep(_GLOO_SECONDS)
            torch.distributed.destroy_process_group()

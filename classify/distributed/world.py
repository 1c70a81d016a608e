"""The running side of `classify.launch.device_plan`: the process group, and what this process may ask of the others.

Everything works the same in a single process, so that no caller needs to test for one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from classify.errors import ClassifyError, InputError
from classify.launch import accelerators
from classify.launch.accelerator import Accelerator
from classify.launch.device_plan import DevicePlan, ParallelMode

# How long the GIL is left to gloo's threads before the end; they need microseconds, on a loaded machine more.
_GLOO_SECONDS = 0.1
# Of more processes on a machine, each takes as much of its caches as one of so many: passes get no shorter than that.
_SHARERS = 4


@dataclass
class World:
    """This process among the others. All methods work the same in a single process."""

    plan: DevicePlan
    device: torch.device
    topology: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    _before_close: list[Callable[[], object]] = field(default_factory=list, repr=False)

    @property
    def rank(self) -> int:
        """Number of this process among all; 0 in a single process."""
        return self.plan.launch.rank

    @property
    def local_rank(self) -> int:
        """Number of this process on its machine; -1 where no launcher started it."""
        return self.plan.launch.local_rank

    @property
    def world_size(self) -> int:
        """Processes of the run."""
        return self.plan.launch.world_size

    @property
    def is_main(self) -> bool:
        """True on the one process that writes files and speaks: the global rank 0."""
        return self.plan.launch.is_main

    @property
    def is_local_main(self) -> bool:
        """True on one process of each machine."""
        return self.plan.launch.is_local_main

    @property
    def replicas(self) -> int:
        """Devices this process drives at once: more than one only under DataParallel."""
        return self.plan.replicas

    @property
    def accelerator(self) -> Accelerator:
        """What is known of this process's kind of device."""
        return accelerators.of(self.device.type)

    @property
    def devices(self) -> list[str]:
        """All devices that this process may spread a model over."""
        if self.device.type == "cpu":
            return ["cpu"]
        return [f"{self.device.type}:{index}" for index in range(max(1, self.plan.n_gpu))]

    @property
    def distributed(self) -> bool:
        """Whether a process group is up."""
        return self.plan.parallel_mode is ParallelMode.DISTRIBUTED

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.all_reduce_any(False)

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over all ranks, in double precision."""
        if not self.distributed:
            return values
        own = torch.tensor(values, dtype=torch.float64)
        if self.plan.backend not in ("gloo", "nccl"):  # others cannot add doubles, but carry bytes
            parts = self.gather(own.view(torch.uint8)[None].to(self.device))
            return parts.cpu().view(torch.float64).sum(0).tolist()
        total = own.to(self.device if self.plan.backend == "nccl" else "cpu")
        torch.distributed.all_reduce(total)
        return total.tolist()

    def all_reduce_any(self, flag: bool) -> bool:
        """Whether any rank says yes; all ranks get the same answer."""
        return self.all_reduce_sum([float(flag)])[0] > 0

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate (n_i, ...) tensors of all ranks along dimension 0, in rank order; n_i may differ, also be 0."""
        if not self.distributed:
            return tensor
        place = tensor.device
        if self.plan.backend == "gloo":
            tensor = tensor.cpu()
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(self.world_size)]
        torch.distributed.all_gather(counts, torch.tensor([tensor.shape[0]], device=tensor.device))
        longest = max(int(count) for count in counts)
        if longest == 0:
            return tensor.to(place)
        own = tensor.new_zeros((longest, *tensor.shape[1:]))
        own[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, own)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)]).to(place)

    def broadcast(self, value: Any) -> Any:
        """The main process's value (numbers, text, lists and dictionaries of them) on every rank."""
        if not self.distributed:
            return value
        kind = self.device if self.plan.backend != "gloo" else torch.device("cpu")
        # JSON, not pickle: nothing that arrives over a network is ever executed.
        payload = torch.tensor(list(json.dumps(value).encode()) if self.is_main else [], dtype=torch.uint8, device=kind)
        size = torch.tensor([payload.numel()], dtype=torch.int64, device=kind)
        torch.distributed.broadcast(size, src=0)
        if not self.is_main:
            payload = torch.empty(int(size), dtype=torch.uint8, device=kind)
        torch.distributed.broadcast(payload, src=0)
        return json.loads(bytes(payload.tolist()))

    def gather_texts(self, text: str) -> list[str]:
        """One text of each rank, in rank order. A collective."""
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        sizes = self.gather(torch.tensor([own.numel()], device=self.device)).tolist()
        joined = bytes(self.gather(own).tolist())
        return [joined[sum(sizes[:rank]) : sum(sizes[: rank + 1])].decode() for rank in range(len(sizes))]

    def raise_if_any_rank_failed(self, fault: str | None) -> None:
        """Raise InputError where another rank cannot begin; its `fault` is told. A collective."""
        for rank, message in enumerate(self.gather_texts(fault or "")):
            if message and fault is None:
                raise InputError(f"rank {rank} on machine {self.topology[rank]['machine']} stopped: {message}")

    @contextlib.contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Nobody goes on before all have done what is in this block, or have been told what stopped one. A collective.

        Raises InputError with what stopped another rank.
        """
        try:
            yield
        except Exception as error:  # not Ctrl-C, which all get
            self.raise_if_any_rank_failed(str(error) or type(error).__name__)
            raise
        self.raise_if_any_rank_failed(None)

    def leave(self, fault: str) -> None:
        """Tell the others, who are in `share_faults`, why this process cannot begin, and close. A collective."""
        self.raise_if_any_rank_failed(fault)
        self.close()

    def check_same(self, kinds: Mapping[str, str]) -> None:
        """Raise InputError where a rank has another text of some kind than rank 0; `kinds` names them. A collective."""
        for kind, text in kinds.items():
            everywhere = self.gather_texts(hashlib.sha256(text.encode()).hexdigest())
            others = [str(rank) for rank, one in enumerate(everywhere) if one != everywhere[0]]
            if others:
                raise InputError(
                    f"rank {', '.join(others)} was started with other {kind} than rank 0; start all processes with the "
                    "same command on the same files."
                )

    def broadcast_tensors(self, tensors: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        """The main process's named tensors on every rank, bit for bit; the others pass None."""
        listed = None
        if tensors is not None:
            listed = [
                (name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in tensors.items()
            ]
        listed = self.broadcast(listed)
        assert listed is not None
        if not self.distributed:
            return tensors or {}
        place = torch.device("cpu") if self.plan.backend == "gloo" else self.device
        received: dict[str, torch.Tensor] = {}
        for name, kind, shape in listed:
            empty = torch.empty(shape, dtype=getattr(torch, kind), device=place)
            received[name] = empty if tensors is None else tensors[name].to(place)
            torch.distributed.broadcast(received[name], src=0)
        return received

    def broadcast_parameters(self, module: nn.Module) -> None:
        """Give every rank the main process's parameters of a module, bit for bit."""
        if self.distributed:
            for parameter in module.parameters():
                torch.distributed.broadcast(parameter.data, src=0)

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make each gradient the sum of all ranks'; one that is not there counts as zero. A collective."""
        if not self.distributed:
            return
        own = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        total = torch.cat([gradient.reshape(-1) for gradient in own])
        torch.distributed.all_reduce(total)
        for parameter, part in zip(parameters, total.split([one.numel() for one in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def all_reduce_max(self, value: int) -> int:
        """The largest of all ranks' values. A collective."""
        return int(self.gather(torch.tensor([value], device=self.device)).max())

    @property
    def cache_sharers(self) -> int:
        """Processes of this machine among which its caches are divided when steps are cut into micro-batches."""
        return min(_SHARERS, self.plan.launch.local_world_size)

    def flush(self) -> None:
        """Have a device that records operations run them; others have run them already."""
        self.accelerator.flush()

    def __enter__(self) -> Self:
        """For `with`: the process group is taken down when the block ends."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def before_close(self, release: Callable[[], object]) -> None:
        """Have something done before the process group is taken down."""
        self._before_close.append(release)

    def close(self, error: BaseException | None = None) -> None:
        """Take the process group down; safe to call twice.

        After an `error` that this rank alone may have met the others may be waiting for it in a collective on their
        devices, and destroying the group would wait with them. So it is aborted: this process leaves at once, and its
        launcher ends the others. gloo's processes notice by themselves that a peer has gone.
        """
        if self.closed:
            return
        self.closed = True
        up = self.distributed and torch.distributed.is_initialized()
        alone = error is not None and not (isinstance(error, ClassifyError) and error.everywhere)
        abort = up and alone and self.plan.backend != "gloo"
        if abort:
            # All groups, FSDP's too; torch 2.13 has no public name for it. Where a vendor's backend does not know how,
            # the process leaves as it is.
            with contextlib.suppress(RuntimeError):
                torch.distributed.distributed_c10d._abort_process_group()
        for release in self._before_close:
            release()
        self._before_close.clear()
        if up and not abort:
            if self.plan.backend == "gloo":
                # Its threads take the GIL to drop the tensors of the last exchange. One that has not come to it when
                # the interpreter ends aborts the process ("terminate called without an active exception").
                time.sleep(_GLOO_SECONDS)
            torch.distributed.destroy_process_group()

    def describe(self) -> str:
        """Return device and parallel mode as words."""
        spec, place = self.plan.spec, ""
        if self.distributed:
            place = f", {self.world_size} processes with {spec.name_for_people} over {self.plan.backend}"
        elif spec.spreads_layers:
            place = ", ".join(["", *self.devices[1:]]) + f" with {spec.name_for_people}"
        elif self.replicas > 1:
            place = f", {self.replicas} devices with {spec.name_for_people}"
        return f"{self.plan.device}{place}"

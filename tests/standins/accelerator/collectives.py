"""A vendor's collectives: a process group on tensors of its devices that gloo carries out in their memory."""

from __future__ import annotations

import datetime
import types
from typing import Any

import torch
import torch.distributed as dist


class _Done(dist._Work):
    """Work that is done already, with the caller's own tensors as its result."""

    def __init__(self, result: Any):
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class VendorGroup(dist.ProcessGroup):
    """Refuses tensors that are not on its devices, as the real ones do."""

    def __init__(self, native: Any, kind: str, backend: str, store: Any, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self._native, self._kind, self._backend = native, kind, backend
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _host(self, tensors: Any) -> list[Any]:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != self._kind:
                raise RuntimeError(f"{self._backend} needs {self._kind} tensors. Got one on {tensor.device} instead.")
        return [self._native.on_cpu(t) if isinstance(t, torch.Tensor) else self._host(t) for t in tensors]

    def _get_backend(self, device: Any) -> Any:
        """What torch asks to connect the ranks at once, where the process group has been given a device."""
        return types.SimpleNamespace(supports_splitting=False)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if self._backend != "nccl" and any(tensor.dtype is torch.float64 for tensor in tensors):
            raise RuntimeError(f"{self._backend} cannot add float64.")
        self._gloo.allreduce(self._host(tensors), opts or dist.AllreduceOptions()).wait()
        return _Done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        self._gloo.broadcast(self._host(tensors), opts).wait()
        return _Done(tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._gloo.allgather(self._host(outputs), self._host(inputs), opts or dist.AllgatherOptions()).wait()
        return _Done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        self._gloo.barrier(opts or dist.BarrierOptions()).wait()
        return _Done([])

    def getBackendName(self) -> str:
        return self._backend

    @property
    def supports_splitting(self) -> bool:
        return False


def register(native: Any, kind: str, backend: str) -> None:
    """Make a backend for tensors on devices of this kind known to torch."""

    def create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> VendorGroup:
        return VendorGroup(native, kind, backend, store, rank, size, timeout)

    if backend != "nccl":
        dist.Backend.register_backend(backend, create, devices=[kind])
        return

    class BuiltIn(VendorGroup):
        """One of torch's own, where torch is built with it."""

        Options = types.SimpleNamespace

        def __init__(self, store: Any, rank: int, size: int, options: Any):
            super().__init__(native, kind, backend, store, rank, size, options._timeout)

        def _set_sequence_number_for_group(self) -> None:
            pass

    setattr(dist.distributed_c10d, f"ProcessGroup{backend.upper()}", BuiltIn)
    setattr(dist.distributed_c10d, f"_{backend.upper()}_AVAILABLE", True)

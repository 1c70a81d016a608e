"""The backend "hccl" of the stand-in: a process group on npu tensors that gloo carries out in their memory."""

from __future__ import annotations

import datetime
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


class ProcessGroupHCCL(dist.ProcessGroup):
    """Refuses tensors that are not on an NPU, as the real one does."""

    def __init__(self, native: Any, store: Any, rank: int, size: int, timeout: datetime.timedelta):
        super().__init__(rank, size)
        self._native = native
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _host(self, tensors: Any) -> list[Any]:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "npu":
                raise RuntimeError(f"HCCL works on npu tensors. Got one on {tensor.device} instead.")
        return [self._native.on_cpu(t) if isinstance(t, torch.Tensor) else self._host(t) for t in tensors]

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
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
        return "hccl"

    @property
    def supports_splitting(self) -> bool:
        return False


def register(native: Any) -> None:
    """Make "hccl" known to torch."""

    def create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> ProcessGroupHCCL:
        return ProcessGroupHCCL(native, store, rank, size, timeout)

    dist.Backend.register_backend("hccl", create, devices=["npu"])

"""The kinds of devices there are: an entry each, and a file for one that does more otherwise than an entry says."""

from __future__ import annotations

from collections.abc import Mapping

from classify.launch.accelerator import Accelerator
from classify.launch.xla import XLA

# An own table: torch.distributed.get_default_backend_for_device knows a vendor's only when its package is there.
_ALL = (
    Accelerator("cuda", "nccl", "CUDA_VISIBLE_DEVICES", replicates=True, shared=True),  # ROCm's devices, too
    Accelerator("xpu", "xccl", "ZE_AFFINITY_MASK"),
    Accelerator("npu", "hccl", "ASCEND_RT_VISIBLE_DEVICES"),
    # A process acquires one Gaudi, that with the number of its LOCAL_RANK, and calls it hpu:0.
    # https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html
    Accelerator("hpu", "hccl", one_a_process=True),
    Accelerator("mlu", "cncl"),
    Accelerator("musa", "mccl"),
    Accelerator("mps"),
    Accelerator("cpu", shared=True, in_torch=False),
    XLA(),
)
ACCELERATORS = {one.kind: one for one in _ALL}


def of(kind: str) -> Accelerator:
    """What is known of a kind of device; of one that is not listed, nothing special."""
    return ACCELERATORS.get(kind) or Accelerator(kind)


def find(environment: Mapping[str, str]) -> tuple[Accelerator, int]:
    """The devices torch can use in this process, and how many; ("cpu", 0) where there are none."""
    for one in _ALL:
        if one.is_wanted(environment):
            return one, one.count()
    import torch

    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return of("cpu"), 0
    return of(current.type), of(current.type).count()

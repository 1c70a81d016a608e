"""Table of the kinds of devices."""

from __future__ import annotations

from collections.abc import Mapping

from classify.launch.accelerator import CUDA, Accelerator
from classify.launch.xla import XLA

# torch.distributed.get_default_backend_for_device knows a vendor's backend only if its package is installed.
_ALL: tuple[Accelerator, ...] = (
    CUDA(),
    Accelerator("xpu", backend="xccl", visible="ZE_AFFINITY_MASK", fused_adamw=True),
    Accelerator("npu", backend="hccl", visible="ASCEND_RT_VISIBLE_DEVICES"),
    # A process acquires one Gaudi, that with the number of its LOCAL_RANK, and calls it hpu:0.
    # https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html
    Accelerator(
        "hpu", backend="hccl", backend_module="habana_frameworks.torch.distributed.hccl", single_device_per_process=True
    ),
    Accelerator("mlu", backend="cncl"),
    Accelerator("musa", backend="mccl"),
    Accelerator("mps"),
    Accelerator(
        "cpu",
        has_index=False,
        gloo_takes_tensors=True,
        in_torch_accelerator=False,
        synchronous=True,
        limits_micro_batch_tokens=True,
        precision_by_processor=True,
        eval_tokens=4096,
        fused_adamw=True,
        has_fp16=False,
    ),
    XLA(),
)
ACCELERATORS = {accelerator.kind: accelerator for accelerator in _ALL}


def of(kind: str) -> Accelerator:
    """The entry of a kind of device, or one with the defaults."""
    return ACCELERATORS.get(kind) or Accelerator(kind)


def find(environment: Mapping[str, str]) -> tuple[Accelerator, int]:
    """The kind and number of devices torch can use in this process; the CPU and 0 where there are none."""
    for accelerator in _ALL:
        if accelerator.is_selected_by(environment):
            return accelerator, accelerator.count()
    import torch

    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return of("cpu"), 0
    return of(current.type), of(current.type).count()

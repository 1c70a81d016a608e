"""Kinds of devices, backends of process groups, and strategies: three tables of what differs between them.

They are read without torch. Whoever needs a property asks for it; nobody else compares names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

# XLA pads the length of texts and the number of rows to powers of two from these on: it compiles a program a shape.
_MIN_TOKENS = 16
_MIN_ROWS = 8


@dataclass(frozen=True)
class Accelerator:
    """A kind of device by torch's name; the defaults suit an unknown vendor's."""

    kind: str
    # Backend of its process groups, and the module that registers it where torch does not.
    backend: str = "gloo"
    backend_module: str | None = None
    # The processor itself: it waits for each operation, its caches limit a micro-batch, one device has no number.
    is_host: bool = False
    # It records operations and compiles a program for each shape; one process trains, without a process group.
    compiles: bool = False
    # Each process acquires one device, with index 0.
    single_device_per_process: bool = False
    # torch's DataParallel works on such devices.
    replicates: bool = False
    # gloo exchanges tensors of such devices.
    gloo_takes_tensors: bool = False
    # AdamW has a fused implementation.
    fused_adamw: bool = False
    # Host memory should be pinned before it is copied there.
    pins_memory: bool = False
    has_tf32: bool = False
    # Passes can be recorded as CUDA graphs.
    records_graphs: bool = False

    @property
    def in_torch_accelerator(self) -> bool:
        return not self.is_host and not self.compiles

    @property
    def eval_tokens(self) -> int:
        """Tokens of an evaluation batch: as many as fit the caches of a processor."""
        return 4096 if self.is_host else 65_536

    def device(self, index: int) -> str:
        return self.kind if self.is_host else f"{self.kind}:{index}"

    def is_selected_by(self, environment: Mapping[str, str]) -> bool:
        return False

    def count(self) -> int:
        import torch

        return int(torch.accelerator.device_count())

    def has_bf16(self) -> bool | None:
        """Whether a device of this machine computes bf16; False: slowly, by emulation; None: unknown."""
        return None

    def flush(self) -> None:
        """Run the recorded operations of a device that compiles."""

    def seed(self, value: int) -> None:
        """Seed random numbers that `torch.manual_seed` does not reach."""

    def padded_length(self, tokens: int) -> int:
        """The length that texts of up to `tokens` tokens are padded to."""
        return tokens

    def padded_rows(self, rows: int) -> int:
        """The number of rows that a batch of `rows` is padded to."""
        return rows


@dataclass(frozen=True)
class CUDA(Accelerator):
    """NVIDIA GPUs, and AMD GPUs under ROCm."""

    kind: str = "cuda"
    backend: str = "nccl"
    replicates: bool = True
    gloo_takes_tensors: bool = True
    fused_adamw: bool = True
    pins_memory: bool = True
    has_tf32: bool = True
    records_graphs: bool = True

    def has_bf16(self) -> bool | None:
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@dataclass(frozen=True)
class XLA(Accelerator):
    """TPUs and other devices of torch_xla (PJRT_DEVICE=TPU; CPU to test without one).

    https://docs.pytorch.org/xla/release/r2.9/learn/pytorch-on-xla-devices.html
    """

    kind: str = "xla"
    compiles: bool = True

    def is_selected_by(self, environment: Mapping[str, str]) -> bool:
        return "PJRT_DEVICE" in environment and importlib.util.find_spec("torch_xla") is not None

    def count(self) -> int:
        import torch_xla.runtime

        return int(torch_xla.runtime.addressable_device_count())

    def flush(self) -> None:
        import torch_xla

        torch_xla.sync()

    def seed(self, value: int) -> None:
        import torch_xla

        torch_xla.manual_seed(value)

    def padded_length(self, tokens: int) -> int:
        return max(_MIN_TOKENS, 1 << (tokens - 1).bit_length())

    def padded_rows(self, rows: int) -> int:
        return max(_MIN_ROWS, 1 << (rows - 1).bit_length())


# torch.distributed.get_default_backend_for_device knows a vendor's backend only if its package is installed.
_KINDS: tuple[Accelerator, ...] = (
    CUDA(),
    Accelerator("xpu", backend="xccl", fused_adamw=True),
    Accelerator("npu", backend="hccl"),
    # A process acquires one Gaudi, that with the number of its LOCAL_RANK, and calls it hpu:0.
    # https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html
    Accelerator(
        "hpu", backend="hccl", backend_module="habana_frameworks.torch.distributed.hccl", single_device_per_process=True
    ),
    Accelerator("mlu", backend="cncl"),
    Accelerator("musa", backend="mccl"),
    Accelerator("mps"),
    Accelerator("cpu", is_host=True, gloo_takes_tensors=True, fused_adamw=True),
    XLA(),
)
ACCELERATORS = {accelerator.kind: accelerator for accelerator in _KINDS}


def accelerator_of(kind: str) -> Accelerator:
    return ACCELERATORS.get(kind) or Accelerator(kind)


# The backend that exchanges tensors in main memory, by threads of each process: CPU runs can use it, ranks may share a
# device, it detects a lost peer, and it releases tensors after a collective has returned.
GLOO = "gloo"
# Amazon's, for SageMaker's GPUs; an explicit request on a CPU is honored.
# https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html
SMDDP = "smddp"
SMDDP_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
# Backends that a CPU run may name, and backends that add float64.
CPU_BACKENDS = (GLOO, SMDDP)
DOUBLE_BACKENDS = (GLOO, "nccl")


@dataclass(frozen=True)
class StrategySpec:
    """What the device plan and checks of flags ask of a strategy."""

    # PyTorch's name.
    display_name: str
    # Module in `classify.training.strategies`, and the class that implements it.
    implementation: tuple[str, str]
    # One process drives all devices; else each device has its own.
    one_process: bool = True
    # Each process holds a shard of the weights.
    shards_weights: bool = False
    # One process spreads the layers over its devices, which compute one after the other.
    spreads_layers: bool = False
    # One process copies the model to each of its devices.
    replicates_model: bool = False
    # A step may have more micro-batches than requested, to stay within a CPU's caches.
    may_split_steps: bool = False
    # Passes may be recorded as CUDA graphs.
    records_graphs: bool = False


STRATEGIES = {
    "none": StrategySpec("one device", ("base", "Strategy"), may_split_steps=True, records_graphs=True),
    "dp": StrategySpec("DataParallel", ("data_parallel", "DataParallelStrategy"), replicates_model=True),
    "ddp": StrategySpec(
        "DistributedDataParallel", ("ddp", "DDPStrategy"), one_process=False, may_split_steps=True, records_graphs=True
    ),
    "fsdp": StrategySpec("FSDP2", ("fsdp", "FSDPStrategy"), one_process=False, shards_weights=True),
    "model": StrategySpec("model parallelism", ("model", "ModelStrategy"), spreads_layers=True),
}

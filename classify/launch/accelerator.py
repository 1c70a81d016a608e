"""Kinds of devices, described by their properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """A kind of device; the defaults are those of an unknown one."""

    # torch's name of the device type, and whether its devices are numbered.
    kind: str
    has_index: bool = True
    # Word before a device's number in the machine.
    noun: str = ""
    # Backend of its process groups, and the module that registers it where torch does not.
    backend: str = "gloo"
    backend_module: str | None = None
    # Environment variable that chooses the devices a process sees.
    visible: str | None = None
    # Each process acquires one device, with index 0.
    single_device_per_process: bool = False
    # torch's DataParallel works on such devices.
    replicates: bool = False
    # gloo exchanges tensors of such devices.
    gloo_takes_tensors: bool = False
    # Training runs in one process, without a process group.
    one_process: bool = False
    # A program is compiled for each shape; operations run at `flush`.
    static_shapes: bool = False
    lazy_execution: bool = False
    # torch.accelerator knows such devices.
    in_torch_accelerator: bool = True
    # The host waits for each operation, so a collective in each step costs little.
    synchronous: bool = False
    # Steps are faster in micro-batches whose activations fit the caches.
    limits_micro_batch_tokens: bool = False
    # A processor whose fastest precision for training is measured.
    precision_by_processor: bool = False
    # Tokens of an evaluation batch.
    eval_tokens: int = 65_536
    # Host memory should be pinned before it is copied to the device.
    pins_memory: bool = False
    # AdamW has a fused implementation.
    fused_adamw: bool = False
    # fp16 is fast; TF32 exists.
    has_fp16: bool = True
    has_tf32: bool = False

    def device(self, index: int) -> str:
        """Return torch's name of a device."""
        return f"{self.kind}:{index}" if self.has_index else self.kind

    def is_selected_by(self, environment: Mapping[str, str]) -> bool:
        """Whether environment variables select such devices."""
        return False

    def count(self) -> int:
        """Count the devices that this process can use."""
        import torch

        return int(torch.accelerator.device_count())

    def prefers_bf16(self) -> bool:
        """Whether bf16 is the default precision of such devices on this machine."""
        return False

    def lacks_bf16(self) -> bool:
        """Whether a device of this machine is known to compute bf16 by emulation, slower than fp32."""
        return False

    def flush(self) -> None:
        """Run recorded operations, on devices with `lazy_execution`."""

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
    noun: str = "GPU"
    backend: str = "nccl"
    visible: str | None = "CUDA_VISIBLE_DEVICES"
    replicates: bool = True
    gloo_takes_tensors: bool = True
    pins_memory: bool = True
    fused_adamw: bool = True
    has_tf32: bool = True

    def prefers_bf16(self) -> bool:
        """Whether the GPU computes in bfloat16."""
        return not self.lacks_bf16()

    def lacks_bf16(self) -> bool:
        """Whether the GPU is older than Ampere."""
        import torch

        return not torch.cuda.is_bf16_supported(including_emulation=False)

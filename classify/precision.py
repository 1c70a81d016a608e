"""Arithmetic of the model: fp32, tf32, bf16 or fp16, decided once and applied around forward and backward."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from classify.errors import InputError


@dataclass(frozen=True)
class Precision:
    """The precision in force: its name, the autocast type (None for fp32 and tf32), and why it was chosen."""

    name: str
    autocast_dtype: torch.dtype | None
    why: str
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """The gradient scaler: at work under fp16, passing everything through otherwise."""
        return torch.amp.GradScaler(self.device_type, enabled=self.autocast_dtype is torch.float16)


FP32 = Precision("fp32", None, "the default", "cpu")


def choose_precision(name: str, device: torch.device) -> Precision:
    """The precision asked for, or for "auto" the best that keeps results: bf16 on GPUs that have it, else fp32.

    Raises InputError where the device cannot do what was asked. Sets torch's float32 matmul mode for tf32.
    """
    kind = device.type
    if name == "auto":
        if kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", torch.bfloat16, "this GPU computes in bfloat16", kind)
        return Precision("fp32", None, f"full precision, the safe choice on {kind}", kind)
    if name == "tf32":
        if kind != "cuda":
            raise InputError(
                f"--precision tf32 exists on NVIDIA GPUs only. Got device {kind} instead; use fp32 or bf16."
            )
        torch.set_float32_matmul_precision("high")
        return Precision("tf32", None, "asked for", kind)
    if name == "fp16":
        if kind == "cpu":
            raise InputError(
                "--precision fp16 needs a GPU: a CPU has no fast half-precision arithmetic, and small gradients "
                "would vanish; use bf16 or fp32."
            )
        return Precision("fp16", torch.float16, "asked for", kind)
    if name == "bf16":
        return Precision("bf16", torch.bfloat16, "asked for", kind)
    return Precision("fp32", None, "asked for", kind)

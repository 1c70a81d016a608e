"""List and install the kernels. `--kernels off` disables them; run.json lists them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch

from classify.modeling.kernels.attention import CPUAttention
from classify.modeling.kernels.base import AttentionKernel, Kernel
from classify.modeling.kernels.dropout import CPUDropout
from classify.modeling.kernels.linear import OneDNNLinear
from classify.modeling.kernels.ragged import RaggedAttention

# In order of preference.
ATTENTION: tuple[AttentionKernel, ...] = (RaggedAttention(), CPUAttention())
KERNELS: tuple[Kernel, ...] = (*ATTENTION, CPUDropout(), OneDNNLinear())


def install(model: Any, device: torch.device, off: Container[str] = ()) -> tuple[Kernel, ...]:
    """Install the kernels that apply on a device in a stock classifier, except those named in `off`; return them."""
    applicable = tuple(kernel for kernel in KERNELS if kernel.name not in off and kernel.applies(device))
    for kernel in applicable:
        kernel.install(model)
    return applicable

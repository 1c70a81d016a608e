"""List and install the kernels. `--kernels off` disables them; run.json lists them."""

from __future__ import annotations

from collections.abc import Container

import torch

from classify.modeling.kernels.attention import CPUAttention
from classify.modeling.kernels.base import AttentionKernel, Host, Kernel
from classify.modeling.kernels.dropout import CPUDropout
from classify.modeling.kernels.linear import OneDNNLinear
from classify.modeling.kernels.ragged import RaggedAttention

# In order of preference.
ATTENTION: tuple[AttentionKernel, ...] = (RaggedAttention(), CPUAttention())
KERNELS: tuple[Kernel, ...] = (*ATTENTION, CPUDropout(), OneDNNLinear())


def install(host: Host, device: torch.device, off: Container[str] = ()) -> tuple[Kernel, ...]:
    """Install and return the kernels that apply on a device, except those named in `off`."""
    applicable = tuple(kernel for kernel in KERNELS if kernel.name not in off and kernel.applies(device))
    for kernel in applicable:
        kernel.install(host)
    return applicable

"""The kernels there are, and their installation. `kernels: off` in --config leaves them out; run.json names them."""

from __future__ import annotations

from collections.abc import Container

import torch

from classify.modeling.kernels.attention import CPUAttention
from classify.modeling.kernels.base import AttentionKernel, Host, Kernel
from classify.modeling.kernels.dropout import CPUDropout
from classify.modeling.kernels.linear import OneDNNLinear
from classify.modeling.kernels.ragged import RaggedAttention

# In the order in which they are asked.
ATTENTION: tuple[AttentionKernel, ...] = (RaggedAttention(), CPUAttention())
KERNELS: tuple[Kernel, ...] = (*ATTENTION, CPUDropout(), OneDNNLinear())


def install(host: Host, device: torch.device, off: Container[str] = ()) -> tuple[Kernel, ...]:
    """Install the kernels that are of use on a device, but for those whose names are `off`, and return them."""
    chosen = tuple(kernel for kernel in KERNELS if kernel.name not in off and kernel.applies(device))
    for kernel in chosen:
        kernel.install(host)
    return chosen

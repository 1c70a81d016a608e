"""Linear layers in fp32 on processors whose AVX-512 torch's own matrix library leaves alone.

torch multiplies fp32 matrices by MKL, which runs AVX2 code on processors that Intel did not make. oneDNN, which torch
carries for other types, uses what is there: 1.7 to 2.3 times as fast on a Zen 5, where a register's 512 bits are
multiplied at once. Sums are taken in another order; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from classify.modeling.kernels.base import Host, Kernel


class OneDNNLinear(Kernel):
    """`Linear` in the place of torch's."""

    name = "linear"

    def applies(self, device: torch.device) -> bool:
        """On CPUs where oneDNN is the faster one."""
        return device.type == "cpu" and onednn_is_faster(capabilities())

    def install(self, host: Host) -> None:
        """In every layer."""
        replace_linear(host.model)


def multiplies_by_onednn(model: nn.Module) -> bool:
    """Whether linear layers in fp32 are oneDNN's."""
    return any(isinstance(module, Linear) for module in model.modules())


def capabilities() -> Mapping[str, Any]:
    """What torch knows about this processor, by name; nothing where an older torch cannot tell."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return known


def onednn_is_faster(processor: Mapping[str, Any]) -> bool:
    """Whether oneDNN multiplies fp32 matrices faster than torch does by itself, on a processor with these capabilities.

    False where this torch has no MKL, no oneDNN, or not the operation that hands it a product.
    """
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not libraries or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return bool(processor.get("avx512_f")) and "intel" not in str(processor.get("cpu_name", "intel")).lower()


def multiply(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """a @ b.T + bias by oneDNN: a (..., i), b (j, i), bias (j,), in fp32 on the CPU; autograd does not see it."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    """A linear layer whose three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Keeps what the products of the backward pass want."""
        ctx.save_for_backward(input, weight)
        return multiply(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of input, weight and bias, where they are wanted."""
        (grad,), (input, weight) = grads, ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            multiply(rows.t(), input.reshape(-1, input.shape[-1]).t()) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


class Linear(nn.Linear):
    """torch's Linear but for who multiplies fp32 matrices on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Input (..., in) to (..., out); torch's own in other types, under autocast and on other devices."""
        whole = input.dtype == self.weight.dtype == torch.float32 and input.numel() > 0
        if not whole or input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if not torch.is_grad_enabled():
            return multiply(input, self.weight, self.bias)
        product: torch.Tensor = _Linear.apply(input, self.weight, self.bias)
        return product


def replace_linear(model: nn.Module) -> None:
    """Have every torch Linear of a model multiply by oneDNN; its weights, hooks and names stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear

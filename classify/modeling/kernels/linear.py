"""Linear layers in fp32 by oneDNN, on AVX-512 processors that are not Intel's.

torch multiplies fp32 matrices with MKL, which runs AVX2 code on such processors. oneDNN, which torch bundles, uses
AVX-512: 1.7 to 2.3 times as fast on a Zen 5. Only the order of summation differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from classify.modeling.kernels.base import Kernel


class OneDNNLinear(Kernel):
    """Replaces torch's Linear with `Linear`."""

    name = "linear"

    def applies(self, device: torch.device) -> bool:
        return device.type == "cpu" and onednn_is_faster(capabilities())

    def install(self, model: Any) -> None:
        """Turn every torch Linear into `Linear`; weights, hooks and names are unchanged."""
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = Linear


def uses_onednn_linear(model: nn.Module) -> bool:
    """Whether the model has `Linear` layers."""
    return any(isinstance(module, Linear) for module in model.modules())


def capabilities() -> Mapping[str, Any]:
    """Return torch's capabilities of this processor, by name; empty if torch is too old."""
    reported: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return reported


def onednn_is_faster(processor: Mapping[str, Any]) -> bool:
    """Whether oneDNN multiplies fp32 matrices faster than MKL on a processor with these capabilities.

    False if this torch lacks MKL, oneDNN, or the operator that calls oneDNN.
    """
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not libraries or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return bool(processor.get("avx512_f")) and "intel" not in str(processor.get("cpu_name", "intel")).lower()


def multiply(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute a @ b.T + bias by oneDNN, without autograd: a (..., i), b (j, i), bias (j,), in fp32 on the CPU."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    """A linear layer with its three products by oneDNN."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Compute the output, and save input and weight."""
        ctx.save_for_backward(input, weight)
        rows = multiply(input.reshape(-1, input.shape[-1]), weight, bias)
        # No view, since models such as Longformer change the output in place, which autograd refuses for views.
        output: torch.Tensor = torch.ops.aten._unsafe_view(rows, [*input.shape[:-1], weight.shape[0]])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Compute the required gradients of input, weight and bias."""
        (grad,), (input, weight) = grads, ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            multiply(rows.t(), input.reshape(-1, input.shape[-1]).t()) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


class Linear(nn.Linear):
    """torch's Linear, with oneDNN for fp32 matrices on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out); as torch does for other dtypes, under autocast and on other devices."""
        is_fp32 = input.dtype == self.weight.dtype == torch.float32 and input.numel() > 0
        if not is_fp32 or input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if not torch.is_grad_enabled():
            return multiply(input, self.weight, self.bias)
        product: torch.Tensor = _Linear.apply(input, self.weight, self.bias)
        return product

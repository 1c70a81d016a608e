"""Dropout and linear layers that are faster than torch's on a CPU. They take the place of torch's in a stock model."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Dropout rates are multiples of 1/256: a byte is drawn for each entry.
_LEVELS = 1 << 8


def replace_layers(model: nn.Module, off: Container[str] = ()) -> list[str]:
    """Turn each Dropout and Linear of torch's into the one here, where that is faster, and return the kernels' names.

    Weights, names, hooks and modes stay: only the class of the module changes.
    """
    kernels: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {"dropout": (nn.Dropout, Dropout)}
    if onednn_is_faster(capabilities()):
        kernels["linear"] = (nn.Linear, Linear)
    names = [name for name in kernels if name not in off]
    for name in names:
        stock, own = kernels[name]
        for module in model.modules():
            if type(module) is stock:
                module.__class__ = own
    return names


class Dropout(nn.Dropout):
    """torch's Dropout (Srivastava et al., 2014), but 64 random bits serve eight entries; torch draws a double for each.

    The bits come from torch's generator: a seed determines them, and a layer that is recomputed for the backward pass
    repeats them.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        mask, scale = draw_mask(input.shape, self.p, input.dtype)
        return input * mask.mul_(scale)


def draw_mask(shape: Sequence[int], rate: float, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Draw a mask on the CPU, 0 with probability `rate`, else 1; return it and the scale of kept entries.

    The rate, up to 255/256, is rounded at random to a multiple of 1/256, so that its expectation is exact. Kept entries
    are scaled by the drawn share, which keeps the mean.
    """
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8 + 1, dtype=torch.int64).random_(-(1 << 63), None)
    chance = int(words[-1]) / (1 << 64) + 0.5
    dropped = min(math.floor(rate * _LEVELS + chance), _LEVELS - 1)
    eight = words.view(torch.int8)[:count].view(*shape)
    # Directly into `dtype`: comparing to bools and casting takes six times as long.
    mask = torch.ge(eight, dropped - _LEVELS // 2, out=torch.empty(shape, dtype=dtype))
    return mask, _LEVELS / (_LEVELS - dropped)


def capabilities() -> Mapping[str, Any]:
    """torch's names for what this processor can do; empty if torch is too old to tell."""
    reported: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return reported


def onednn_is_faster(processor: Mapping[str, Any]) -> bool:
    """Whether oneDNN multiplies fp32 matrices faster than MKL, torch's choice, on a processor with these capabilities.

    MKL runs AVX2 code on AVX-512 processors that are not Intel's. oneDNN uses AVX-512 there: 1.7 to 2.3 times as fast
    on a Zen 5. False if this torch lacks MKL, oneDNN, or the operator that calls oneDNN.
    """
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not libraries or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return bool(processor.get("avx512_f")) and "intel" not in str(processor.get("cpu_name", "intel")).lower()


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a @ b.T + bias by oneDNN, without autograd: a (..., i), b (j, i), bias (j,), in fp32 on the CPU."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product


class Linear(nn.Linear):
    """torch's Linear, with oneDNN for fp32 matrices on a CPU. Only the order of summation differs."""

    def forward(self, input: Tensor) -> Tensor:
        is_fp32 = input.dtype == self.weight.dtype == torch.float32 and input.numel() > 0
        if not is_fp32 or input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if not torch.is_grad_enabled():
            return multiply(input, self.weight, self.bias)
        product: Tensor = _Multiply.apply(input, self.weight, self.bias)
        return product


class _Multiply(torch.autograd.Function):
    """A linear layer's three products: the output, and the gradients of input and weight."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        rows = multiply(input.reshape(-1, input.shape[-1]), weight, bias)
        # No view, since models such as Longformer change the output in place, which autograd refuses for views.
        output: Tensor = torch.ops.aten._unsafe_view(rows, [*input.shape[:-1], weight.shape[0]])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (input, weight) = grads, ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            multiply(rows.t(), input.reshape(-1, input.shape[-1]).t()) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )

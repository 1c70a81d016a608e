"""Weights in half precision, and the fp32 master weights that an optimizer updates instead of them.

Micikevicius et al., 2018, "Mixed Precision Training", section 3.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from classify.modeling.precision import Precision


class MasterWeights(dict[nn.Parameter, nn.Parameter]):
    """The fp32 master of each half weight that has one. Without masters every method does nothing.

    Masters of trained weights are on the weight's device, those of frozen ones in main memory.
    """

    def of(self, weight: nn.Parameter) -> nn.Parameter:
        """The parameter that holds a weight's exact values: its master, or itself."""
        return self.get(weight, weight)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Move each weight's gradient to its master, added in fp32."""
        for weight, master in self.items():
            if weight.grad is not None:
                wide = weight.grad.to(master.dtype)
                master.grad = wide if master.grad is None else master.grad.add_(wide)
                weight.grad = None

    @torch.no_grad()
    def round_into_weights(self) -> None:
        """Round the masters of trained weights into them."""
        trained = {weight: master for weight, master in self.items() if master.requires_grad}
        if trained:
            torch._foreach_copy_(tuple(trained), tuple(trained.values()))

    def clear_gradients(self) -> None:
        for weight in self:
            weight.grad = None


def cast_to_half(model: nn.Module, precision: Precision) -> MasterWeights:
    """Cast a model's weights to half precision at levels 2 and 3; return the masters, if any.

    At level 2 all weights have a master, and the norms stay in fp32 with half-precision outputs. At level 3 only
    frozen weights have one, so that rounding does not change them permanently.
    """
    masters = MasterWeights()
    if not precision.rounds_weights:
        return masters
    norms = [module for module in model.modules() if _is_norm(module)] if precision.level == 2 else []
    for norm in norms:
        norm.output_dtype = precision.half_dtype  # type: ignore[assignment]
        norm.register_forward_pre_hook(_widen)
        norm.register_forward_hook(_narrow)
    in_fp32 = {id(parameter) for norm in norms for parameter in norm.parameters()}
    for parameter in model.parameters():
        if id(parameter) in in_fp32:
            continue
        if not parameter.requires_grad:
            masters[parameter] = nn.Parameter(parameter.detach().to("cpu", copy=True), requires_grad=False)
        elif precision.level == 2:
            masters[parameter] = nn.Parameter(parameter.detach().clone())
        parameter.data = parameter.data.to(precision.half_dtype)
    return masters


def restore_fp32(model: nn.Module, masters: MasterWeights) -> None:
    """Undo `cast_to_half`: restore fp32 weights, from masters where they exist."""
    for parameter in model.parameters():
        parameter.data = masters.of(parameter).data.to(parameter.device, torch.float32)
    for module in model.modules():
        if _is_norm(module):
            module.output_dtype = None  # type: ignore[assignment]


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.modules.batchnorm._NormBase) or type(module).__name__.endswith("Norm")


def _widen(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the input of a norm to fp32 (forward pre-hook)."""
    return tuple(arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args)


def _narrow(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    """Cast the output of a norm to the dtype of the other weights (forward hook)."""
    return output if module.output_dtype is None else output.to(module.output_dtype)

"""Weights in half precision while training (Apex's O2 and O3): the optimizer updates fp32 masters.

Micikevicius et al., 2018, "Mixed Precision Training", section 3.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from classify.modeling.classifier import Classifier
from classify.training.weights import Tensors, Weights


class MasterWeights(Weights):
    """Casts a model to half precision, with fp32 masters by weight.

    At O2 all weights have a master, and norms stay in fp32 with half-precision outputs. At O3 only frozen weights have
    one, in main memory, so that rounding does not change them permanently.
    """

    def __init__(self, classifier: Classifier):
        super().__init__(classifier)
        self.masters: dict[nn.Parameter, nn.Parameter] = {}
        self._hooks: list[Any] = []
        precision = classifier.precision
        norms = [module for module in self.model.modules() if _is_norm(module)] if precision.level == 2 else []
        for norm in norms:
            self._hooks.append(norm.register_forward_pre_hook(lambda _, args: tuple(arg.float() for arg in args)))
            self._hooks.append(norm.register_forward_hook(lambda _, __, output: output.to(precision.half_dtype)))
        in_fp32 = {parameter for norm in norms for parameter in norm.parameters()}
        for parameter in (one for one in self.model.parameters() if one not in in_fp32):
            if precision.level == 2 or not parameter.requires_grad:
                device = parameter.device if parameter.requires_grad else "cpu"
                master = parameter.detach().to(device, copy=True)
                self.masters[parameter] = nn.Parameter(master, requires_grad=parameter.requires_grad)
            parameter.data = parameter.data.to(precision.half_dtype)
        classifier.use_autocast(False)

    def named(self) -> Tensors:
        return {name: self.masters.get(weight, weight) for name, weight in self.model.named_parameters()}

    @torch.no_grad()
    def load(self, tensors: Tensors) -> None:
        super().load(tensors)
        for name, weight in self.model.named_parameters():
            if weight in self.masters:
                self.masters[weight].copy_(tensors[name])

    def take_gradients(self) -> None:
        """Add the gradients to the masters' in fp32: a sum of micro-batches in half precision would lose digits."""
        for weight, master in self.masters.items():
            if weight.grad is not None:
                wide = weight.grad.to(master.dtype)
                master.grad = wide if master.grad is None else master.grad.add_(wide)
                weight.grad = None

    @torch.no_grad()
    def round(self) -> None:
        """Round the masters of trained weights into them."""
        trained = {weight: master for weight, master in self.masters.items() if master.requires_grad}
        if trained:
            torch._foreach_copy_(tuple(trained), tuple(trained.values()))

    def restore(self) -> Weights:
        for parameter in self.model.parameters():
            parameter.data = self.masters.get(parameter, parameter).data.to(parameter.device, torch.float32)
        for hook in self._hooks:
            hook.remove()
        self.classifier.use_autocast(True)
        return Weights(self.classifier)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.modules.batchnorm._NormBase) or type(module).__name__.endswith("Norm")

"""Weights in half precision while training (Apex's O2 and O3): the optimizer updates fp32 masters.

Micikevicius et al., 2018, "Mixed Precision Training", section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.training.strategies.base import Strategy
from classify.training.strategies.named_state import Tensors


class WithHalfWeights(Strategy):
    """Cast weights before they are wrapped, and keep fp32 masters by weight.

    At O2 all weights have a master, and norms stay in fp32 with half-precision outputs. At O3 only frozen weights have
    one, in main memory, so that rounding does not change them permanently.
    """

    def __init__(self, classifier: Classifier, config: TrainingConfig, world: World):
        super().__init__(classifier, config, world)
        self.masters: dict[nn.Parameter, nn.Parameter] = {}
        self._hooks: list[Any] = []

    @staticmethod
    def applies(classifier: Classifier, config: TrainingConfig, world: World) -> bool:
        return classifier.precision.rounds_weights

    def wrap(self, classifier: nn.Module) -> nn.Module:
        model, precision = self.classifier.model, self.classifier.precision
        norms = [module for module in model.modules() if _is_norm(module)] if precision.level == 2 else []
        for norm in norms:
            self._hooks.append(norm.register_forward_pre_hook(lambda _, args: tuple(arg.float() for arg in args)))
            self._hooks.append(norm.register_forward_hook(lambda _, __, output: output.to(precision.half_dtype)))
        in_fp32 = {parameter for norm in norms for parameter in norm.parameters()}
        for parameter in (one for one in model.parameters() if one not in in_fp32):
            if precision.level == 2 or not parameter.requires_grad:
                device = parameter.device if parameter.requires_grad else "cpu"
                master = parameter.detach().to(device, copy=True)
                self.masters[parameter] = nn.Parameter(master, requires_grad=parameter.requires_grad)
            parameter.data = parameter.data.to(precision.half_dtype)
        self.classifier.use_autocast(False)
        return super().wrap(classifier)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Move the gradients to the masters, added in fp32; DistributedDataParallel needs them until the last pass."""
        super().backward(loss, last)
        if last or not self.world.distributed:
            self._move_gradients()

    def _move_gradients(self) -> None:
        for weight, master in self.masters.items():
            if weight.grad is not None:
                wide = weight.grad.to(master.dtype)
                master.grad = wide if master.grad is None else master.grad.add_(wide)
                weight.grad = None

    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        self._round()
        return norm

    @torch.no_grad()
    def _round(self) -> None:
        """Round the masters of trained weights into them."""
        trained = {weight: master for weight, master in self.masters.items() if master.requires_grad}
        if trained:
            torch._foreach_copy_(tuple(trained), tuple(trained.values()))

    def clear_gradients(self) -> None:
        super().clear_gradients()
        for weight in self.masters:
            weight.grad = None

    def named_weights(self) -> Mapping[str, torch.Tensor]:
        return {name: self.masters.get(weight, weight) for name, weight in self.classifier.model.named_parameters()}

    def set_output_layer(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().set_output_layer(weight, bias)
        self._round()

    @torch.no_grad()
    def load_weights(self, tensors: Tensors) -> None:
        super().load_weights(tensors)
        for name, weight in self.classifier.model.named_parameters():
            if weight in self.masters:
                self.masters[weight].copy_(tensors[name])

    def end_training(self) -> None:
        """Restore fp32 weights from the masters."""
        for parameter in self.classifier.model.parameters():
            parameter.data = self.masters.get(parameter, parameter).data.to(parameter.device, torch.float32)
        for hook in self._hooks:
            hook.remove()
        self.masters, self._hooks = {}, []
        self.classifier.use_autocast(True)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.modules.batchnorm._NormBase) or type(module).__name__.endswith("Norm")

"""Weights in half precision while training (Apex's O2 and O3): the optimizer updates fp32 masters.

Micikevicius et al., 2018, "Mixed Precision Training", section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.modeling.half_weights import MasterWeights
from classify.training.strategies.base import Strategy
from classify.training.strategies.named_state import Tensors


class WithHalfWeights(Strategy):
    """Cast weights before they are wrapped, and keep a master of each."""

    masters = MasterWeights()

    @staticmethod
    def applies(classifier: Classifier, config: TrainingConfig, world: World) -> bool:
        return classifier.precision.rounds_weights

    def wrap(self, classifier: nn.Module) -> nn.Module:
        self.masters = self.classifier.cast_to_half()
        return super().wrap(classifier)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Move the gradients to the masters; DistributedDataParallel needs them in place until the last pass."""
        super().backward(loss, last)
        if last or not self.world.distributed:
            self.masters.add_gradients()

    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        self.masters.round_into_weights()
        return norm

    def clear_gradients(self) -> None:
        super().clear_gradients()
        self.masters.clear_gradients()

    def named_weights(self) -> Mapping[str, torch.Tensor]:
        return {name: self.masters.of(weight) for name, weight in self.classifier.model.named_parameters()}

    def set_output_layer(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().set_output_layer(weight, bias)
        self.masters.round_into_weights()

    @torch.no_grad()
    def load_weights(self, tensors: Tensors) -> None:
        super().load_weights(tensors)
        for name, weight in self.classifier.model.named_parameters():
            if (master := self.masters.get(weight)) is not None:
                master.copy_(tensors[name])

    def end_training(self) -> None:
        """Restore fp32 weights from the masters."""
        self.classifier.restore_fp32(self.masters)
        self.masters = MasterWeights()

"""Devices that record operations and run them only when flushed, such as XLA's."""

from __future__ import annotations

import torch

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.training.strategies.base import Strategy


class WithLazyDevice(Strategy):
    """Run what is recorded after each backward pass, and after each step."""

    @staticmethod
    def applies(classifier: Classifier, config: TrainingConfig, world: World) -> bool:
        return world.accelerator.compiles

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        super().backward(loss, last)
        self.world.accelerator.flush()

    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        self.world.accelerator.flush()
        return norm

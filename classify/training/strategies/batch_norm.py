"""Models with BatchNorm: its statistics over all ranks (--sync-batch-norm), and of each step once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from classify.config.schema import TrainingConfig
from classify.distributed import batch_norm
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.training.parts import OptimizerFactory
from classify.training.strategies.base import Placement, Strategy


class WithBatchNorm(Strategy):
    """Synchronize the layers where requested, and restore the running statistics of passes that do not count."""

    @staticmethod
    def applies(classifier: Classifier, config: TrainingConfig, world: World) -> bool:
        return bool(batch_norm.layers(classifier))

    def __init__(
        self,
        classifier: Classifier,
        config: TrainingConfig,
        world: World,
        placed: Placement | None = None,
        optimizer: OptimizerFactory | None = None,
    ):
        super().__init__(classifier, config, world, placed, optimizer)
        self._statistics: list[torch.Tensor] | None = None
        self._synchronized = config.sync_batch_norm and world.distributed
        self.forward_is_collective |= self._synchronized

    def wrap(self, classifier: nn.Module) -> nn.Module:
        if self._synchronized:
            batch_norm.synchronize(classifier)
        module = super().wrap(classifier)
        if isinstance(module, DistributedDataParallel):
            # An attribute, because the argument has another name from torch 2.13 on.
            module.broadcast_buffers = True
        return module

    def reset_optimizer(self) -> None:
        self._statistics = None
        super().reset_optimizer()

    @contextlib.contextmanager
    def accumulate(self, last: bool, *, counted: bool = True) -> Iterator[None]:
        if self._statistics is None:  # the first pass since the last step
            self._statistics = [buffer.clone() for buffer in self._buffers()]
        with super().accumulate(last, counted=counted), batch_norm.count_inputs(self.classifier, counted):
            yield

    def optimizer_step(self) -> torch.Tensor:
        self._statistics = None
        return super().optimizer_step()

    def clear_gradients(self) -> None:
        """Restore the statistics from before the passes, too."""
        super().clear_gradients()
        for buffer, value in zip(self._buffers(), self._statistics or (), strict=self._statistics is not None):
            buffer.copy_(value)

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for layer in batch_norm.layers(self.classifier) for buffer in layer.buffers(recurse=False)]

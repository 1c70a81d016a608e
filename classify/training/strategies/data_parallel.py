"""torch's DataParallel: one process copies the model to all its devices at every step and splits the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from classify.modeling.packing import Batch
from classify.training.strategies.base import Strategy


class BatchDataParallel(DataParallel):
    """DataParallel over ready-made batches: one whole micro-batch per replica, outputs gathered in order.

    torch's own scatter cuts tensors along dimension 0, where a packed batch has size 1.
    """

    def scatter(self, inputs: tuple[Any, ...], kwargs: Any, device_ids: Any) -> Any:
        """Move one batch to each device; `inputs` holds a list of at most as many batches as there are devices."""
        (batches,) = inputs
        moved = [
            (batch.to(torch.device(self.src_device_obj.type, i)),)
            for batch, i in zip(batches, device_ids, strict=False)
        ]
        return moved, [kwargs for _ in moved]


class DataParallelStrategy(Strategy):
    """One process drives all devices."""

    def wrap(self, classifier: nn.Module) -> nn.Module:
        return BatchDataParallel(classifier, device_ids=list(range(self.world.replicas)), output_device=0)

    def forward(self, batches: list[Batch], *, features: bool = False) -> torch.Tensor:
        return self.module(batches, features=features)

"""torch's DataParallel: one process copies the model to all its devices at every step and cuts the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from classify.modeling.packing import Batch
from classify.training.strategies.base import Strategy


class BatchDataParallel(DataParallel):
    """DataParallel over ready-made batches: one whole micro-batch a replica, logits gathered in order.

    torch's own scatter cuts tensors along dimension 0, where a packed batch has size 1.
    """

    def scatter(self, inputs: tuple[Any, ...], kwargs: Any, device_ids: Any) -> Any:
        """`inputs` holds one list with a batch per replica, at most as many as there are devices."""
        (batches,) = inputs
        moved = [
            (batch.to(torch.device(self.src_device_obj.type, i)),)
            for batch, i in zip(batches, device_ids, strict=False)
        ]
        return moved, [{} for _ in moved]


class DataParallelStrategy(Strategy):
    """One process drives all devices."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module that forward passes go through."""
        return BatchDataParallel(model, device_ids=list(range(self.world.replicas)), output_device=0)

    def forward(self, batches: list[Batch]) -> torch.Tensor:
        """Logits of a micro-batch, one batch a replica, concatenated in order."""
        return self.module(batches)

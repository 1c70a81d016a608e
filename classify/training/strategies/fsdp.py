"""FSDP2: weights, gradients and optimizer state sharded over the ranks; a layer is gathered only while it is computed.

Zhao et al., 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"; the form here is torch's
`fully_shard`, which cuts each parameter along its first dimension and leaves module names as they are. Gradients are
exchanged after every micro-batch: FSDP exists to avoid keeping whole ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from classify.distributed.sharding import repeated_layers
from classify.training.strategies.base import Strategy


class FSDPStrategy(Strategy):
    """One process per device; together they hold one model."""

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Shard a model in place, each repeated layer by itself and the rest together."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.world.broadcast_parameters(classifier)  # as DistributedDataParallel does: all start from the same bits
        mesh = init_device_mesh(self.world.device.type, (self.world.world_size,))
        for layer in repeated_layers(classifier):
            fully_shard(layer, mesh=mesh)
        fully_shard(classifier, mesh=mesh)
        return classifier

    @property
    def forward_is_collective(self) -> bool:
        """Return True: the ranks gather each layer in every pass."""
        return True

    def reshard(self) -> None:
        """Reshard the outermost parameters, which stay gathered after a forward pass."""
        module: Any = self.module
        module.reshard()

    def contrastive_backward(self, loss: torch.Tensor) -> None:
        """Add gradients, which backward passes average over the ranks: so they are scaled to their sum."""
        super().contrastive_backward(loss * self.world.world_size)

    def sum_contrastive_gradients(self) -> None:
        """Do nothing: backward passes have exchanged the gradients."""

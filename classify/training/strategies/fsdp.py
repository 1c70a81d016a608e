"""FSDP2: weights, gradients and optimizer state sharded over the ranks; a layer is gathered only while it is computed.

Zhao et al., 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"; the form here is torch's
`fully_shard`, which cuts each parameter along its first dimension and leaves module names as they are. Gradients are
exchanged after every micro-batch: FSDP exists to avoid keeping whole ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from classify.modeling.layers import repeated_layers
from classify.training.strategies.base import Strategy
from classify.training.weights import Tensors, Weights


class FSDPStrategy(Strategy):
    """One process per device; together they hold one model."""

    forward_is_collective = True  # the ranks gather each layer in every pass
    averages_each_pass = True

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Shard a model in place, each repeated layer by itself and the rest together."""
        for parameter in classifier.parameters():  # as DistributedDataParallel does: all start from the same bits
            torch.distributed.broadcast(parameter.data, src=0)
        mesh = init_device_mesh(self.world.device.type, (self.world.world_size,))
        for layer in repeated_layers(classifier):
            fully_shard(layer, mesh=mesh)
        fully_shard(classifier, mesh=mesh)
        self.weights = ShardedWeights(self.classifier)
        return classifier


class ShardedWeights(Weights):
    """Each rank's shards."""

    def named(self) -> Tensors:
        """Shard again first: the outermost parameters stay gathered after a forward pass."""
        module: Any = self.classifier  # `fully_shard` has given it methods
        module.reshard()
        return super().named()

"""Make the strategy that the device plan names."""

from __future__ import annotations

import importlib

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.modeling.packing import MOST_ROUNDED
from classify.training.strategies.base import Strategy
from classify.training.strategies.cuda_graphs import GraphDDPStrategy, GraphStrategy, explain_no_graphs


def make_strategy(classifier: Classifier, config: TrainingConfig, world: World, step_tokens: float = 0.0) -> Strategy:
    """Make the strategy for a model that is placed, and whose precision is set.

    Where passes of about `step_tokens` over all ranks can be recorded as CUDA graphs, they are. A collective.
    """
    records = world.plan.spec.records_graphs and explain_no_graphs(classifier, config, world.device) is None
    if not world.distributed:
        return (GraphStrategy if records else find_strategy(world))(classifier, config, world)
    # GPUs of other ranks may lack what it takes, and all ranks must exchange gradients in one way.
    may_record = world.accelerator.records_graphs and step_tokens <= MOST_ROUNDED * world.world_size
    if may_record and not world.all_reduce_any(not records):
        return GraphDDPStrategy(classifier, config, world)
    return find_strategy(world)(classifier, config, world)


def find_strategy(world: World) -> type[Strategy]:
    """Find the class that the device plan names, which places the model before `make_strategy` is called."""
    module, name = world.plan.spec.implementation
    # Imported here, since FSDP2 takes half a second.
    implementation: type[Strategy] = getattr(importlib.import_module(f"classify.training.strategies.{module}"), name)
    return implementation

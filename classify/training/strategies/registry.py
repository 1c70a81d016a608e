"""Make the strategy that the device plan names."""

from __future__ import annotations

import importlib

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.training.strategies.base import Strategy
from classify.training.strategies.cuda_graphs import GraphStrategy, graphs_apply


def make_strategy(classifier: Classifier, config: TrainingConfig, world: World) -> Strategy:
    """Make the strategy for a model that is placed, and whose precision is set; on one device with CUDA graphs."""
    records = world.plan.spec.records_graphs and graphs_apply(classifier, config, world.device)
    return (GraphStrategy if records else find_strategy(world))(classifier, config, world)


def find_strategy(world: World) -> type[Strategy]:
    """Find the class that the device plan names, which places the model before `make_strategy` is called."""
    module, name = world.plan.spec.implementation
    # Imported here, since FSDP2 takes half a second.
    implementation: type[Strategy] = getattr(importlib.import_module(f"classify.training.strategies.{module}"), name)
    return implementation

"""Make the strategy that the device plan names, with what the model, precision and device add to it."""

from __future__ import annotations

import importlib

from classify.config.schema import TrainingConfig
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.training.strategies.base import Strategy
from classify.training.strategies.cuda_graphs import WithGraphs
from classify.training.strategies.half_weights import WithHalfWeights
from classify.training.strategies.lazy import WithLazyDevice

# Modules and classes, imported where they are used: FSDP2 takes half a second.
_IMPLEMENTATIONS = {
    "none": ("base", "Strategy"),
    "dp": ("data_parallel", "DataParallelStrategy"),
    "ddp": ("ddp", "DDPStrategy"),
    "fsdp": ("fsdp", "FSDPStrategy"),
    "model": ("model", "ModelStrategy"),
}
# Each overrides some methods of the strategy and calls the original; the first one outermost.
_ADDED = (WithLazyDevice, WithHalfWeights, WithGraphs)


def make_strategy(classifier: Classifier, config: TrainingConfig, world: World) -> Strategy:
    """Make the strategy for a model that is placed, and whose precision is set."""
    plain = find_strategy(world)
    added = tuple(extra for extra in _ADDED if extra.applies(classifier, config, world))
    strategy: type[Strategy] = type(plain.__name__, (*added, plain), {}) if added else plain
    return strategy(classifier, config, world)


def find_strategy(world: World) -> type[Strategy]:
    """The class that the device plan names."""
    module, name = _IMPLEMENTATIONS[world.plan.strategy]
    implementation: type[Strategy] = getattr(importlib.import_module(f"classify.training.strategies.{module}"), name)
    return implementation

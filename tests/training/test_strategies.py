"""The registry of strategies: each one that the flags offer is implemented."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from classify.distributed.world import World
from classify.launch.device_plan import plan_alone
from classify.launch.strategies import STRATEGIES
from classify.training.strategies.base import Strategy
from classify.training.strategies.registry import find_strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_is_implemented(name: str) -> None:
    plan = replace(plan_alone(True), strategy=name)
    assert issubclass(find_strategy(World(plan, torch.device("cpu"))), Strategy)

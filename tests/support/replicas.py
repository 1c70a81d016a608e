"""Two replicas of DataParallel on the CPU, made, run and gathered as torch does it on devices.

Only the copying to devices is replaced. Replicas are what `torch.nn.parallel.replicate` makes (shallow copies of every
module whose parameters are clones with a gradient back to the original) and run in threads of their own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from classify.distributed.world import World
from classify.launch.launch import Launch
from classify.launch.plan import Hardware, ParallelMode, plan_devices
from classify.training.strategies import data_parallel
from classify.training.strategies.data_parallel import BatchDataParallel


def replica_of(network: nn.Module) -> nn.Module:
    """What torch's replicate makes of a module for one device; the clones stand for the broadcast parameters."""
    clones = {parameter: parameter.clone() for parameter in network.parameters()}
    modules: Any = list(network.modules())
    copies = {module: module._replicate_for_data_parallel() for module in modules}
    for module, copy in copies.items():
        for name, child in module._modules.items():
            if child is not None:
                setattr(copy, name, copies[child])
        for name, parameter in module._parameters.items():
            if parameter is not None:
                setattr(copy, name, clones[parameter])
    return copies[network]


class TwoReplicas(nn.Module):
    """BatchDataParallel on two devices that do not exist."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.sizes: list[list[int]] = []

    def forward(self, batches: list[Any], *, features: bool) -> torch.Tensor:
        stand_in: Any = type("Devices", (), {"src_device_obj": torch.device("cpu")})
        inputs, _ = BatchDataParallel.scatter(stand_in, (batches,), None, [0, 1])
        replicas = [replica_of(self.module) for _ in inputs]
        enabled = torch.is_grad_enabled()

        def run(replica: nn.Module, batch: Any) -> torch.Tensor:
            with torch.set_grad_enabled(enabled):  # as torch's parallel_apply does: threads do not inherit it
                return replica(batch, features=features)

        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(run, replicas, (one for (one,) in inputs)))
        self.sizes.append([len(part) for part in parts])
        return torch.cat(parts)


def two_device_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A process that drives two devices."""
    monkeypatch.setattr(data_parallel, "BatchDataParallel", lambda model, **_: TwoReplicas(model))
    plan = plan_devices(Launch(), Hardware("cuda", 2))
    assert (plan.parallel_mode, plan.n_gpu) == (ParallelMode.NOT_DISTRIBUTED, 2)
    place = {"machine": 0, "rank": 0, "local_rank": -1, "device": "cuda:0"}
    return World(plan, torch.device("cpu"), topology=[place])

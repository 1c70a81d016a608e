"""The strategies by name: what each needs and can do, for flags' checks and the device plan. Nothing here takes torch.

What a strategy does to a model stands in its own file below `classify.training.strategies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StrategySpec:
    """What a way of using devices needs and can do.

    `implementation` is "module:class" below `classify.training.strategies`. `processes` says whether one process drives
    the devices, or each has its own. `name_for_people` is what PyTorch calls it. `splits` names the parts of a step's
    memory that are divided over the devices (see `Need.divided`).
    """

    implementation: str
    processes: Literal["one", "one a device"]
    name_for_people: str
    splits: tuple[str, ...] = ()
    # Whether each device holds all weights, and the optimizer's state of all.
    whole_model: bool = True
    # Whether a step may be cut into more micro-batches than were asked for, to stay within a CPU's caches.
    cuts_steps: bool = False
    takes_half_weights: bool = True
    takes_lora: bool = True
    takes_memory_budget: bool = False
    needs_own_backend: bool = False

    @property
    def spreads_layers(self) -> bool:
        """Whether the devices of one process hold one model together, and compute a row one after the other."""
        return self.processes == "one" and "weights" in self.splits

    @property
    def splits_weights(self) -> bool:
        """Whether the ranks hold one model together."""
        return self.processes == "one a device" and "weights" in self.splits


STRATEGIES = {
    "none": StrategySpec("base:Strategy", "one", "one device", cuts_steps=True),
    "dp": StrategySpec("data_parallel:DataParallelStrategy", "one", "DataParallel"),
    "ddp": StrategySpec("ddp:DDPStrategy", "one a device", "DistributedDataParallel", cuts_steps=True),
    "fsdp": StrategySpec(
        "fsdp:FSDPStrategy",
        "one a device",
        "FSDP2",
        splits=("weights", "gradients", "optimizer"),
        whole_model=False,
        takes_half_weights=False,
        takes_lora=False,
        needs_own_backend=True,
    ),
    "model": StrategySpec(
        "device_map:DeviceMapStrategy",
        "one",
        "model parallel",
        splits=("weights", "gradients", "optimizer", "activations"),
        takes_half_weights=False,
        takes_memory_budget=True,
    ),
}

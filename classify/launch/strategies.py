"""Properties of each strategy, for flag checks and the device plan, without torch.

`classify.training.strategies.registry` names the implementations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StrategySpec:
    """Properties of a strategy.

    `processes`: one process for all devices, or one per device. `display_name` is PyTorch's name. `splits` names what
    is divided over the devices.
    """

    processes: Literal["one", "one per device"]
    display_name: str
    splits: tuple[str, ...] = ()
    # One process copies the model to each of its devices.
    replicates_model: bool = False
    # A step may have more micro-batches than requested, to stay within a CPU's caches.
    may_split_steps: bool = False
    # Passes may be recorded as CUDA graphs.
    records_graphs: bool = False
    takes_half_weights: bool = True
    takes_lora: bool = True
    needs_own_backend: bool = False

    @property
    def spreads_layers(self) -> bool:
        """Whether one process spreads the layers over its devices, which compute one after the other."""
        return self.processes == "one" and "weights" in self.splits

    @property
    def shards_weights(self) -> bool:
        return self.processes == "one per device" and "weights" in self.splits


STRATEGIES = {
    "none": StrategySpec("one", "one device", may_split_steps=True, records_graphs=True),
    "dp": StrategySpec("one", "DataParallel", replicates_model=True),
    "ddp": StrategySpec("one per device", "DistributedDataParallel", may_split_steps=True),
    "fsdp": StrategySpec(
        "one per device",
        "FSDP2",
        splits=("weights",),
        takes_half_weights=False,
        takes_lora=False,
        needs_own_backend=True,
    ),
    "model": StrategySpec("one", "model parallelism", splits=("weights",), takes_half_weights=False),
}


def default_strategy(*, launched: bool, devices: int) -> str:
    """Resolve "auto": DDP under a launcher, else DataParallel on several `devices` of one process."""
    return "ddp" if launched else "dp" if devices > 1 else "none"

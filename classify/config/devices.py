"""Where to compute and how exactly: the part of `TrainingConfig` about devices, and its answers about this process."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from classify.config.fields import above, at_least, option
from classify.launch.strategies import STRATEGIES, StrategySpec

if TYPE_CHECKING:
    import torch

    from classify.distributed.world import World
    from classify.launch.device_plan import DevicePlan, ParallelMode


@dataclass(frozen=True)
class DeviceConfig:
    """Devices, processes, how they work together, precision; the properties are those of TrainingArguments."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = option(
        "auto",
        "arithmetic of the model; auto: bf16 on GPUs that have it and to train on CPUs that have it, else fp32",
        "--precision",
    )
    opt_level: Literal["O0", "O1", "O2", "O3"] | None = option(
        None,
        "Apex's names: O0 fp32, O1 autocast, O2 half weights with fp32 masters and norms, O3 half throughout; half is "
        "fp16, on CPUs bf16",
        "--opt-level",
        "--fp16-opt-level",
        learning=True,
    )
    use_cpu: bool = option(False, "leave GPUs alone", "--cpu", "--use-cpu", "--no-cuda")
    nproc: int | Literal["gpu"] | None = option(
        None, "start this many processes here (gpu: one a GPU); no torchrun needed", "--nproc", check=above(0)
    )
    strategy: Literal["auto", "none", "dp", "ddp", "fsdp", "model"] = option(
        "auto",
        "how several devices work together: DataParallel (dp), DistributedDataParallel (ddp), each holds a part of "
        "the weights (fsdp), or one process spreads the layers over devices, memory and disk (model)",
        "--strategy",
        learning=True,
    )
    device_memory: float | None = option(
        None,
        "GiB that --strategy model may use of each device; what is free if not given",
        "--device-memory",
        check=above(0),
    )
    sync_batch_norm: bool = option(
        False,
        "BatchNorm layers take their statistics from the rows of all processes",
        "--sync-batch-norm",
        "--sync-bn",
        learning=True,
    )
    ddp_backend: Literal["nccl", "gloo", "xccl", "hccl", "cncl", "mccl", "smddp"] | None = option(
        None, "how processes talk; nccl on GPUs, gloo on CPU if not given", "--ddp-backend"
    )
    local_rank: int = option(
        -1,
        "this process's number on its machine, set by a launcher; -1: not launched",
        "--local-rank",
        check=at_least(-1),
    )
    ddp_timeout: int = option(
        1800, "seconds a rank waits for the others before it gives up", "--ddp-timeout", check=above(0)
    )

    @functools.cached_property
    def device_plan(self) -> DevicePlan:
        """Device, parallel mode and strategy of this process, decided once. Imports torch."""
        from classify.launch.device_plan import plan_here

        return plan_here(self.use_cpu, self.local_rank, self.strategy, self.ddp_backend)

    def start(self) -> World:
        """Start the process group, and return this process's place in it."""
        from classify.distributed import process_group

        return process_group.start(self.device_plan, self.ddp_timeout)

    @functools.cached_property
    def _setup_devices(self) -> torch.device:
        """The device of this process, as `transformers.TrainingArguments._setup_devices` decides it."""
        import torch

        return torch.device(self.device_plan.device)

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._setup_devices

    @property
    def n_gpu(self) -> int:
        """Accelerators this process drives: 0 on CPU, 1 when launched, all of them under DataParallel."""
        return self.device_plan.n_gpu

    @property
    def parallel_mode(self) -> ParallelMode:
        """One device, several in one process (DataParallel), or one process per device (DDP)."""
        return self.device_plan.parallel_mode

    @property
    def world_size(self) -> int:
        """Processes that train together."""
        return self.device_plan.launch.world_size

    @property
    def process_index(self) -> int:
        """Global rank of this process."""
        return self.device_plan.launch.rank

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine; 0 where nothing was launched (`local_rank` is -1 then)."""
        return max(self.device_plan.launch.local_rank, 0)

    @property
    def strategy_spec(self) -> StrategySpec:
        """What the strategy asked for needs and can do; "auto", or a wrong name, is as undemanding as one device."""
        return STRATEGIES.get(str(self.strategy), STRATEGIES["none"])

    @property
    def fp16(self) -> bool:
        """Whether fp16 was given."""
        return self.precision == "fp16"

    @property
    def bf16(self) -> bool:
        """Whether bf16 was given."""
        return self.precision == "bf16"

"""Settings of devices, processes and precision: a part of `TrainingConfig`."""

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
    """Devices, processes, strategy and precision; the properties are those of `TrainingArguments`."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = option(
        "auto",
        "precision of the model; auto: bf16 for training where supported, else fp32; scores in fp32",
        "--precision",
        affects={"identity"},
        common=True,
    )
    opt_level: Literal["O0", "O1", "O2", "O3"] | None = option(
        None,
        "Apex's names: O0 fp32, O1 autocast, O2 half-precision weights, fp32 norms and master weights, O3 half "
        "precision throughout; half is fp16, or bf16 on CPUs and with --precision bf16",
        "--opt-level",
        "--fp16-opt-level",
        affects={"later steps"},
    )
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda", common=True)
    nproc: int | Literal["gpu"] | None = option(
        None,
        "processes to start on this machine (gpu: one per GPU), without torchrun",
        "--nproc",
        check=above(0),
        common=True,
    )
    strategy: Literal["auto", "none", "dp", "ddp", "fsdp", "model"] = option(
        "auto",
        "none: one device; dp: DataParallel; ddp: DistributedDataParallel; fsdp: sharded weights; model: one process, "
        "layers spread over its devices; auto: dp or none without a launcher, else ddp",
        "--strategy",
        affects={"computation"},
        common=True,
    )
    sync_batch_norm: bool = option(
        False,
        "compute BatchNorm statistics over the rows of all processes (torch's SyncBatchNorm; on GPUs)",
        "--sync-batch-norm",
        "--sync-bn",
        affects={"later steps"},
    )
    ddp_backend: Literal["nccl", "gloo", "xccl", "hccl", "cncl", "mccl", "smddp"] | None = option(
        None, "communication backend (default: nccl on GPUs, gloo on CPUs)", "--ddp-backend"
    )
    local_rank: int = option(
        -1,
        "rank of this process on its machine, set by a launcher; -1: not launched",
        "--local-rank",
        check=at_least(-1),
        restored=False,
    )
    ddp_timeout: int = option(600, "seconds a rank waits for the others", "--ddp-timeout", check=above(0))

    @functools.cached_property
    def device_plan(self) -> DevicePlan:
        """Return device, parallel mode and strategy of this process, decided once. Imports torch."""
        from classify.launch.device_plan import plan_here

        return plan_here(self.use_cpu, self.local_rank, self.strategy, self.ddp_backend)

    def start(self) -> World:
        """Start the process group and return this process's `World`."""
        from classify.distributed import process_group

        return process_group.start(self.device_plan, self.device, self.ddp_timeout)

    @functools.cached_property
    def _setup_devices(self) -> torch.device:
        """This process's device; named as in `transformers.TrainingArguments`."""
        import torch

        return torch.device(self.device_plan.device)

    @property
    def device(self) -> torch.device:
        return self._setup_devices

    @property
    def n_gpu(self) -> int:
        """The accelerators this process drives: 0 on CPU, 1 when launched, all under DataParallel."""
        return self.device_plan.n_gpu

    @property
    def parallel_mode(self) -> ParallelMode:
        """The mode: one device, several in one process (DataParallel), or one process per device (DDP)."""
        return self.device_plan.parallel_mode

    @property
    def world_size(self) -> int:
        return self.device_plan.launch.world_size

    @property
    def process_index(self) -> int:
        return self.device_plan.launch.rank

    @property
    def local_process_index(self) -> int:
        """The rank of this process on its machine; 0 where nothing was launched (`local_rank` is -1 then)."""
        return max(self.device_plan.launch.local_rank, 0)

    @property
    def strategy_spec(self) -> StrategySpec:
        """The strategy's properties; "auto", or an invalid name, has those of one device."""
        return STRATEGIES.get(str(self.strategy), STRATEGIES["none"])

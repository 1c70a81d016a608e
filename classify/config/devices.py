"""Settings of devices, processes and precision: a part of `TrainingConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from classify.config.fields import above, at_least, option
from classify.launch.devices import STRATEGIES, StrategySpec
from classify.launch.launch import Launch
from classify.launch.nproc import check_count
from classify.launch.plan import DevicePlan, Hardware, check_strategy, plan_devices


@dataclass(frozen=True)
class DeviceConfig:
    """Devices, processes, strategy and precision."""

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

    def _setup_devices(self, launch: Launch, hardware: Hardware | None = None) -> DevicePlan:
        """The device, parallel mode and strategy of the process in the place `launch`: a pure decision.

        Without `hardware` it is detected, which imports torch. Named as in `transformers.TrainingArguments`, which also
        starts the process group here; `classify.distributed.group.start` does that.
        """
        return plan_devices(launch, hardware, strategy=self.strategy, backend=self.ddp_backend, use_cpu=self.use_cpu)

    def check_start(self, launch: Launch) -> None:
        """Raise InputError where the flags contradict how this process was started. Needs no torch."""
        if self.nproc is not None and not launch.is_worker:
            check_count(self.nproc, launch)
            launch = Launch("nproc", local_rank=0)  # the place of each process that will be started
        check_strategy(launch, self.strategy, self.ddp_backend, self.use_cpu)

    @property
    def strategy_spec(self) -> StrategySpec:
        """The strategy's properties; "auto", or an invalid name, counts as one device."""
        return STRATEGIES.get(str(self.strategy), STRATEGIES["none"])

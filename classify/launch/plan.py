"""Decide device, parallel mode, strategy and threads of this process.

Given the hardware `plan_devices` is a pure function, so tests can plan any; `classify.distributed.group` carries it
out. torch is imported only to detect the hardware. The local rank chooses the device; the global rank 0 writes files,
since every machine has a local rank 0.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from classify.errors import DeviceError, InputError
from classify.findings import Finding, note
from classify.launch.devices import (
    ACCELERATORS,
    CPU_BACKENDS,
    GLOO,
    STRATEGIES,
    Accelerator,
    StrategySpec,
    accelerator_of,
)
from classify.launch.launch import Launch

# Tokens of a step below which one GPU is faster than several with DataParallel: it replays recorded passes, in about
# 8 ms, where DataParallel copies the model and starts each kernel from Python, in about 50.
_SHORT_STEP = 16_384


class ParallelMode(enum.Enum):
    """Parallel modes, with the values of `transformers.training_args.ParallelMode`."""

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"


@dataclass(frozen=True)
class Hardware:
    """Accelerators that this process can see: `kind` is a torch device type, "cpu" where there is none."""

    kind: str = "cpu"
    count: int = 0

    @property
    def accelerator(self) -> Accelerator:
        return accelerator_of(self.kind)

    @staticmethod
    def detect() -> Hardware:
        """Detect the accelerators torch can use in this process. Imports torch."""
        for accelerator in ACCELERATORS.values():
            if accelerator.is_selected_by(os.environ):
                return Hardware(accelerator.kind, accelerator.count())
        import torch

        current = torch.accelerator.current_accelerator(check_available=True)
        return Hardware() if current is None else Hardware(current.type, accelerator_of(current.type).count())


@dataclass(frozen=True)
class DevicePlan:
    """Device, parallel mode and strategy of this process."""

    device: str
    parallel_mode: ParallelMode
    strategy: str
    n_gpu: int
    backend: str | None
    launch: Launch
    reason: str
    findings: tuple[Finding, ...] = field(default=(), compare=False)

    @property
    def spec(self) -> StrategySpec:
        return STRATEGIES[self.strategy]

    @property
    def exchanges_in_main_memory(self) -> bool:
        return self.backend == GLOO

    @property
    def owns_device(self) -> bool:
        return self.backend is not None and self.n_gpu > 0 and self.backend != GLOO

    @property
    def replicas(self) -> int:
        """The number of devices of DataParallel in this process; 1 in other modes."""
        return self.n_gpu if self.parallel_mode is ParallelMode.NOT_DISTRIBUTED else 1

    def place(self) -> dict[str, Any]:
        """This process's entry of a topology."""
        launch = self.launch
        return {"machine": launch.machine, "rank": launch.rank, "local_rank": launch.local_rank, "device": self.device}

    def describe(self) -> str:
        """Describe device and strategy, e.g. "cpu, 2 processes with DistributedDataParallel over gloo"."""
        spec, place = self.spec, ""
        if self.parallel_mode is ParallelMode.DISTRIBUTED:
            place = f", {self.launch.world_size} processes with {spec.display_name} over {self.backend}"
        elif spec.spreads_layers or self.replicas > 1:
            place = f"{f', {self.n_gpu} devices' if self.n_gpu > 1 else ''} with {spec.display_name}"
        return f"{self.device}{place}"


def plan_devices(
    launch: Launch,
    hardware: Hardware | None = None,
    *,
    strategy: str = "auto",
    backend: str | None = None,
    use_cpu: bool = False,
    step_tokens: float | None = None,
) -> DevicePlan:
    """Plan device, parallel mode and strategy: on any machine the same for the same launch, hardware and flags.

    Without `hardware` it is detected, which imports torch. A process alone takes one of several devices where a step
    has few tokens (`step_tokens`, if known). Raises DeviceError if launch, hardware and flags contradict
    each other.
    """
    if use_cpu or hardware is None:
        hardware = Hardware() if use_cpu else Hardware.detect()
    check_strategy(launch, strategy, backend, on_cpu=hardware.count == 0)
    if launch.local_rank < 0:
        return _plan_alone(launch, hardware, strategy, "--cpu" if use_cpu else "no accelerator found", step_tokens)
    return _plan_launched(launch, hardware, strategy, backend or (None if use_cpu else launch.backend))


def _plan_alone(
    launch: Launch, hardware: Hardware, requested: str, why_cpu: str, step_tokens: float | None
) -> DevicePlan:
    """Plan a process that no launcher started."""
    accelerator, count, kind = hardware.accelerator, hardware.count, hardware.kind
    is_short = step_tokens is not None and step_tokens < _SHORT_STEP
    default = "dp" if count > 1 and accelerator.replicates and not is_short else "none"
    strategy = default if requested == "auto" else requested
    spec = STRATEGIES[strategy]
    if accelerator.compiles and strategy != "none":
        raise InputError(f"--strategy {strategy} does not work on {kind.upper()} devices; drop it.")
    if spec.spreads_layers:
        count = min(count, 1) if accelerator.single_device_per_process else count
        where = f"{count} {kind} device{'s' * (count > 1)}" if count else "the CPU"
        reason = f"local_rank is -1; layers of one model spread over {where}"
        return DevicePlan(accelerator.device(0), ParallelMode.NOT_PARALLEL, strategy, count, None, launch, reason)
    if count == 0:
        return DevicePlan("cpu", ParallelMode.NOT_PARALLEL, "none", 0, None, launch, why_cpu)
    if spec.replicates_model and not accelerator.replicates:
        raise InputError(
            f"--strategy {strategy} is torch's DataParallel, which {kind} devices do not have; use --nproc {count}, "
            "one process per device."
        )
    if count == 1:
        reason = f"local_rank is -1 and there is one {kind} device"
        return DevicePlan(f"{kind}:0", ParallelMode.NOT_PARALLEL, "none", 1, None, launch, reason)
    if spec.replicates_model:
        reason = f"local_rank is -1 and this process sees {count} {kind} devices"
        advice = note(f"DataParallel copies the model at every step; --nproc {count} (or torchrun) is faster")
        return DevicePlan(f"{kind}:0", ParallelMode.NOT_DISTRIBUTED, strategy, count, None, launch, reason, (advice,))
    way = "" if accelerator.compiles else f"; --nproc {count} (or torchrun) uses all"
    advice = note(f"one of {count} {kind} devices is used{way}")
    few = f", since a step has about {step_tokens:,.0f} tokens" if is_short and accelerator.replicates else ""
    return DevicePlan(
        f"{kind}:0", ParallelMode.NOT_PARALLEL, "none", 1, None, launch,
        f"local_rank is -1; one of {count} {kind} devices{few}", (advice,) if requested == "auto" else (),
    )  # fmt: skip


def check_strategy(launch: Launch, strategy: str, backend: str | None, on_cpu: bool) -> None:
    """Raise InputError if flags contradict how the process was started.

    Only `on_cpu` depends on the hardware, so most of this is checked before it is detected.
    """
    spec = None if strategy == "auto" else STRATEGIES[strategy]
    if launch.local_rank >= 0:
        if spec is not None and spec.one_process:
            started = f"a launcher started {launch.world_size} (WORLD_SIZE)"
            raise InputError(
                f"--strategy {strategy} works in one process, but "
                f"{'--nproc starts several' if launch.is_worker else started}; drop it, or start with python alone."
            )
        if on_cpu and backend is not None and backend not in CPU_BACKENDS:
            raise InputError(
                f"--ddp-backend {backend} works on accelerators only, but this is a CPU run; drop it, or give gloo."
            )
        return
    if spec is not None and not spec.one_process:
        raise InputError(
            f"--strategy {strategy} needs one process per device, but this process was started alone; "
            "start with torchrun --nproc-per-node 2, or with --nproc 2."
        )
    if backend is not None:
        raise InputError(
            f"--ddp-backend {backend} needs several processes, but this one was started alone; start with torchrun or "
            "--nproc, or drop it."
        )
    if on_cpu and spec is not None and spec.replicates_model:
        raise InputError(
            f"--strategy {strategy} needs several GPUs in one process, but this is a CPU run; use --nproc 2."
        )


def _plan_launched(launch: Launch, hardware: Hardware, requested: str, backend: str | None) -> DevicePlan:
    """Plan a process that a launcher started: its shard of the rows on device `local_rank`."""
    accelerator, count, kind = hardware.accelerator, hardware.count, hardware.kind
    strategy = "ddp" if requested == "auto" else requested
    if accelerator.compiles:
        raise DeviceError(
            f"a launcher started {launch.world_size} processes (WORLD_SIZE), but on {kind.upper()} devices one "
            "process trains; start with python alone, or unset PJRT_DEVICE."
        )
    place, backend = f"launched as rank {launch.rank} of {launch.world_size}", backend or accelerator.backend
    if count == 0:
        reason = f"{place}; all ranks share the CPU"
        return DevicePlan("cpu", ParallelMode.DISTRIBUTED, strategy, 0, backend, launch, reason)
    in_main_memory = backend == GLOO
    if in_main_memory and not accelerator.gloo_takes_tensors:
        raise DeviceError(
            f"{backend} supports CPUs and CUDA devices, not {kind}; drop --ddp-backend {backend} if given, start one "
            "process, or give --cpu."
        )
    if in_main_memory and STRATEGIES[strategy].shards_weights:
        raise DeviceError(
            f"--strategy {strategy} on {kind} devices needs {accelerator.backend}: {backend} cannot "
            f"exchange shards; drop --ddp-backend {backend}, or give --strategy ddp."
        )
    index, reason = launch.local_rank, f"{place}; local rank {launch.local_rank} chooses the device"
    if count == 1 and index > 0 and not accelerator.single_device_per_process:
        # A scheduler may show each task one device. `check_own_device` rejects two ranks on the same one.
        index, reason = 0, f"{place}; it is the one {kind} device that this process sees"
    elif index >= count and in_main_memory:
        index %= count
        reason = f"{place}; more processes than the {count} {kind} here, so local rank {launch.local_rank} shares one"
    if index >= count:
        raise DeviceError(
            f"LOCAL_RANK={index} selects device {kind}:{index}, but this machine has only {count} device"
            f"{'s' * (count != 1)} (numbered from 0), and {backend} refuses two processes on one device; start at most "
            f"{count} here, {_otherwise(accelerator)}."
        )
    index = 0 if accelerator.single_device_per_process else index
    return DevicePlan(f"{kind}:{index}", ParallelMode.DISTRIBUTED, strategy, 1, backend, launch, reason)


def _otherwise(accelerator: Accelerator) -> str:
    return "give --ddp-backend gloo to share, or --cpu" if accelerator.gloo_takes_tensors else "or give --cpu"


def device_identity(plan: DevicePlan, environment: Mapping[str, str], properties: Any, host: str) -> str:
    """A string that is equal on two ranks if they use the same device of the same machine.

    `properties` are torch's device properties, or None. A device is identified by its UUID and PCI address; without
    them, by its index and the variables that choose devices.
    """
    launch = plan.launch
    machine = host if launch.machine is None else launch.machine
    if (uuid := getattr(properties, "uuid", None)) is not None:
        return json.dumps([machine, str(uuid), getattr(properties, "pci_bus_id", None)])
    kind, _, index = plan.device.partition(":")
    number = launch.local_rank if accelerator_of(kind).single_device_per_process else int(index)
    signs = ("VISIBLE_DEVICES", "VISIBLE_MODULES", "AFFINITY_MASK")
    choice = {name: environment[name] for name in sorted(environment) if name.endswith(signs)}
    return json.dumps([machine, kind, number, choice])


def check_devices(plan: DevicePlan, places: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError where two ranks are on the same device, or on devices of two kinds.

    `places` have kind, backend and identity of each rank's device, in rank order; no identity where ranks may share.
    Ranks on two kinds would wait for each other in two backends.
    """
    first, identities = places[0], [place["identity"] for place in places]
    for rank, place in enumerate(places):
        kind, backend, identity = place["kind"], place["backend"], place["identity"]
        if (kind, backend) != (first["kind"], first["backend"]):
            raise DeviceError(
                f"rank 0 is on {first['kind']} with {first['backend']}, rank {rank} on {kind} with {backend}; expected "
                f"one kind of device. Does the GPU of rank {rank if kind == 'cpu' else 0} work (nvidia-smi)? Otherwise "
                "start all with --cpu."
            )
        if identity and (other := identities.index(identity)) < rank:
            raise InputError(
                f"rank {other} and rank {rank} are on the same device ({plan.device} of one machine), which "
                f"{backend} refuses; start one process per device, let the scheduler bind each task to its own "
                f"(srun --gpus-per-task=1), {_otherwise(accelerator_of(kind))}."
            )


def choose_threads(environment: Mapping[str, str], launch: Launch, cores: int) -> int | None:
    """The number of threads for this process, or None to keep the current setting.

    torchrun sets OMP_NUM_THREADS=1 when it starts several processes. Only that setting (recognized by
    TORCHELASTIC_RUN_ID) is overridden, and only if cores would stay idle. If nothing is set, several processes on one
    machine share its cores.
    """
    several = launch.local_world_size > 1
    share = max(1, cores // launch.local_world_size)
    by_srun = environment.get("SLURM_CPUS_PER_TASK", "")
    # srun binds a task to its cores, and `cores` counts only those. torchrun's processes share the cores of one task.
    if several and launch.launcher == "srun" and by_srun.isdecimal():
        share = max(1, min(cores, int(by_srun)))
    setting = environment.get("OMP_NUM_THREADS")
    if setting is None:
        return share if several else None
    by_torchrun = setting == "1" and "TORCHELASTIC_RUN_ID" in environment
    return share if by_torchrun and share > 1 else None


def count_devices() -> int:
    """The number of processes of `--nproc gpu`: one per accelerator. Raises DeviceError if there is none."""
    hardware = Hardware.detect()
    if hardware.accelerator.compiles or hardware.count == 0:
        raise DeviceError(
            "--nproc gpu starts one process per GPU, but there is none (on TPUs one process trains); give a number, or "
            "drop it."
        )
    return hardware.count

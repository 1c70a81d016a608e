"""Ranks and devices: the one room that knows about processes (law 3 of the design).

`plan_devices` is a pure decision from plain arguments, so any hardware can be tried in a test; `classify.runtime`
carries it out. Nothing here imports torch until the hardware is looked at.

*Rank* is this process's number among all processes of the run, *local rank* its number on this machine. A local
rank chooses a device; only the global rank 0 writes files, because every machine has a local rank 0. A local rank
of -1 means that no launcher started this process.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from classify.errors import DeviceError

BACKENDS = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl", "mlu": "cncl", "cpu": "gloo"}


# Set for the processes that --nproc starts, so that they do not start processes themselves.
STARTED_HERE = "CLASSIFY_NPROC"


class ParallelMode(enum.Enum):
    """Values as in `transformers.training_args.ParallelMode`."""

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"


@dataclass(frozen=True)
class Hardware:
    """The accelerators this process can see: `kind` is a torch device type, "cpu" where there is none."""

    kind: str = "cpu"
    count: int = 0


@dataclass(frozen=True)
class Launch:
    """What a launcher said through the environment; the defaults stand for a process nobody launched."""

    launcher: str = "none"
    rank: int = 0
    local_rank: int = -1
    world_size: int = 1
    local_world_size: int = 1
    machine: int = 0

    @property
    def is_main(self) -> bool:
        """True on the one process that writes files and speaks: the global rank 0."""
        return self.rank == 0


@dataclass(frozen=True)
class DevicePlan:
    """Where this process computes and how it works with the others."""

    device: str
    parallel_mode: ParallelMode
    strategy: str
    n_gpu: int
    backend: str | None
    launch: Launch
    reason: str
    advice: str | None = field(default=None, compare=False)


def read_launch(environment: Mapping[str, str], local_rank: int = -1) -> Launch:
    """What the launcher says, from the variables torchrun sets and from `--local-rank`.

    Raises DeviceError where they are incomplete or contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    numbers: dict[str, int] = {}
    for name in names:
        text = environment.get(name)
        if text is None:
            continue
        if not text.isdecimal():
            raise DeviceError(
                f"environment variable {name} must be a whole number of at least 0. Got {text!r} instead."
            )
        numbers[name] = int(text)
    if "RANK" not in numbers and "WORLD_SIZE" not in numbers:
        if local_rank >= 0 or "LOCAL_RANK" in numbers:
            source = f"--local-rank {local_rank}" if local_rank >= 0 else f"LOCAL_RANK={numbers['LOCAL_RANK']}"
            raise DeviceError(
                f"{source} says that a launcher started this process, but RANK and WORLD_SIZE are not set; "
                "start with torchrun or --nproc, or leave it at -1."
            )
        _refuse_foreign_launcher(environment)
        return Launch()
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if name not in numbers:
            raise DeviceError(
                f"{other}={numbers[other]} is set but {name} is not; a launcher sets both. "
                f"Start with torchrun or --nproc, or unset {other}."
            )
    rank, world_size = numbers["RANK"], numbers["WORLD_SIZE"]
    if not rank < world_size:
        raise DeviceError(f"RANK={rank} must be below WORLD_SIZE={world_size}; start with torchrun, or correct them.")
    own = numbers.get("LOCAL_RANK")
    if local_rank >= 0 and own is not None and local_rank != own:
        raise DeviceError(f"--local-rank {local_rank} and LOCAL_RANK={own} of the launcher differ; drop the flag.")
    if own is None and local_rank < 0:
        raise DeviceError(
            f"RANK={rank} and WORLD_SIZE={world_size} are set but LOCAL_RANK is not; it chooses the device. "
            "Start with torchrun, or set LOCAL_RANK."
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise DeviceError(
            f"RANK={rank} and WORLD_SIZE={world_size} are set but {' and '.join(missing)} not; the ranks meet there. "
            "Start with torchrun, or set them to the address and a free port of the first machine."
        )
    elastic = "TORCHELASTIC_RUN_ID" in environment
    return Launch(
        launcher="nproc" if STARTED_HERE in environment else "torchrun" if elastic else "environment",
        rank=rank,
        local_rank=own if own is not None else local_rank,
        world_size=world_size,
        local_world_size=numbers.get("LOCAL_WORLD_SIZE", world_size),
        machine=numbers.get("GROUP_RANK", 0),
    )


def _refuse_foreign_launcher(environment: Mapping[str, str]) -> None:
    """Tasks of srun or mpirun would each train alone, as rank 0 of 1, into the same folder."""
    for launcher, count, inside in (
        ("srun", "SLURM_NTASKS", "SLURM_STEP_ID"),
        ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ):
        tasks = environment.get(count, "1")
        if inside in environment and tasks.isdecimal() and int(tasks) > 1:
            raise DeviceError(
                f"{launcher} started {tasks} tasks ({count}), but RANK and WORLD_SIZE are not set, so each would train "
                f"alone; let {launcher} start one task a machine that runs torchrun."
            )


def plan_devices(
    *,
    use_cpu: bool,
    local_rank: int,
    environment: Mapping[str, str],
    hardware: Hardware,
    strategy: str = "auto",
    backend: str | None = None,
) -> DevicePlan:
    """Decide device, parallel mode and strategy. Pure: the same arguments give the same plan on any machine.

    Raises DeviceError where arguments, environment and hardware contradict each other.
    """
    launch = read_launch(environment, local_rank)
    kind = "cpu" if use_cpu else hardware.kind
    count = 0 if kind == "cpu" else hardware.count
    check_strategy(launch, strategy, backend, on_cpu=count == 0)
    if launch.local_rank >= 0:
        return _plan_launched(launch, kind, count, backend)
    if count == 0:
        reason = "--cpu was given" if use_cpu else "no accelerator was found"
        return DevicePlan("cpu", ParallelMode.NOT_PARALLEL, "none", 0, None, launch, reason)
    if count == 1 or strategy == "none":
        reason = f"local_rank is -1 and there is {'one' if count == 1 else 'to be one'} {kind} device"
        return DevicePlan(f"{kind}:0", ParallelMode.NOT_PARALLEL, "none", 1, None, launch, reason)
    return DevicePlan(
        f"{kind}:0",
        ParallelMode.NOT_DISTRIBUTED,
        "dp",
        count,
        None,
        launch,
        f"local_rank is -1 and there are {count} {kind} devices in this one process",
        advice=f"DataParallel copies the model at every step; --nproc {count} (or torchrun) is faster",
    )


def check_strategy(launch: Launch, strategy: str, backend: str | None, on_cpu: bool) -> None:
    """Raise DeviceError where what was asked for contradicts how the process was started.

    Only `on_cpu` depends on the hardware, so most of this can be told before any is looked at.
    """
    if launch.local_rank >= 0:
        if strategy in ("none", "dp"):
            raise DeviceError(
                f"--strategy {strategy} works in one process, but a launcher started {launch.world_size} "
                "(WORLD_SIZE); drop the flag, or start with python alone."
            )
        if on_cpu and backend not in (None, "gloo"):
            raise DeviceError(f"ddp_backend {backend} works on accelerators only; on CPU leave it out, or give gloo.")
        return
    if strategy == "ddp":
        raise DeviceError(
            "--strategy ddp needs one process per device, but this process was started alone; "
            "start with torchrun --nproc-per-node 2, or with --nproc 2."
        )
    if backend is not None:
        raise DeviceError(f"ddp_backend {backend} needs several processes; start with torchrun or --nproc, or drop it.")
    if on_cpu and strategy == "dp":
        raise DeviceError("--strategy dp needs several GPUs in one process. Got a CPU run instead; use --nproc 2.")


def _plan_launched(launch: Launch, kind: str, count: int, backend: str | None) -> DevicePlan:
    """The plan of a process that a launcher started: DistributedDataParallel on device `local_rank`."""
    if kind == "cpu":
        reason = f"launched as rank {launch.rank} of {launch.world_size}; on CPU every rank shares it"
        return DevicePlan("cpu", ParallelMode.DISTRIBUTED, "ddp", 0, "gloo", launch, reason)
    if launch.local_rank >= count:
        raise DeviceError(
            f"LOCAL_RANK={launch.local_rank} asks for device {kind}:{launch.local_rank}, but this machine has {count} "
            f"(counted from 0); start at most {count} processes on it, or give --cpu."
        )
    return DevicePlan(
        f"{kind}:{launch.local_rank}",
        ParallelMode.DISTRIBUTED,
        "ddp",
        1,
        backend or BACKENDS.get(kind, "gloo"),
        launch,
        f"launched as rank {launch.rank} of {launch.world_size}; local rank {launch.local_rank} chooses the device",
    )


def detect_hardware() -> Hardware:
    """The accelerators torch can use in this process."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return Hardware()
    return Hardware(accelerator.type, torch.accelerator.device_count())


def main_by_environment() -> bool:
    """Whether this is global rank 0 as far as the launcher's variables tell, before anything is started."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def export_local_rank(launch: Launch) -> None:
    """Set the variable that Accelerate reads, where a launcher passed `--local-rank` instead of setting it."""
    os.environ.setdefault("LOCAL_RANK", str(launch.local_rank))


def started_here() -> bool:
    """Whether `--nproc` of this program started this process."""
    return STARTED_HERE in os.environ


def available_cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def free_threads(environment: Mapping[str, str], local_world_size: int, cores: int) -> int | None:
    """Threads for this process, or None to leave them alone.

    torchrun sets OMP_NUM_THREADS=1 when it starts several processes, whatever the machine has. Only that setting
    (known by TORCHELASTIC_RUN_ID) is overridden, and only where cores would stay idle.
    """
    if environment.get("OMP_NUM_THREADS") != "1" or "TORCHELASTIC_RUN_ID" not in environment:
        return None
    share = cores // local_world_size
    return share if share > 1 else None

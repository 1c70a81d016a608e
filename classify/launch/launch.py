"""Which launcher started this process, and as which of all processes: torchrun, srun, mpirun, `--nproc`, or none.

*Rank* is this process's number among the processes of all machines, *local rank* its number on its machine; -1 means
that no launcher started it. A command calls `Launch.read` where it begins, and passes on what that returns.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from classify.errors import DeviceError
from classify.launch.devices import SMDDP

# Set for the processes that --nproc starts, so that they start none.
NPROC = "CLASSIFY_NPROC"
# File descriptor of the listening socket that --nproc passes to rank 0 for the ranks' store.
LISTENER = "CLASSIFY_LISTENER"
# Variables by which torchrun describes a place, and the ones that every place needs.
_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables of Open MPI 4 and 5, and of 4, that identify a job.
_OPEN_MPI_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


@dataclass(frozen=True)
class Launch:
    """Place of this process among all; the defaults are a process without a launcher.

    `machine` is None if the launcher does not number the machines; then host names decide. `address` and `port`
    belong to the ranks' store. `restarts` counts how often the launcher has restarted the job. `is_complete`: it says
    how many processes are on this machine. `backend` is the one it asks for.
    """

    launcher: str = "none"
    rank: int = 0
    local_rank: int = -1
    world_size: int = 1
    local_world_size: int = 1
    machine: int | None = 0
    address: str | None = None
    port: int | None = None
    restarts: int = 0
    is_complete: bool = True
    backend: str | None = None

    @staticmethod
    def read(environment: Mapping[str, str] | None = None, local_rank: int = -1) -> Launch:
        """Read the launcher's variables and --local-rank; torchrun's come first, as srun or mpirun may start torchrun.

        Raises DeviceError if the variables are incomplete or contradict each other or `local_rank`.
        """
        environment = os.environ if environment is None else environment
        launch = _read(environment, local_rank)
        return replace(launch, backend=SMDDP) if _uses_smddp(environment) else launch

    @staticmethod
    def spawned(rank: int, world_size: int, init_method: str, local_rank: int = -1) -> Launch:
        """The place of a process that the caller started, e.g. with `torch.multiprocessing.spawn`.

        `init_method` is tcp://address:port of the first process. Without a `local_rank` all processes are on one
        machine, and it equals the rank. Raises DeviceError for invalid arguments.
        """
        match = re.fullmatch(r"tcp://(.+):(\d+)", init_method)
        if match is None:
            raise DeviceError(f"init_method must be tcp://address:port. Got {init_method!r} instead.")
        if not 0 <= rank < world_size:
            raise DeviceError(f"rank must be from 0 to below world_size {world_size}. Got {rank} instead.")
        return Launch(
            launcher="environment" if local_rank >= 0 else "spawn",
            rank=rank,
            local_rank=local_rank if local_rank >= 0 else rank,
            world_size=world_size,
            local_world_size=world_size,
            machine=None,
            address=match[1].strip("[]"),
            port=int(match[2]),
            is_complete=local_rank < 0,  # else it is unknown how many processes are on this machine
        )

    @property
    def is_launched(self) -> bool:
        return self.local_rank >= 0

    @property
    def is_worker(self) -> bool:
        return self.launcher == "nproc"

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        return self.local_rank <= 0

    @property
    def spans_machines(self) -> bool:
        """Whether other processes of the run are, or may be, on other machines."""
        return self.world_size > self.local_world_size or (self.world_size > 1 and not self.is_complete)

    @property
    def checks_output_dir(self) -> bool:
        """Whether this process checks the output folder: rank 0, and every rank if all are on one machine.

        There all ranks fail alike, so none waits for another. The folder is created after the group is formed.
        """
        return self.is_main or not self.spans_machines

    def variables(self) -> dict[str, str]:
        """The variables by which torchrun describes this place, without those that are not known."""
        here = self.local_world_size if self.is_complete else None
        values = (self.rank, self.local_rank, self.world_size, here, self.machine, self.address, self.port)
        return {name: str(value) for name, value in zip(_TORCH, values, strict=True) if value is not None}


def _read(environment: Mapping[str, str], local_rank: int) -> Launch:
    own = _whole_number(environment, "LOCAL_RANK", -1)
    if local_rank >= 0 and own >= 0 and local_rank != own:
        raise DeviceError(f"--local-rank {local_rank} and LOCAL_RANK={own} of the launcher differ; drop the flag.")
    local_rank = max(own, local_rank)
    # Notebooks and frameworks leave RANK=0 and WORLD_SIZE=1, which say nothing about a device.
    alone = environment.get("WORLD_SIZE") == "1" and environment.get("RANK", "0") == "0"
    if alone and (local_rank < 0 or not environment.keys() >= set(_NEEDED)):
        return Launch()
    if "RANK" in environment or "WORLD_SIZE" in environment or local_rank >= 0:
        return _read_torch(environment, local_rank)
    # Before srun: under SLURM mpirun and mpiexec start a daemon on each machine with srun, and their tasks inherit its
    # variables. srun itself sets PMI_SIZE to its number of tasks, if at all.
    if _whole_number(environment, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        return _read_open_mpi(environment)
    # Inside sbatch without srun there is one process; the job's number of tasks does not count.
    tasks = _whole_number(environment, "SLURM_STEP_NUM_TASKS", 1)
    pmi_tasks = _whole_number(environment, "PMI_SIZE", 1)
    if tasks > 1 and pmi_tasks in (1, tasks):
        return _read_slurm(environment)
    if pmi_tasks > 1:
        raise DeviceError(
            f"mpiexec started {pmi_tasks} tasks (PMI_SIZE), but RANK and WORLD_SIZE are not set, so each would train "
            "alone; let mpiexec start torchrun once per machine."
        )
    return Launch()


def _whole_number(environment: Mapping[str, str], name: str, default: int) -> int:
    """A variable, or the default if it is not set. Raises DeviceError if it is not a whole number."""
    text = environment.get(name) or str(default)
    if text != str(default) and not text.isdecimal():
        raise DeviceError(f"environment variable {name} must be a whole number of at least 0. Got {text!r} instead.")
    return int(text)


def _read_torch(environment: Mapping[str, str], local_rank: int) -> Launch:
    """Read the variables of torchrun or torch.distributed.launch, or set by hand."""
    given = [f"{name}={environment[name]}" for name in _TORCH if name in environment]
    missing = [name for name in _NEEDED if name not in environment] + ["LOCAL_RANK"] * (local_rank < 0)
    if missing:
        raise DeviceError(
            f"a launcher has started this process ({' '.join(given) or f'--local-rank {local_rank}'}), but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; start with torchrun or --nproc, set "
            "all of them, or none."
        )
    rank, world_size = _whole_number(environment, "RANK", 0), _whole_number(environment, "WORLD_SIZE", 1)
    local_world_size = _whole_number(environment, "LOCAL_WORLD_SIZE", world_size)
    if not rank < world_size or not local_world_size:
        raise DeviceError(
            f"{' '.join(given)}: expected a rank below WORLD_SIZE, and LOCAL_WORLD_SIZE above 0; correct them, or "
            "start with torchrun."
        )
    elastic = "TORCHELASTIC_RUN_ID" in environment
    return Launch(
        launcher="nproc" if NPROC in environment else "torchrun" if elastic else "environment",
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        machine=_whole_number(environment, "GROUP_RANK", 0) if "GROUP_RANK" in environment else None,
        address=environment["MASTER_ADDR"],
        port=_whole_number(environment, "MASTER_PORT", 0),
        restarts=_whole_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        is_complete="LOCAL_WORLD_SIZE" in environment,
    )


def _read_slurm(environment: Mapping[str, str]) -> Launch:
    """Read the variables of srun: https://slurm.schedmd.com/srun.html, section OUTPUT ENVIRONMENT VARIABLES."""
    machine = _whole_number(environment, "SLURM_NODEID", 0)
    machines = _whole_number(environment, "SLURM_STEP_NUM_NODES", 1)
    tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    step = _whole_number(environment, "SLURM_STEP_ID", 0)
    address = environment.get("MASTER_ADDR")
    if address is None:
        address = "127.0.0.1" if machines == 1 else first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return Launch(
        launcher="srun",
        rank=_whole_number(environment, "SLURM_PROCID", 0),
        local_rank=_whole_number(environment, "SLURM_LOCALID", 0),
        world_size=_whole_number(environment, "SLURM_STEP_NUM_TASKS", 1),
        local_world_size=tasks[machine] if machine < len(tasks) else 1,
        machine=machine,
        address=address,
        port=_whole_number(environment, "MASTER_PORT", _derive_port(environment.get("SLURM_JOB_ID", ""), step)),
    )


def _read_open_mpi(environment: Mapping[str, str]) -> Launch:
    """Read the variables of Open MPI's mpirun: https://docs.open-mpi.org, "Environment variables set by mpirun"."""
    world_size = _whole_number(environment, "OMPI_COMM_WORLD_SIZE", 1)
    local_world_size = _whole_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", world_size)
    # SageMaker's SM_CURRENT_HOST is the first machine's on all tasks
    # (https://github.com/aws/sagemaker-training-toolkit/issues/158).
    hosts = [environment.get("SM_MASTER_ADDR"), *json.loads(environment.get("SM_HOSTS", "[]"))]
    address = environment.get("MASTER_ADDR") or next(filter(None, hosts), None)
    job = next((environment[name] for name in _OPEN_MPI_JOB if environment.get(name)), None)
    missing = ["MASTER_ADDR"] * (address is None and local_world_size < world_size)
    missing += ["MASTER_PORT"] * (job is None and "MASTER_PORT" not in environment)
    if missing:
        raise DeviceError(
            f"mpirun started {world_size} tasks (OMPI_COMM_WORLD_SIZE), {local_world_size} of them here, but "
            f"{' and '.join(missing)} cannot be derived; name the first machine and a free port of it with "
            f"{' '.join(f'mpirun -x {name}=...' for name in missing)}."
        )
    return Launch(
        launcher="smddprun" if _uses_smddp(environment) else "mpirun",
        rank=_whole_number(environment, "OMPI_COMM_WORLD_RANK", 0),
        local_rank=_whole_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=local_world_size,
        machine=0 if local_world_size == world_size else None,
        address=address or "127.0.0.1",
        port=_whole_number(environment, "MASTER_PORT", _derive_port(job or "")),
    )


def _derive_port(job: str, step: int = 0) -> int:
    """A port from 20000 to 29999 for a step of a job; consecutive steps have different ones."""
    return 20000 + (zlib.crc32(job.encode()) + step) % 10000


def expand_tasks(text: str) -> list[int]:
    """Expand SLURM's "2(x3),1" to [2, 2, 2, 1]."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts.extend([int(count)] * int(times or 1))
    return counts


def first_host(text: str) -> str:
    """The first name of a list of SLURM: gpu07 of "gpu[07-09,12],login1", rack1n1 of "rack[1-2]n[1-4]"."""
    match = re.match(r"(?:[^\[,]|\[[^\]]*\])+", text)
    if match is None:
        raise DeviceError(f"SLURM_STEP_NODELIST={text!r} names no machine; set MASTER_ADDR to the first one.")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", match[0])


def _uses_smddp(environment: Mapping[str, str]) -> bool:
    """Whether the job was started with SageMaker's data parallel library.

    https://github.com/aws/sagemaker-training-toolkit, section "Environment Variables"
    """
    return any(f"SMDATAPARALLEL_USE_{way}" in environment for way in ("SINGLENODE", "HOMOGENEOUS"))


def places(per_machine: Sequence[int], address: str = "first-machine", port: int = 29500) -> list[Launch]:
    """The places that a launcher gives to each rank; `per_machine` counts the processes of each machine."""
    numbers = [(machine, local_rank) for machine, count in enumerate(per_machine) for local_rank in range(count)]
    return [
        Launch("torchrun", rank, local_rank, len(numbers), per_machine[machine], machine, address, port)
        for rank, (machine, local_rank) in enumerate(numbers)
    ]


def export(launch: Launch) -> None:
    """Set torch's variables, which Accelerate and vendors' software read, to this place."""
    for name in _TORCH:
        os.environ.pop(name, None)
    os.environ |= launch.variables()


def take_listener() -> int | None:
    """Return, once, the file descriptor of the listening socket that --nproc passed to this process, or None."""
    descriptor = os.environ.pop(LISTENER, None)
    return None if descriptor is None else int(descriptor)

"""The device decision as a table: plain arguments in, a plan or one clear line out. No hardware is touched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from classify.distributed.group import _interface_towards
from classify.errors import DeviceError, InputError
from classify.launch.launch import Launch, expand_tasks, first_host
from classify.launch.plan import Hardware, ParallelMode, choose_threads, device_identity, plan_devices
from tests.support.findings import notes_of

CPU = Hardware()
ONE, TWO, EIGHT = Hardware("cuda", 1), Hardware("cuda", 2), Hardware("cuda", 8)


def launched(
    rank: int, local_rank: int, world: int, local_world: int | None = None, machine: int = 0
) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local_world or world}
    place = {name: str(number) for name, number in {**numbers, "GROUP_RANK": machine, "MASTER_PORT": 29500}.items()}
    return {**place, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "x"}


NOT, DP, DDP = ParallelMode.NOT_PARALLEL, ParallelMode.NOT_DISTRIBUTED, ParallelMode.DISTRIBUTED

TABLE = [
    # use_cpu, environment, hardware -> device, mode, n_gpu, backend, strategy
    (True, {}, EIGHT, "cpu", NOT, 0, None, "none"),
    (False, {}, CPU, "cpu", NOT, 0, None, "none"),
    (False, {}, ONE, "cuda:0", NOT, 1, None, "none"),
    (False, {}, TWO, "cuda:0", DP, 2, None, "dp"),
    (False, {}, EIGHT, "cuda:0", DP, 8, None, "dp"),
    (False, {}, Hardware("mps", 1), "mps:0", NOT, 1, None, "none"),
    (False, launched(0, 0, 2), TWO, "cuda:0", DDP, 1, "nccl", "ddp"),
    (False, launched(1, 1, 2), TWO, "cuda:1", DDP, 1, "nccl", "ddp"),
    (False, launched(5, 1, 8, 4, 1), Hardware("cuda", 4), "cuda:1", DDP, 1, "nccl", "ddp"),
    (False, launched(0, 0, 1), ONE, "cuda:0", DDP, 1, "nccl", "ddp"),
    (False, launched(3, 3, 4), ONE, "cuda:0", DDP, 1, "nccl", "ddp"),  # bound to a device of its own
    (False, launched(1, 1, 2), CPU, "cpu", DDP, 0, "gloo", "ddp"),
    (True, launched(1, 1, 2), TWO, "cpu", DDP, 0, "gloo", "ddp"),
    (False, launched(3, 1, 4, 2, 1), Hardware("npu", 2), "npu:1", DDP, 1, "hccl", "ddp"),
    (False, launched(0, 0, 2), Hardware("xpu", 2), "xpu:0", DDP, 1, "xccl", "ddp"),
]


@pytest.mark.parametrize(("use_cpu", "environment", "hardware", "decision"), [(*row[:3], row[3:]) for row in TABLE])
def test_decision(use_cpu: bool, environment: dict[str, str], hardware: Hardware, decision: tuple[Any, ...]) -> None:
    plan = plan_devices(Launch.read(environment), hardware, use_cpu=use_cpu)
    assert (plan.device, plan.parallel_mode, plan.n_gpu, plan.backend, plan.strategy) == decision
    assert plan.reason
    assert any("--nproc" in note for note in notes_of(plan)) == (plan.strategy == "dp")


@pytest.mark.parametrize(("step_tokens", "strategy"), [(800.0, "none"), (16_384.0, "dp"), (None, "dp")])
def test_short_steps_are_not_divided(step_tokens: float | None, strategy: str) -> None:
    plan = plan_devices(Launch(), EIGHT, step_tokens=step_tokens)
    assert (plan.device, plan.strategy) == ("cuda:0", strategy)
    assert ("since a step has about 800 tokens" in plan.reason) == (strategy == "none")
    assert any("--nproc 8" in note for note in notes_of(plan))
    assert plan_devices(Launch(), EIGHT, strategy="dp", step_tokens=step_tokens).strategy == "dp"
    assert plan_devices(Launch.read(launched(1, 1, 2)), TWO, step_tokens=step_tokens).strategy == "ddp"


@pytest.mark.parametrize("kind", ["npu", "xpu", "mps", "mlu", "hpu"])
def test_data_parallel_is_cudas_alone(kind: str) -> None:
    """torch's DataParallel copies parameters with a function that exists for CUDA only."""
    plan = plan_devices(Launch(), Hardware(kind, 2))
    assert (plan.device, plan.parallel_mode, plan.n_gpu) == (f"{kind}:0", NOT, 1)
    (advice,) = notes_of(plan)
    assert "--nproc 2" in advice
    with pytest.raises(InputError, match=f"which {kind} devices do not have; use --nproc 2"):
        plan_devices(Launch(), Hardware(kind, 2), strategy="dp")


def test_a_gaudi_is_the_first_of_its_process() -> None:
    """Its software acquires the one with the number of LOCAL_RANK, and a process has no other."""
    hardware = Hardware("hpu", 2)
    plan = plan_devices(Launch.read(launched(1, 1, 2)), hardware)
    assert (plan.device, plan.backend) == ("hpu:0", "hccl")
    with pytest.raises(DeviceError, match="this machine has only 2 devices"):
        plan_devices(Launch.read(launched(2, 2, 3)), hardware)
    with pytest.raises(DeviceError, match="this machine has only 1 device "):
        plan_devices(Launch.read(launched(1, 1, 2)), Hardware("hpu", 1))
    plan = plan_devices(Launch(), hardware, strategy="model")
    assert plan.n_gpu == 1


def test_a_devices_identity() -> None:
    """By its UUID, or where a vendor has none by the variables that choose it and its number among those seen."""
    plans = [plan_devices(Launch.read(launched(rank, rank, 2)), ONE) for rank in (0, 1)]

    def same(properties: list[object], *environments: dict[str, str]) -> bool:
        first, second = (
            device_identity(plan, environment, own, "here")
            for plan, environment, own in zip(plans, environments, properties, strict=True)
        )
        return first == second

    one, other = (SimpleNamespace(uuid=f"GPU-{number}", pci_bus_id=number) for number in (1, 2))
    twin = SimpleNamespace(uuid="GPU-1", pci_bus_id=2)  # of a vendor whose UUIDs are all alike
    task, neighbour = {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}
    assert same([one, one], task, neighbour)
    assert not same([one, other], task, task)
    assert not same([one, twin], task, task)
    assert same([None, None], task, task)
    assert not same([None, None], task, neighbour)
    assert not same([None, None], {"ZE_AFFINITY_MASK": "0"}, {"ZE_AFFINITY_MASK": "1"})
    gaudis = [plan_devices(Launch.read(launched(rank, rank, 2)), Hardware("hpu", 2)) for rank in (0, 1)]
    assert device_identity(gaudis[0], {}, None, "here") != device_identity(gaudis[1], {}, None, "here")
    away = plan_devices(Launch.read(launched(1, 0, 2, 1, 1)), ONE)
    assert device_identity(away, {}, None, "here") != device_identity(plans[0], {}, None, "here")


def test_more_processes_than_devices_share_them_over_gloo_alone() -> None:
    """NCCL refuses two ranks on one device, so the program does, with the reason and the way out."""
    third = launched(2, 2, 3)
    with pytest.raises(
        DeviceError, match=r"cuda:2, .* has only 2 .* nccl refuses two processes on one.*--ddp-backend gloo"
    ):
        plan_devices(Launch.read(third), TWO)
    plan = plan_devices(Launch.read(third), TWO, backend="gloo")
    assert (plan.device, plan.backend, plan.n_gpu) == ("cuda:0", "gloo", 1)
    assert "shares one" in plan.reason


def test_weights_in_parts() -> None:
    plan = plan_devices(Launch.read(launched(1, 1, 2)), TWO, strategy="fsdp")
    assert (plan.strategy, plan.parallel_mode, plan.backend) == ("fsdp", DDP, "nccl")
    with pytest.raises(DeviceError, match="--strategy fsdp on cuda devices needs nccl"):
        plan_devices(Launch.read(launched(1, 1, 2)), TWO, strategy="fsdp", backend="gloo")


@pytest.mark.parametrize(
    ("change", "arguments", "parts"),
    [
        ({"RANK": None}, {}, ["WORLD_SIZE=2", "RANK is not set"]),
        ({"WORLD_SIZE": None}, {}, ["RANK=1", "WORLD_SIZE is not set"]),
        ({"LOCAL_RANK": None}, {}, ["RANK=1", "LOCAL_RANK is not set"]),
        ({"LOCAL_RANK": "2"}, {}, ["LOCAL_RANK=2", "only 2 devices (numbered from 0)", "--cpu"]),
        ({"RANK": "2"}, {}, ["RANK=2", "WORLD_SIZE=2"]),
        ({"RANK": "one"}, {}, ["RANK", "'one'"]),
        ({"MASTER_ADDR": None}, {}, ["MASTER_ADDR", "WORLD_SIZE=2"]),
        ({}, {"local_rank": 0}, ["--local-rank 0", "LOCAL_RANK=1"]),
        ({}, {"strategy": "dp"}, ["--strategy dp", "2 (WORLD_SIZE)"]),
        ({}, {"strategy": "none"}, ["--strategy none", "WORLD_SIZE"]),
        ({}, {"use_cpu": True, "backend": "nccl"}, ["nccl", "CPU", "gloo"]),
    ],
)
def test_contradictions_name_both_sides(
    change: dict[str, str | None], arguments: dict[str, object], parts: list[str]
) -> None:
    environment = {**launched(1, 1, 2), **change}
    environment = {key: value for key, value in environment.items() if value is not None}
    local_rank = int(str(arguments.pop("local_rank", -1)))
    with pytest.raises(InputError) as caught:
        plan_devices(Launch.read(environment, local_rank), TWO, **arguments)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"local_rank": 0}, ["--local-rank 0", "torchrun"]),
        ({"environment": {"LOCAL_RANK": "0"}}, ["LOCAL_RANK=0", "RANK, WORLD_SIZE"]),
        ({"strategy": "ddp"}, ["--strategy ddp", "--nproc 2"]),
        ({"strategy": "fsdp"}, ["--strategy fsdp needs one process per device"]),
        ({"strategy": "dp", "hardware": CPU}, ["--strategy dp", "GPU"]),
        ({"backend": "gloo"}, ["--ddp-backend gloo", "several processes"]),
    ],
)
def test_contradictions_of_a_single_process(arguments: dict[str, object], parts: list[str]) -> None:
    place: Any = arguments.pop("environment", {}), arguments.pop("local_rank", -1)
    with pytest.raises(InputError) as caught:
        plan_devices(Launch.read(*place), arguments.pop("hardware", ONE), **arguments)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "launcher", "local_world", "cores", "threads"),
    [
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, "torchrun", 2, 8, 4),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, "torchrun", 2, 2, None),  # no core is free
        ({"OMP_NUM_THREADS": "1"}, "environment", 2, 8, None),  # the person set it
        ({"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, "torchrun", 2, 8, None),
        ({}, "none", 1, 8, None),
        ({}, "environment", 2, 8, 4),  # nothing is set: each takes its share
        ({}, "environment", 4, 2, 1),
        ({"SLURM_CPUS_PER_TASK": "8"}, "srun", 4, 8, 8),  # srun binds a task: the cores seen are its own
        # One task of sbatch with all cores, in which torchrun starts processes that share them.
        ({"SLURM_CPUS_PER_TASK": "16", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, "torchrun", 4, 16, 4),
    ],
)
def test_threads_are_freed_only_from_torchrun(
    environment: dict[str, str], launcher: str, local_world: int, cores: int, threads: int | None
) -> None:
    launch = Launch(launcher, local_rank=0, world_size=local_world, local_world_size=local_world)
    assert choose_threads(environment, launch, cores) == threads


SRUN = {
    "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_NODEID": "2",
    "SLURM_PROCID": "4", "SLURM_LOCALID": "0",
}  # fmt: skip


def test_a_task_of_srun() -> None:
    launch = Launch.read(SRUN)
    assert launch == Launch("srun", 4, 0, 5, 1, 2, "gpu07", launch.port)
    assert launch.port is not None
    assert 20000 <= launch.port < 30000
    first = Launch.read({**SRUN, "SLURM_NODEID": "0", "SLURM_PROCID": "0"})
    assert (first.local_world_size, first.port) == (2, launch.port)
    assert Launch.read({**SRUN, "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "99"}).address == "10.1.2.3"
    assert len({Launch.read({**SRUN, "SLURM_STEP_ID": str(step)}).port for step in range(9)}) == 9, "side by side"


def test_a_batch_job_without_srun_is_one_process() -> None:
    """sbatch sets the number of the job's tasks; only srun starts them."""
    job = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert Launch.read(job) == Launch()
    assert Launch.read({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) == Launch()


def test_torchrun_behind_srun_is_torchrun() -> None:
    assert Launch.read({**SRUN, **launched(5, 1, 8, 4, 1)}).launcher == "torchrun"


def test_a_task_of_open_mpi() -> None:
    task = {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job-1",
    }  # fmt: skip
    launch = Launch.read(task)
    assert launch == Launch("mpirun", 1, 1, 2, 2, 0, "127.0.0.1", launch.port)
    with pytest.raises(DeviceError, match=r"OMPI_COMM_WORLD_SIZE.*MASTER_ADDR cannot be derived"):
        Launch.read({**task, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    away = Launch.read({**task, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a"})
    assert (away.machine, away.address) == (None, "a")


OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("PMIX_NAMESPACE", "prterun-node1-8516@1", "prterun-node1-8517@1"),  # Open MPI 5
        ("OMPI_MCA_ess_base_jobid", "1304035329", "1304035330"),  # Open MPI 4
    ],
)
def test_jobs_of_open_mpi_meet_at_different_ports(name: str, one: str, other: str) -> None:
    ports = [Launch.read({**OPEN_MPI, name: value}).port for value in (one, one, other)]
    assert ports[0] == ports[1] != ports[2]


def test_a_job_of_open_mpi_that_has_no_name() -> None:
    """Two such jobs on a machine would meet at the same port."""
    with pytest.raises(DeviceError, match="mpirun -x MASTER_PORT="):
        Launch.read(OPEN_MPI)
    assert Launch.read({**OPEN_MPI, "MASTER_PORT": "29501"}).port == 29501


@pytest.mark.parametrize(("text", "tasks"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2)", [1, 2, 2])])
def test_slurms_tasks_per_node(text: str, tasks: list[int]) -> None:
    assert expand_tasks(text) == tasks


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("gpu[07-09,12],login1", "gpu07"),
        ("n1,n2", "n1"),
        ("solo", "solo"),
        ("a-[3,5]", "a-3"),
        ("rack[1-2]n1", "rack1n1"),
        ("r[01-02]n[7,9],x", "r01n7"),
    ],
)
def test_slurms_first_host(text: str, host: str) -> None:
    assert first_host(text) == host


def test_the_interface_is_that_of_the_route() -> None:
    assert str(_interface_towards("127.0.0.1")).startswith("lo")
    assert _interface_towards("no.such.host.invalid") is None

"""SageMaker's container: its MPI variables give the ranks."""

from __future__ import annotations

from classify.launch.launch import Launch
from classify.launch.plan import Hardware, plan_devices


def variables(rank: int, local: int) -> dict[str, str]:
    """What a task of `mpirun ... smddprun` sees on the second of two machines with two GPUs each."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "1304035329",
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": "algo-1",  # mpirun hands on that of the machine where it was started
    }


def test_ranks_of_the_data_parallel_library() -> None:
    launch = Launch.read(variables(3, 1))
    assert (launch.launcher, launch.rank, launch.local_rank, launch.world_size) == ("smddprun", 3, 1, 4)
    assert (launch.address, launch.machine) == ("algo-1", None)
    plan = plan_devices(Launch.read(variables(3, 1)), Hardware("cuda", 2))
    assert (plan.device, plan.backend, plan.strategy) == ("cuda:1", "smddp", "ddp")
    requested = plan_devices(Launch.read(variables(3, 1)), Hardware("cuda", 2), backend="nccl")
    assert requested.backend == "nccl"
    assert plan_devices(Launch.read(variables(3, 1)), Hardware("cuda", 2), use_cpu=True).backend == "gloo"  # fmt: skip


def test_the_training_toolkits_torchrun_is_torchrun() -> None:
    launched = {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "algo-1", "MASTER_PORT": "7777",
        "TORCHELASTIC_RUN_ID": "none", "SM_HOSTS": '["algo-1"]',
    }  # fmt: skip
    plan = plan_devices(Launch.read(launched), Hardware("cuda", 2))
    assert (plan.launch.launcher, plan.backend) == ("torchrun", "nccl")

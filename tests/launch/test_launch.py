"""A place among processes that no launcher started: given by hand, or by a flag alone."""

from __future__ import annotations

import os

import pytest

from classify.config.schema import TrainingConfig
from classify.distributed.group import _check_master_address
from classify.errors import DeviceError
from classify.launch.launch import Launch, export


def test_a_place_given_by_hand_replaces_what_stood_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's variables are the parent's place, not that of the processes it spawns."""
    parent = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "3", "MASTER_PORT": "1"}
    monkeypatch.setattr(os, "environ", dict(parent))
    place = Launch.spawned(5, 16, "tcp://[::1]:29500")
    assert (place.rank, place.local_rank, place.world_size, place.local_world_size) == (5, 5, 16, 16)
    assert (place.machine, place.address, place.port) == (None, "::1", 29500)
    assert not place.spans_machines
    export(place)
    assert (os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("5", "16", "29500")
    assert "GROUP_RANK" not in os.environ


def test_the_flag_of_old_launchers_stands_for_the_variable() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    place = Launch.read(environment, local_rank=1)
    TrainingConfig(use_cpu=True, local_rank=1).check_start(place)
    assert not place.is_main
    assert place.spans_machines, "nobody says how many of the two are here"
    assert not place.is_local_main


@pytest.mark.parametrize("rank", range(4))
def test_mpirun_under_slurm_is_not_srun(rank: int) -> None:
    """The daemon that mpirun starts on each of two machines is a task of srun, and its tasks inherit the variables."""
    daemon = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank // 2), "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    names = {"SIZE": 4, "RANK": rank, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2}
    task = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
    place = Launch.read({**daemon, **task, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
    assert (place.launcher, place.rank, place.local_rank, place.world_size) == ("mpirun", rank, rank % 2, 4)
    with pytest.raises(DeviceError, match="mpiexec started 4 tasks"):
        Launch.read({**daemon, "PMI_SIZE": "4", "PMI_RANK": str(rank)})
    assert Launch.read({**daemon, "PMI_SIZE": "2"}).launcher == "srun"


def test_a_local_rank_of_minus_one_is_none() -> None:
    assert Launch.read({"LOCAL_RANK": "-1"}) == Launch()
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(DeviceError, match="LOCAL_RANK is not set; start with torchrun"):
        Launch.read({**place, "LOCAL_RANK": "-1"})
    with pytest.raises(DeviceError, match="LOCAL_WORLD_SIZE above 0; correct them"):
        Launch.read({**place, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"})


@pytest.mark.parametrize(
    "place",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    ],
)
def test_a_world_of_one_needs_no_launcher(place: dict[str, str]) -> None:
    """Notebooks and frameworks leave such variables; torchrun's one process has all of them."""
    assert Launch.read(place) == Launch()


@pytest.mark.parametrize(
    "place",
    [
        {"RANK": "0"},
        {"RANK": "1", "WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"PMI_SIZE": "2", "PMI_RANK": "1"},  # of an unknown launcher: each would train alone
    ],
)
def test_other_worlds_need_all_variables(place: dict[str, str]) -> None:
    with pytest.raises(DeviceError):
        Launch.read(place)
    whole = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert Launch.read(whole).local_rank == 0


@pytest.mark.parametrize(
    ("address", "port", "message"),
    [
        ("127.0.0.1", 0, "MASTER_PORT=0: expected a port from 1 to 65535"),
        ("127.0.0.1", 70_000, "MASTER_PORT=70000: expected a port from 1 to 65535"),
        ("a..b", 29_500, "MASTER_ADDR=a..b cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be(address: str, port: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        _check_master_address(address, port)

"""A place among processes that no launcher started: given by hand, or by a flag alone."""

from __future__ import annotations

import os

import pytest

from classify.config.schema import TrainingConfig
from classify.distributed.network import check_master_address
from classify.errors import DeviceError
from classify.launch import launcher
from classify.training.inputs import check_start


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment of the test's own."""
    own: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", own)
    return own


def test_a_place_given_by_hand_replaces_what_stood_there(environment: dict[str, str]) -> None:
    """A pod's variables are the parent's place, not that of the processes it spawns; a second training meets anew."""
    environment |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "3", "MASTER_PORT": "1"}
    launcher.set_rank_variables(5, 16, "tcp://[::1]:29500")
    place = launcher.read_launch(environment)
    assert (place.rank, place.local_rank, place.world_size, place.local_world_size) == (5, 5, 16, 16)
    assert (place.machine, place.address, place.port) == (None, "::1", 29500)
    assert not launcher.here().spans_machines
    launcher.set_rank_variables(5, 16, "tcp://node0:29501")
    assert launcher.read_launch(environment).port == 29501


def test_with_a_local_rank_there_may_be_several_machines(environment: dict[str, str]) -> None:
    launcher.set_rank_variables(1, 2, "tcp://node0:29500", 0)
    assert launcher.here().spans_machines
    launcher.export(launcher.read_launch(environment))
    assert launcher.here().spans_machines, "what nobody has said is not known later either"


def test_the_flag_of_old_launchers_is_the_place_for_all_who_ask(environment: dict[str, str]) -> None:
    environment |= {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    check_start(TrainingConfig(use_cpu=True, local_rank=1))
    assert not launcher.here().is_main
    assert launcher.here().spans_machines, "nobody says how many of the two are here"
    assert not launcher.here().is_local_main


@pytest.mark.parametrize("rank", range(4))
def test_mpirun_under_slurm_is_not_srun(rank: int) -> None:
    """The daemon that mpirun starts on each of two machines is a task of srun, and its tasks inherit the variables."""
    daemon = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank // 2), "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    names = {"SIZE": 4, "RANK": rank, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2}
    task = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
    place = launcher.read_launch({**daemon, **task, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
    assert (place.launcher, place.rank, place.local_rank, place.world_size) == ("mpirun", rank, rank % 2, 4)
    with pytest.raises(DeviceError, match="mpiexec started 4 tasks"):
        launcher.read_launch({**daemon, "PMI_SIZE": "4", "PMI_RANK": str(rank)})
    assert launcher.read_launch({**daemon, "PMI_SIZE": "2"}).launcher == "srun"


def test_a_local_rank_of_minus_one_is_none() -> None:
    assert launcher.read_launch({"LOCAL_RANK": "-1"}) == launcher.Launch()
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(DeviceError, match="LOCAL_RANK is not; it chooses the device"):
        launcher.read_launch({**place, "LOCAL_RANK": "-1"})
    with pytest.raises(DeviceError, match="LOCAL_WORLD_SIZE=0: expected the number of processes"):
        launcher.read_launch({**place, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"})


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
    assert launcher.read_launch(place) == launcher.Launch()


@pytest.mark.parametrize("place", [{"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_other_worlds_need_all_variables(place: dict[str, str]) -> None:
    with pytest.raises(DeviceError):
        launcher.read_launch(place)
    whole = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert launcher.read_launch(whole).local_rank == 0


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
        check_master_address(address, port)

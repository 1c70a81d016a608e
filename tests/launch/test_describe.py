"""What the program says about ranks and devices, also of a cluster that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.launch.describe import planned_cluster, table, words
from tests.support.person import Person


def test_two_machines_with_two_npus_each() -> None:
    topology, plan = planned_cluster([2, 2], "npu")
    places = [(e["machine"], e["rank"], e["local_rank"], e["device"]) for e in topology]
    assert places == [(0, 0, 0, "npu:0"), (0, 1, 1, "npu:1"), (1, 2, 0, "npu:0"), (1, 3, 1, "npu:1")]
    assert plan.backend == "hccl"
    text = table(topology, plan, 64)
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["yes", "no", "no", "no"]
    assert text.count("about 16") == 4
    printed = words(topology, plan)
    for part in ("world size: 4 processes on 2 machines", "DistributedDataParallel over hccl", "global rank 0 alone"):
        assert part in printed


def test_unequal_machines() -> None:
    """Rank 3 is local rank 0 of the second machine: not what rank % (processes of a machine) would say of the first."""
    topology, _ = planned_cluster([3, 1, 2], "cuda")
    assert [(e["machine"], e["rank"], e["local_rank"]) for e in topology] == [
        (0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 3, 0), (2, 4, 0), (2, 5, 1),
    ]  # fmt: skip
    assert [e["device"] for e in topology] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:0", "cuda:1"]


def test_a_planned_cluster_needs_no_torch(person: Person) -> None:
    done = person.types("devices", "--nnodes", "2", "--nproc-per-node", "2", "--device", "npu", program="classify")
    assert done.returncode == 0, done.stderr
    assert "npu:1" in done.stdout
    assert person.report.read_text() == ""


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--nproc-per-node", "2,1", "--nnodes", "3"], "gives 2 counts, but --nnodes is 3; give one count per machine"),
        (["--nproc-per-node", "2", "--device", "abacus"], "--device must be one of cuda"),
        (["--device", "npu"], "--device npu is for a planned cluster; add --nnodes or --nproc-per-node"),
    ],
)
def test_wrong_flags_of_devices(person: Person, flags: list[str], part: str) -> None:
    assert part in person.fails("devices", *flags, program="classify")


def test_this_machine_is_explained(person: Person) -> None:
    done = person.types("devices", "--cpu", program="classify")
    assert "device: cpu (--cpu)" in done.stdout
    assert Path(person.folder, "runs").exists() is False

"""Describe the ranks and devices of this machine, or of a planned cluster, in a table and a sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from classify.console import align_columns
from classify.errors import InputError
from classify.launch.devices import ACCELERATORS, accelerator_of
from classify.launch.launch import Launch, places
from classify.launch.plan import DevicePlan, Hardware, plan_devices

Entry = dict[str, Any]
# Ranks that one line names: of more, the first and the last ones.
_MOST_IN_A_LINE = 8
_FIRST = 4
_LAST = 2
_COLUMNS = (
    "machine", "rank", "local rank", "device", "rows per step", "share of the data", "sampler", "writes files",
)  # fmt: skip


def planned_cluster(per_machine: Sequence[int], kind: str) -> tuple[list[Entry], DevicePlan]:
    """The topology of machines with `per_machine` processes each, and the plan of rank 0.

    Uses `plan_devices`, like a real run; needs no hardware. Raises InputError for counts below 1 or an unknown kind.
    """
    kinds = [name for name, accelerator in ACCELERATORS.items() if not accelerator.compiles]
    if kind not in kinds:
        raise InputError(f"--device must be one of {', '.join(kinds)}. Got {kind!r} instead.")
    if not per_machine or min(per_machine) < 1:
        raise InputError("--nnodes and --nproc-per-node must be whole numbers above 0.")
    plans = [
        plan_devices(place, Hardware() if kind == "cpu" else Hardware(kind, place.local_world_size))
        for place in places(per_machine)
    ]
    topology: list[Entry] = [
        {
            "machine": plan.launch.machine,
            "rank": plan.launch.rank,
            "local_rank": plan.launch.local_rank,
            "device": plan.device,
        }
        for plan in plans
    ]
    return topology, plans[0]


def physical(device: str, environment: Mapping[str, str]) -> str:
    """Add a device's number in the machine: "cuda:0 (device 1)" with CUDA_VISIBLE_DEVICES=1,2.

    `environment` is that of a process on the device's machine; without it the device stands alone.
    """
    kind, _, index = device.partition(":")
    visible = environment.get(accelerator_of(kind).visible or "", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not names or not index.isdecimal() or int(index) >= len(names):
        return device
    return f"{device} (device {names[int(index)]})"


def _device(entry: Entry, topology: Sequence[Entry], environment: Mapping[str, str]) -> str:
    """An entry's device, with its number in the machine where rank 0's `environment` holds for it.

    It does not on other machines, nor where a scheduler shows each process a different first device.
    """
    first = topology[0]
    alike = entry is first or (entry["machine"] == first["machine"] and entry["device"] != first["device"])
    return physical(entry["device"], environment if alike else {})


def table(
    topology: Sequence[Entry],
    plan: DevicePlan,
    batch_size: int,
    environment: Mapping[str, str],
    each_node: bool = False,
) -> str:
    """A table with one line per process; `each_node` is --save-on-each-node."""
    world = len(topology)
    share = batch_size / world
    lines: list[tuple[str, ...]] = [_COLUMNS]
    for entry in topology:
        device = _device(entry, topology, environment)
        if plan.n_gpu > 1:
            device = f"{device} to {entry['device'].partition(':')[0]}:{plan.n_gpu - 1}"
        place = Launch(rank=entry["rank"], local_rank=entry["local_rank"])
        writes = place.is_main or (each_node and place.is_local_main)
        lines.append(
            (
                str(entry["machine"]),
                str(entry["rank"]),
                str(entry["local_rank"]),
                device,
                str(batch_size) if world == 1 else f"about {share:,.0f}" if share >= 100 else f"about {share:.3g}",
                f"{100 / world:.3g} %",
                "random" if world == 1 else "distributed",
                "yes" if writes else "no",
            )
        )
    return "\n".join(align_columns(lines))


def line(topology: Sequence[Entry], environment: Mapping[str, str]) -> str:
    """All ranks of a run in one line."""
    ranks = [
        f"rank {entry['rank']} = machine {entry['machine']}, local rank {entry['local_rank']}, "
        f"{_device(entry, topology, environment)}"
        for entry in topology
    ]
    if len(ranks) > _MOST_IN_A_LINE:
        ranks[_FIRST:-_LAST] = [f"... {len(ranks) - _FIRST - _LAST} more in run.json"]
    return "; ".join(ranks)


def words(topology: Sequence[Entry], plan: DevicePlan, each_node: bool = False) -> str:
    """An explanation of the table, one line per fact: `key: value`."""
    facts = _one_process(plan) if len(topology) == 1 else _several_processes(topology, plan, each_node)
    return "\n".join(f"{key}: {value}" for key, value in facts.items())


def _one_process(plan: DevicePlan) -> dict[str, str]:
    if plan.launch.local_rank >= 0:
        alone = "1, started by a launcher (rank 0, local rank 0); it works as without a launcher"
        return {"world size": alone, "device": plan.device}
    facts = {"world size": "1, not started by a launcher (local rank -1)"}
    if plan.spec.spreads_layers:
        places = f"{plan.n_gpu}, which compute in turn" if plan.n_gpu > 1 else plan.device
        return facts | {
            "devices": f"{places}; the layers of one model are spread over them ({plan.spec.display_name})",
            "faster": "several processes with --strategy fsdp: each device computes every layer on its own rows",
        }
    if plan.n_gpu > 1:
        return facts | {
            "devices": f"{plan.n_gpu}; each step copies the model to all of them and splits the batch (DataParallel)",
            "faster": f"one process per device: --nproc {plan.n_gpu}, or torchrun --nproc-per-node {plan.n_gpu}",
        }
    return facts | {"device": f"{plan.device} ({plan.reason})"}


def _several_processes(topology: Sequence[Entry], plan: DevicePlan, each_node: bool) -> dict[str, str]:
    machines = len({entry["machine"] for entry in topology})
    where = f"{machines} machine{'s' if machines > 1 else ''}"
    return {
        "world size": f"{len(topology)} processes on {where}, {plan.spec.display_name} over {plan.backend}",
        "rank": "number of the process among the processes of all machines",
        "local rank": "number of the process on its machine; "
        + ("it chooses the device" if plan.device != "cpu" else "all share the CPUs"),
        "rows": "each step's rows are divided by token count, and none is repeated",
        "weights": "sharded over the processes" if plan.spec.shards_weights else "the same in every process",
        "files": (
            "local rank 0 of each machine writes all files there (--save-on-each-node), unless they share the folder"
            if each_node
            else "written by the global rank 0 alone, since every machine has a local rank 0"
        ),
    }

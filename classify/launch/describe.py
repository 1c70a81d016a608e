"""Describe the ranks and devices of this machine, or of a planned cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from classify.console import align_columns
from classify.errors import InputError
from classify.launch import accelerators
from classify.launch.accelerators import ACCELERATORS
from classify.launch.device_plan import DevicePlan, Hardware, plan_devices
from classify.launch.launcher import Launch, launched_environments, read_launch

Entry = dict[str, Any]


def planned_cluster(per_machine: Sequence[int], kind: str) -> tuple[list[Entry], DevicePlan]:
    """Return the topology of machines with `per_machine` processes each, and the plan of rank 0.

    Uses `plan_devices`, like a real run; needs no hardware. Raises InputError for counts below 1 or an unknown kind.
    """
    kinds = [name for name, accelerator in ACCELERATORS.items() if not accelerator.one_process]
    if kind not in kinds:
        raise InputError(f"--device must be one of {', '.join(kinds)}. Got {kind!r} instead.")
    if not per_machine or min(per_machine) < 1:
        raise InputError("--nnodes and --nproc-per-node must be whole numbers above 0.")
    plans = []
    for environment in launched_environments(per_machine):
        count = per_machine[read_launch(environment).machine or 0]
        hardware = Hardware() if kind == "cpu" else Hardware(kind, count)
        plans.append(plan_devices(use_cpu=kind == "cpu", local_rank=-1, environment=environment, hardware=hardware))
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
    """Add a device's number in the machine: with CUDA_VISIBLE_DEVICES=1,2 return "cuda:0 (GPU 1)".

    `environment` is that of a process on the device's machine; if empty, return the device alone.
    """
    kind, _, index = device.partition(":")
    accelerator = accelerators.of(kind)
    visible = environment.get(accelerator.visible or "", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not names or not index.isdecimal() or int(index) >= len(names):
        return device
    return f"{device} ({f'{accelerator.noun} {names[int(index)]}'.strip()})"


def _device(entry: Entry, topology: Sequence[Entry], environment: Mapping[str, str]) -> str:
    """Return an entry's device, with its number in the machine where rank 0's `environment` holds for it.

    That is not so on other machines, nor where a scheduler shows each process a different first device.
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
    """Return a table with one line per process; `each_node` is --save-on-each-node."""
    world = len(topology)
    header = (
        "machine",
        "rank",
        "local rank",
        "device",
        "rows per step",
        "share of the data",
        "sampler",
        "writes files",
    )
    lines: list[tuple[str, ...]] = [header]
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
                str(batch_size) if world == 1 else f"about {batch_size / world:.3g}",
                f"{100 / world:.3g} %",
                "random" if world == 1 else "distributed",
                "yes" if writes else "no",
            )
        )
    return "\n".join(align_columns(lines))


def line(topology: Sequence[Entry], environment: Mapping[str, str]) -> str:
    """Return all ranks of a run in one line; of more than 8, the first 4 and the last 2."""
    places = [
        f"rank {entry['rank']} = machine {entry['machine']}, local rank {entry['local_rank']}, "
        f"{_device(entry, topology, environment)}"
        for entry in topology
    ]
    if len(places) > 8:
        places[4:-2] = [f"... {len(places) - 6} more in run.json"]
    return "; ".join(places)


def show(
    topology: Sequence[Entry],
    plan: DevicePlan,
    batch_size: int,
    environment: Mapping[str, str],
    each_node: bool = False,
) -> None:
    """Print the table and the explanation."""
    print(table(topology, plan, batch_size, environment, each_node))
    print()
    print(words(topology, plan, each_node))


def words(topology: Sequence[Entry], plan: DevicePlan, each_node: bool = False) -> str:
    """Return an explanation of the table."""
    world = len(topology)
    machines = len({entry["machine"] for entry in topology})
    if plan.spec.spreads_layers:
        where = f"{plan.n_gpu} devices, which take turns" if plan.n_gpu > 1 else "its device, main memory and disk"
        return (
            f"No launcher started this process, so its local rank is -1, and it spreads the layers of one model over "
            f"{where}. Where several processes can be started, --strategy fsdp keeps all devices busy: each "
            "computes every layer on its own rows."
        )
    if world == 1 and plan.n_gpu > 1:
        return (
            f"No launcher started this process, so its local rank is -1, and it sees {plan.n_gpu} devices: it copies "
            "the model to all of them at every step and splits the batch (DataParallel). One process per device is "
            f"faster: --nproc {plan.n_gpu}, or torchrun --nproc-per-node {plan.n_gpu}."
        )
    if world == 1 and plan.launch.local_rank < 0:
        return (
            f"No launcher started this process, so its local rank is -1: there is one process, it computes on "
            f"{plan.device} ({plan.reason}), draws all rows in random order and writes all files."
        )
    if world == 1:
        return (
            "A launcher started this process and no other: its rank and local rank are 0. It behaves like a process "
            f"without a launcher: it computes on {plan.device}, draws all rows in random order and writes all files."
        )
    use = "it chooses the device" if plan.device != "cpu" else "on CPUs it chooses nothing, all share them"
    whole = "together they hold one model" if plan.spec.shards_weights else "every process ends with the same weights"
    return (
        f"{world} processes on {machines} machine{'s' if machines > 1 else ''} train together "
        f"({plan.spec.display_name} over {plan.backend}). The rank counts processes over all machines, the local "
        f"rank on one machine, where {use}. The rows of a step are divided by token count, none is repeated, and "
        f"{whole}. "
        + (
            "Local rank 0 of each machine writes all files there (--save-on-each-node), unless they share the folder."
            if each_node
            else "Each machine has a local rank 0, so it is the global rank 0 alone that writes files."
        )
    )

"""Describe the ranks and devices of this machine, or of a planned cluster, in a table and a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from classify.console import align_columns
from classify.errors import InputError
from classify.launch.devices import ACCELERATORS
from classify.launch.launch import places
from classify.launch.plan import DevicePlan, Hardware, plan_devices

Entry = dict[str, Any]
# Ranks that one line names.
_MOST_IN_A_LINE = 8
_COLUMNS = (
    "machine", "rank", "local rank", "device", "rows per step", "share of the data", "sampler", "writes files",
)  # fmt: skip


def planned_cluster(per_machine: Sequence[int], kind: str) -> tuple[list[Entry], DevicePlan]:
    """The topology of machines with `per_machine` processes each, and the plan of rank 0.

    Uses `plan_devices`, like a real run; needs no hardware. Raises InputError for an unknown kind of device.
    """
    kinds = [name for name, accelerator in ACCELERATORS.items() if not accelerator.compiles]
    if kind not in kinds:
        raise InputError(f"--device must be one of {', '.join(kinds)}. Got {kind!r} instead.")
    plans = [
        plan_devices(place, Hardware() if kind == "cpu" else Hardware(kind, place.local_world_size))
        for place in places(per_machine)
    ]
    return [plan.place() for plan in plans], plans[0]


def table(topology: Sequence[Entry], plan: DevicePlan, batch_size: int) -> str:
    """A table with one line per process."""
    world = len(topology)
    share = batch_size / world
    lines: list[tuple[str, ...]] = [_COLUMNS]
    for entry in topology:
        last = f" to {entry['device'].partition(':')[0]}:{plan.n_gpu - 1}" if plan.n_gpu > 1 else ""
        lines.append(
            (
                str(entry["machine"]),
                str(entry["rank"]),
                str(entry["local_rank"]),
                entry["device"] + last,
                str(batch_size) if world == 1 else f"about {share:,.0f}" if share >= 100 else f"about {share:.3g}",
                f"{100 / world:.3g} %",
                "random" if world == 1 else "distributed",
                "no" if entry["rank"] else "yes",
            )
        )
    return "\n".join(align_columns(lines))


def line(topology: Sequence[Entry]) -> str:
    """The first ranks of a run in one line."""
    ranks = [
        f"rank {entry['rank']} = machine {entry['machine']}, local rank {entry['local_rank']}, {entry['device']}"
        for entry in topology[:_MOST_IN_A_LINE]
    ]
    if len(topology) > _MOST_IN_A_LINE:
        ranks.append(f"{len(topology) - _MOST_IN_A_LINE} more in run.json")
    return "; ".join(ranks)


def words(topology: Sequence[Entry], plan: DevicePlan) -> str:
    """An explanation of the table, one line per fact: `key: value`."""
    if len(topology) == 1:
        notes = [finding.line() for finding in plan.findings]
        return "\n".join([f"device: {plan.describe()} ({plan.reason})", *notes])
    machines = len({entry["machine"] for entry in topology})
    chooses = "all share the CPUs" if plan.device == "cpu" else "it chooses the device"
    return "\n".join(
        [
            f"world size: {len(topology)} processes on {machines} machine{'s' if machines > 1 else ''}, "
            f"{plan.spec.display_name} over {plan.backend}",
            "rank: number of the process among the processes of all machines",
            f"local rank: number of the process on its machine; {chooses}",
            "rows: each step's rows are divided by token count, and none is repeated",
            "files: written by the global rank 0 alone, since every machine has a local rank 0",
        ]
    )

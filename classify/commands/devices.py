"""Show the ranks and devices of this machine, or of a planned cluster."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from classify import distributed
from classify.config.fields import above, option, parse
from classify.config.parser import CommandParser
from classify.config.recipe import Recipe
from classify.config.schema import TrainingConfig
from classify.errors import InputError
from classify.launch import describe
from classify.launch.launch import Launch


@dataclass(frozen=True)
class Options:
    nnodes: int | None = option(None, "plan a cluster of this many machines instead of this one", check=above(0))
    nproc_per_node: str | None = option(None, "processes per machine; 2,1 if unequal", metavar="N")
    device: str | None = option(
        None, "device type of the planned cluster: cuda, npu, xpu, ..., cpu (default: cuda)", metavar="KIND"
    )
    batch_size: int = option(Recipe.batch_size, "global batch size", check=above(0))
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda")


make_parser = functools.partial(
    CommandParser, Options, description="Show the device of each rank, and why; nothing is trained."
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments)
    if options.nnodes is not None or options.nproc_per_node is not None:
        counts = _count_processes(options)
        topology, plan = describe.planned_cluster(counts, "cpu" if options.use_cpu else options.device or "cuda")
    elif options.device is not None:
        raise InputError(f"--device {options.device} is for a planned cluster; add --nnodes or --nproc-per-node.")
    else:
        settings = TrainingConfig(use_cpu=options.use_cpu)
        with distributed.group.start(settings._setup_devices(Launch.read()), settings.ddp_timeout) as world:
            topology, plan = world.topology, world.plan
    if plan.launch.is_main:
        print(describe.table(topology, plan, options.batch_size), end="\n\n")
        print(describe.words(topology, plan))
    return 0


def _count_processes(options: Options) -> list[int]:
    """The number of processes of each machine. Raises InputError for counts that do not fit."""
    words = (options.nproc_per_node or "1").split(",")
    counts = [int(parse(word, (int,), "--nproc-per-node", above(0))) for word in words]
    machines = options.nnodes or len(counts)
    if len(counts) not in (1, machines):
        raise InputError(
            f"--nproc-per-node {options.nproc_per_node} gives {len(counts)} counts, but --nnodes is {machines}; give "
            "one count per machine."
        )
    return counts * (machines if len(counts) == 1 else 1)

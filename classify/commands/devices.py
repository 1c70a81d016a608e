"""Show the ranks and devices of this machine, or of a planned cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from classify import distributed
from classify.commands import flags
from classify.config.parser import Parser
from classify.config.recipe import Recipe
from classify.config.schema import TrainingConfig
from classify.errors import ErrorList, InputError
from classify.launch import describe
from classify.launch.launch import Launch

_PLANNED = "cuda"
# A line is printed for each.
_MOST_PROCESSES = 10_000


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Show the device of each rank, and why; nothing is trained.")
    parser.add_argument("--nnodes", metavar="N", help="plan a cluster of N machines instead of this one")
    parser.add_argument("--nproc-per-node", metavar="N", help="processes per machine; 2,1 if unequal")
    parser.add_argument(
        "--device",
        metavar="KIND",
        help=f"device type of the planned cluster: cuda, npu, xpu, ..., cpu (default: {_PLANNED})",
    )
    size = str(Recipe.batch_size)
    parser.add_argument("--batch-size", metavar="N", default=size, help="global batch size (default: %(default)s)")
    parser.add_argument("--cpu", "--use-cpu", "--no-cuda", action="store_true", help="use the CPU only")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments)
    texts = (options.nproc_per_node or "1").split(",")
    faults = ErrorList()
    with faults.collect():
        nnodes = options.nnodes and flags.count(options.nnodes, "--nnodes")
    with faults.collect():
        counts = [flags.count(text, "--nproc-per-node") for text in texts]
    planned = options.nnodes is not None or options.nproc_per_node is not None
    with faults.collect():
        if options.device is not None and not planned:
            raise InputError(f"--device {options.device} is for a planned cluster; add --nnodes or --nproc-per-node.")
    with faults.collect():
        batch_size = flags.count(options.batch_size, "--batch-size")
    faults.raise_if_any()
    if planned:
        machines = nnodes or len(counts)
        if (processes := machines * max(counts)) > _MOST_PROCESSES:
            raise InputError(
                f"--nnodes, --nproc-per-node: expected up to {_MOST_PROCESSES:,} processes. Got {processes:,} instead."
            )
        per_machine = counts * (machines if len(counts) == 1 else 1)
        if len(per_machine) != machines:
            raise InputError(
                f"--nproc-per-node {options.nproc_per_node} gives {len(counts)} counts, but --nnodes is {machines}; "
                "give one count per machine."
            )
        topology, plan = describe.planned_cluster(per_machine, "cpu" if options.cpu else options.device or _PLANNED)
    else:
        settings = TrainingConfig(use_cpu=options.cpu)
        with distributed.group.start(settings._setup_devices(Launch.read()), settings.ddp_timeout) as world:
            topology, plan = world.topology, world.plan
    if plan.launch.is_main:
        print(describe.table(topology, plan, batch_size, {} if planned else os.environ), end="\n\n")
        print(describe.words(topology, plan))
    return 0

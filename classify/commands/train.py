"""Train a classifier; the same as run_classify.py."""

from __future__ import annotations

import os
from collections.abc import Sequence

from classify.commands.failure import print_error_early
from classify.config.parser import parse_training, training_parser
from classify.errors import escape_controls
from classify.launch import device_plan, launcher, spawn

make_parser = training_parser


def run(arguments: Sequence[str], program: str) -> int:
    config = parse_training(arguments, program)
    import psutil

    from classify.training.inputs import check_inputs, check_start
    from classify.training.timeline import Timeline

    check_start(config.training)
    timeline = Timeline(psutil.Process().create_time())
    with launcher.forward_errors(config.training.start, print_error_early):
        inputs = check_inputs(config)
    if config.training.nproc is not None and not launcher.here().is_worker:
        count = device_plan.count_devices() if config.training.nproc == "gpu" else config.training.nproc
        return spawn.run_processes(["train", *arguments], count)
    if config.plan:
        from classify.console import format_seconds, list_seconds
        from classify.launch import describe
        from classify.training.estimate import estimate, guess_length

        with inputs.config.training.start() as world:
            world.receive_faults()
            length = guess_length(inputs)
            expected = estimate(inputs, world, length)
            if world.is_main:
                for line in inputs.describe():
                    print(escape_controls(line))
                print()
                training = inputs.config.training
                batch, each = training.train_batch_size, training.save_on_each_node
                describe.show(world.topology, world.plan, batch, os.environ, each)
                print(f"\nestimated for texts of about {length:.0f} tokens; without startup, baseline and files:")
                print(f"time: about {format_seconds(expected.total_seconds)} ({list_seconds(expected.seconds)})")
                print(f"memory: {expected.memory.describe()}, without what --compact-vocabulary saves")
        return 0
    timeline.end("start and checks")
    from classify.training.run import train

    timeline.end("imports")
    folder = train(config, inputs, timeline=timeline)
    # The report's libraries are not imported before training ends.
    from classify.report.after_run import write_pages_of_run

    write_pages_of_run(folder, config.training, timeline)
    return 0

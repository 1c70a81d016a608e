"""Train a classifier; the same as run_classify.py."""

from __future__ import annotations

from collections.abc import Sequence

from classify.commands.failure import print_error_early
from classify.config.parser import parse_training, training_parser
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
    timeline.end("start and checks")
    from classify.training.run import train

    timeline.end("imports")
    folder = train(config, inputs, timeline=timeline)
    # The report's libraries are not imported before training ends.
    from classify.report.after_run import write_pages_of_run

    write_pages_of_run(folder, config.training, timeline)
    return 0

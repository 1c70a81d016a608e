"""Train a classifier; the same as run_classify.py."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from classify import report, training
from classify.commands.flags import announce_errors
from classify.config.parser import parse_training, training_parser
from classify.launch.launch import Launch
from classify.launch.nproc import run_processes
from classify.launch.plan import count_devices

make_parser = training_parser


def run(arguments: Sequence[str], program: str) -> int:
    config = parse_training(arguments, program)
    launch = Launch.read(local_rank=config.training.local_rank)
    timeline = training.terminal.Timeline(psutil.Process().create_time())
    with announce_errors(launch, config.training):
        inputs = training.inputs.check(config, launch=launch)
    if config.training.nproc is not None and not launch.is_worker:
        count = count_devices() if config.training.nproc == "gpu" else config.training.nproc
        return run_processes(["train", *arguments], count)
    timeline.end("start and checks")
    train = training.run.train
    timeline.end("imports")
    folder = train(config, inputs, launch=launch, timeline=timeline)
    # The report's libraries are not imported before training ends.
    report.page.write_pages_of_run(folder, config.training, timeline, launch)
    return 0

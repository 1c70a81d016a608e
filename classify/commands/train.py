"""Train a classifier; the same as run_classify.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from classify.commands.failure import print_error_early
from classify.config.parser import parse_training, print_help
from classify.errors import escape_controls
from classify.launch import device_plan, launcher, spawn


def run(arguments: Sequence[str], program: str) -> int:
    """Run the command."""
    if print_help(arguments, program):
        return 0
    config = parse_training(arguments, program)
    from classify.training.inputs import check_inputs, check_start

    check_start(config.training)
    with launcher.forward_errors(config.training.start, print_error_early):
        inputs = check_inputs(config)
    if config.training.nproc is not None and not launcher.is_nproc_worker():
        count = device_plan.one_per_device() if config.training.nproc == "gpu" else config.training.nproc
        return spawn.run_processes(["train", *arguments], count)
    if config.plan:
        from classify.launch import describe
        from classify.training import memory_forecast

        world = inputs.config.training.start()
        try:
            world.raise_if_any_rank_failed(None)
            memory = memory_forecast.describe_memory(inputs, world)
            if world.is_main:
                for line in inputs.describe_all():
                    print(escape_controls(line))
                print()
                training = inputs.config.training
                batch, each = training.train_batch_size, training.save_on_each_node
                describe.show(world.topology, world.plan, batch, os.environ, each)
                print(f"\n{memory}")
        finally:
            world.close()
        return 0
    import psutil

    from classify.training.run import train

    folder = train(config, inputs, started=psutil.Process().create_time())
    if launcher.is_main_process() or (config.training.save_on_each_node and launcher.should_print_errors()):
        write_report(folder, use_cpu=config.training.use_cpu)
    return 0


def write_report(folder: Path, *, use_cpu: bool = False) -> None:
    """Write report.html and, of a training run, the model card, where the folder has new results.

    A failure is a note: the run is done.
    """
    page, scores = folder / "report.html", folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return
    try:
        from classify.report import page as report
        from classify.report.card import write_card

        if (folder / "classify.json").exists():  # the folder of an evaluation has no model
            from classify.prediction.explanations import write_explanations

            write_explanations(folder, use_cpu=use_cpu)
            write_card(folder)
        report.write_report(folder)
    except Exception as error:
        print(escape_controls(f"note: {page} is not written ({type(error).__name__}: {error})"))
    else:
        print(escape_controls(f"report: {page}"))

"""A training run, from a command to a folder of results. Read this page first.

`classify train` and `classify.train` come to `train` below with a `RunConfig`: the settings that were given, and where
each came from. Under torchrun, srun, mpirun or --nproc every process comes here; its `Launch` says which one it is.

**Inputs.** Before torch does anything, `inputs.check` looks at all that can be wrong. It reads the tables into
Arrow (`classify.tables`), lets a task recognize what the labels mean (`classify.tasks`), finds the model's files,
splits the rows (`classify.data.split_table`), and fills in what nobody gave with the recipe's values. Faults are
reported together. A `teacher` labels the rows of --unlabelled-data, after a training of its own if need be. Where
some labels are not trusted, `sources` leaves out those that do not help.
`setup.tokenize_tables` then turns each table into token ids once, for every split and fold.

**World.** `group.start` carries out the device plan: it sets the device and, where several processes train, forms the
process group. From there on `World` is all that anybody knows of other ranks. `setup.prepare` loads the model, locks
the output folder, finds the checkpoint to continue from, and decides precision and packing. It returns the frozen
`TrainingContext`, which everything below gets.

**Training.** A `Trainer` owns the weights, the optimizer and the progress through the batch plan
(`classify.data.sampler`): step k consists of the same rows on any number of processes. With folds, `cross_validate`
first trains a model on each and keeps the logits of the rows left out. A new run starts its head (`stages.start_head`:
steps on pairs of texts, then a linear probe); a resumed one loads the newest checkpoint that verifies. `stages.fit`
takes the steps. After each one the callbacks log, score the validation rows and save, in this order.

**Results.** `finish` restores the weights that --keep selects, calibrates them, scores the test rows and writes the
folder (`result_files`). The report and the model card are made from its files alone, after training
(`classify.report`).

**Errors.** What all ranks see ends each of them with the same line. Around checkpoints and the files of a run, what one
rank alone sees, such as a full disk, reaches the others at the block's end (`World.sync_errors`). Elsewhere that rank
prints its line and ends, and the others lose it in their next exchange. A signal ends the loop after the same step on
all ranks and behind a checkpoint, and raises `Interrupted`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.config.run_config import RunConfig
from classify.config.schema import NO_TEACHER, TrainingConfig
from classify.distributed import group
from classify.distributed.world import World
from classify.errors import InputError
from classify.findings import decisions, note
from classify.launch.launch import Launch
from classify.modeling.load import quiet_libraries
from classify.tables.table import Table
from classify.training import resume, stages, teacher
from classify.training.callbacks import Checkpointer, Evaluate, GivenCallbacks, describe_collapse
from classify.training.finish import finish
from classify.training.folds import cross_validate
from classify.training.inputs import RunInputs, check
from classify.training.log import Log
from classify.training.parts import Parts
from classify.training.run_record import make_record
from classify.training.setup import TrainingContext, prepare, tokenize_tables
from classify.training.sources import judge_sources
from classify.training.terminal import Timeline, configure_terminal, log, log_decision, log_detail
from classify.training.trainer import make_trainer

# Held while a training runs.
_TRAINING = threading.Lock()


def train(
    config: RunConfig,
    inputs: RunInputs | None = None,
    *,
    launch: Launch | None = None,
    timeline: Timeline | None = None,
    parts: Parts | None = None,
    in_memory: Mapping[str, Table] | None = None,
) -> Path:
    """Run a training from start to finish and return the output folder. Every rank calls it.

    `launch` is the place of this process: where the caller does not give it (`Launch.spawned` for processes started by
    hand), the launcher's variables say it. `inputs` are what `inputs.check` has returned for this configuration.
    `timeline` begins when the command was given (default: now), for --max-minutes; the run adds its phases. `parts` are
    the caller's callbacks, loss and metrics, the same on every rank. Tables `in_memory`, by flag, take the place of
    files.

    Raises InputError (arguments, data), CheckpointError (there are checkpoints, but none is valid) and Interrupted (a
    signal came; the run was saved).
    """
    launch = launch or Launch.read(local_rank=config.training.local_rank)
    timeline, parts = timeline or Timeline(), parts or Parts()
    if config.training.nproc is not None and not launch.is_worker:
        raise InputError(
            "nproc is for the command line: train works in the process that calls it; start several with torchrun, or "
            "call it in each with rank, world_size and init_method."
        )
    # Seeds, precision and thread counts are the process's.
    if not _TRAINING.acquire(blocking=False):
        raise InputError(
            "train: another training runs in this process; wait for it to end, or start a process for each training."
        )
    try:
        return _train(config, inputs, launch, timeline, parts, in_memory)
    finally:
        _TRAINING.release()


def _train(
    config: RunConfig,
    inputs: RunInputs | None,
    launch: Launch,
    timeline: Timeline,
    parts: Parts,
    in_memory: Mapping[str, Table] | None,
) -> Path:
    """`train` while no other training runs; a teacher's training is one inside."""

    def train_teacher(settings: RunConfig, stem: str) -> Path:
        own_parts = replace(parts, callbacks=())
        with announced():
            found = check(settings, own_parts, in_memory, launch)
        found = replace(found, output_dir=replace(found.output_dir, stem=stem))
        return _train(settings, found, launch, Timeline(), own_parts, in_memory)

    announced = functools.partial(group.announce_errors, launch, functools.partial(_start, config.training, launch))
    with quiet_libraries():
        configure_terminal(config.training, is_main=launch.is_main)
        with announced():
            inputs = inputs or check(config, parts, in_memory, launch)
        if inputs.splits.to_teach is not None and config.data.teacher != NO_TEACHER:
            inputs = teacher.teach(inputs, launch, train_teacher)
            timeline.end("teacher")
        if any(source.is_judged for source in inputs.splits.sources):
            with _start(config.training, launch) as world:
                world.agree(None)
                inputs = judge_sources(inputs, world)
            timeline.end("sources")
        with announced():
            _print_inputs(inputs)  # before tokenizing, which takes long for large tables
            data = tokenize_tables(inputs)
        timeline.end("tokens")
        with _start(inputs.config.training, launch, data.step_tokens(inputs)) as world:
            world.agree(None)
            timeline.end("process group")
            with prepare(inputs, data, world, timeline) as context:
                return _run(context)


def _start(settings: TrainingConfig, launch: Launch, step_tokens: float | None = None) -> World:
    return group.start(settings._setup_devices(launch, step_tokens=step_tokens), settings.ddp_timeout)


def _print_inputs(inputs: RunInputs) -> None:
    for finding in decisions(inputs.findings):
        log_decision(finding)
    for line in inputs.inspection.summary_lines():
        log_detail(line)
    for line in inputs.inspection.duplicate_lines():
        log(line)


def _run(context: TrainingContext) -> Path:
    """Resume or start, train, score, write."""
    output, saved = context.output, context.checkpoint
    trainer = make_trainer(context.strategy, context.inputs.task, context.rows_to_learn(), context.inputs.parts)
    batches = trainer.batches
    if saved is not None:
        model = str(context.inputs.model.path.resolve())
        resume.require_same_run(saved, context.identity, context.settings, model, output)
    if output.plan.resume and resume.is_finished(output, context.config, saved, batches):
        return output.folder
    if saved is not None:
        resume.log_changes(output, context.settings, saved)
    with make_record(context, trainer.data, batches).track_status(output) as record, contextlib.ExitStack() as opened:
        out_of_fold, taught = None, list[npt.NDArray[np.float32]]()
        if context.splits.folds is not None:
            out_of_fold, taught = cross_validate(context)
        if saved is not None:  # before the log is cut to its step
            trainer.load_state_dict(saved)
        train_log = Log(context, after_step=None if saved is None else saved.step)
        opened.enter_context(contextlib.closing(train_log))
        evaluate, checkpointer = Evaluate(context, train_log), Checkpointer(context)
        given = GivenCallbacks(context, checkpointer)
        learned = None
        if saved is None:
            trainer.strategy.setup()
            learned = stages.start_head(context, trainer, evaluate, train_log)
        context.timeline.end("evaluation")
        if saved is None and trainer.progress.best is not None:
            checkpointer.save(trainer)
        seconds_before_fit = context.timeline.elapsed
        stages.fit(
            context,
            trainer,
            # In this order: a checkpoint holds the score that `Evaluate` has just made.
            [train_log, evaluate, checkpointer, given],
            end_requested=given.end_requested,
            save_requested=checkpointer.is_due,
        )
        # Stopped within an epoch, and nothing was left to train.
        if not trainer.progress.is_scored:
            evaluate.score_epoch(trainer)
            checkpointer.save(trainer)
        if (collapsed := trainer.progress.collapsed_epoch) is not None:
            record.findings.append(note(f"{describe_collapse(collapsed)} (a lower --learning-rate helps)"))
        finish(context, trainer, evaluate, train_log, record, seconds_before_fit, out_of_fold, taught, learned)
    for callback in context.inputs.parts.callbacks:
        callback.on_train_end(output.folder)
    return output.folder

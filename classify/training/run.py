"""A training run from the first check to the last file.

Every rank calls every step that involves several processes; `World` and `Output` know which rank writes and prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import signal
import threading
import time
from pathlib import Path

from classify.config.run_config import RunConfig
from classify.data.sampler import plan_end
from classify.data.tokenize import TokenizedSplit
from classify.errors import InputError, Interrupted
from classify.evaluation.metrics import format_metrics
from classify.findings import decided, decisions
from classify.launch import launcher
from classify.launch.interrupts import stop_signals
from classify.modeling.loading import quiet_libraries
from classify.training import dry_run, linear_probe, resume
from classify.training.callbacks import Checkpointer, Evaluate
from classify.training.contrastive import ContrastiveResult, ContrastiveStep, contrastive_warmup
from classify.training.finish import finish
from classify.training.folds import cross_validate, make_trainer
from classify.training.inputs import RunInputs, check
from classify.training.run_record import RunRecord, make_record
from classify.training.setup import TrainingContext, prepare, tokenize_tables
from classify.training.terminal import configure, log, log_decision, log_detail
from classify.training.timeline import Timeline
from classify.training.train_log import Log, Terminal, log_micro_batches
from classify.training.trainer import Callback, Trainer

# Held while a training runs.
_TRAINING = threading.Lock()
# Share of the time that --max-minutes leaves to plan with; files, the baseline and a busy machine need the rest.
_TIME_USED = 0.9
# Share of that for contrastive steps; epochs follow.
_CONTRASTIVE_TIME = 0.5


def train(
    config: RunConfig,
    inputs: RunInputs | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeline: Timeline | None = None,
) -> Path:
    """Run a training from start to finish and return the output folder. Every rank calls it.

    Processes started by hand, e.g. by `torch.multiprocessing.spawn`, give their `rank`, the `world_size` and the
    rendezvous address (`init_method="tcp://127.0.0.1:29500"`). A launcher sets variables for these.

    `timeline` begins when the command was given (default: now), for --max-minutes; the run adds its phases.

    Raises InputError (arguments, data), CheckpointError (there are checkpoints, but none is valid) and
    Interrupted (a signal came; the run was saved).
    """
    launcher.here.cache_clear()  # a notebook may have set other variables since its last training
    place = (rank, world_size, init_method)
    if any(value is None for value in place) and any(value is not None for value in place):
        raise InputError("train needs rank, world_size and init_method together; give all three, or none.")
    if config.plan:
        raise InputError("plan is for the command line: train always trains; drop it.")
    if config.training.nproc is not None and not launcher.here().is_worker:
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
        with quiet_libraries():
            if rank is not None and world_size is not None and init_method is not None:
                launcher.set_rank_variables(rank, world_size, init_method, config.training.local_rank)
                _ = config.training.device_plan  # the caller may ask for its place later
            return _train(config, inputs, timeline or Timeline())
    finally:
        _TRAINING.release()


def _train(config: RunConfig, inputs: RunInputs | None, timeline: Timeline) -> Path:
    """Check, tokenize, form the process group, run."""
    configure(config.training)
    with launcher.forward_errors(config.training.start):
        inputs = inputs or check(config)
        if launcher.here().is_main:  # before tokenizing, which takes long for large tables
            for finding in decisions(inputs.findings):
                log_decision(finding)
            for line in inputs.inspection.summary_lines():
                log_detail(line)
            for line in inputs.inspection.duplicate_lines():
                log(line)
        data = tokenize_tables(inputs)
    timeline.end("tokens")
    with inputs.config.training.start() as world:
        world.exchange_fault(None)
        timeline.end("process group")
        with prepare(inputs, data, world, timeline) as context:
            return _run(context)


def _run(context: TrainingContext) -> Path:
    """Resume or start, train, score, write."""
    output, saved = context.output, context.checkpoint
    trainer = make_trainer(context.strategy, context.inputs.task, context.data.of(context.splits.train))
    batches = trainer.batches
    if saved is not None:
        model = str(context.inputs.model.path.resolve())
        resume.require_same_run(saved, context.identity, context.settings, model, output)
    if output.resumes and resume.is_finished(output, context.config, saved, batches):
        return output.folder
    if saved is not None:
        resume.log_changes(output, context.settings, saved)
    with make_record(context, batches).track_status(output) as record, contextlib.ExitStack() as opened:
        out_of_fold = None
        if context.splits.folds is not None:
            out_of_fold = cross_validate(context, functools.partial(_train_fold, context, record))
        if saved is not None:  # before the log is cut to its step
            trainer.load_state_dict(saved)
        train_log = Log(context, after_step=None if saved is None else saved.step)
        opened.enter_context(contextlib.closing(train_log))
        evaluate, checkpointer = Evaluate(context, train_log), Checkpointer(context)
        if saved is None:
            trainer.strategy.setup()
            _start(context, trainer, evaluate, train_log)
        context.timeline.end("evaluation")
        _dry_run(context, trainer, record)
        context.timeline.end("dry run")
        if saved is None and trainer.progress.best is not None:
            checkpointer.save(trainer)
        start_seconds = context.timeline.elapsed
        _fit(context, trainer, [train_log, evaluate, checkpointer])
        # Stopped within an epoch, and nothing was left to train.
        if trainer.progress.last_eval_step != trainer.progress.step:
            evaluate.score_epoch(trainer)
            checkpointer.save(trainer)
        finish(context, trainer, evaluate, train_log, record, start_seconds, out_of_fold)
    return output.folder


def _train_fold(context: TrainingContext, record: RunRecord, trainer: Trainer, name: str) -> None:
    """Train one fold to its end. Raises Interrupted where any rank received a signal."""
    _init_head(context, trainer)
    _dry_run(context, trainer, record)
    _fit(context, trainer, [], f"in {name}; the folds before it are saved")
    context.timeline.end("epochs")


def _fit(context: TrainingContext, trainer: Trainer, callbacks: list[Callback], stopped_at: str | None = None) -> None:
    """Train to the end. Raises Interrupted, with the last step saved, where any rank received a signal."""
    minutes, progress = context.config.training.max_minutes, trainer.progress
    steps = trainer.batches.steps_until(trainer.end_position)
    bar_of_steps = context.output.progress_bar(progress.step, steps)
    # The order matters: a checkpoint holds the score that `Evaluate` has just made.
    with stop_signals() as received, context.world.announce_errors(), bar_of_steps as bar:
        trainer.fit(
            [Terminal(context.output, context.selection_metric, bar, trainer.num_micro_batches), *callbacks],
            stop_requested=lambda: bool(received),
            time_limit_reached=lambda: minutes is not None and context.timeline.elapsed > 60 * minutes,
        )
        # All ranks have left the loop at the same step; a signal may have come since they last agreed.
        if number := context.world.all_reduce_max(received[0] if received else 0):
            raise Interrupted(
                f"stopped by {signal.Signals(number).name} "
                f"{stopped_at or f'after step {progress.step}, which is saved'}; "
                f"continue with --resume {shlex.quote(str(context.output.folder))}",
                number,
            )


def _start(context: TrainingContext, trainer: Trainer, evaluate: Evaluate, train_log: Log) -> None:
    """Start afresh; the start is the first candidate for the best unless the head is random."""
    output, planned = context.output, context.config.training.contrastive_steps or 0
    contrastive, probe = _init_head(context, trainer, train_log)
    if contrastive is not None:
        trainer.contrastive_metrics = dataclasses.asdict(contrastive)
        cut = f" of {planned} (limited by --max-minutes)" if contrastive.steps < planned else ""
        output.log(
            f"contrastive: {contrastive.steps} steps{cut}, loss {contrastive.loss:.4f}, "
            f"{contrastive.rows / contrastive.seconds:.0f} rows/s ({contrastive.seconds:.1f} s; --contrastive-steps)"
        )
    if context.config.model.head == "random":
        return
    begin = time.perf_counter()
    if probe is None and context.config.model.head == "probe":
        output.log(
            "note: the head starts random: the encoder's features are nearly constant, so a linear model on them would "
            "start worse than chance (--head)"
        )
        return
    score, _ = evaluate.score(trainer)
    if probe is None:
        if score is not None:
            output.log(f"head: kept, validation {format_metrics(score.metrics)} (--head)")
        return
    rows, seconds = probe
    metrics = {} if score is None else score.metrics
    trainer.probe_metrics = {**metrics, "seconds": seconds}
    validated = f", validation {format_metrics(metrics)}" if metrics else ""
    output.log(
        f"head: {context.inputs.task.probe} fitted on the features of {rows:,} rows{validated} "
        f"({seconds + time.perf_counter() - begin:.1f} s; --head)"
    )


def _init_head(
    context: TrainingContext, trainer: Trainer, train_log: Log | None = None
) -> tuple[ContrastiveResult | None, tuple[int, float] | None]:
    """Run the recipe's contrastive steps, then start the head from a probe; return the result of each that ran."""
    data, contrastive, probe = context.with_label_texts(trainer.data), None, None
    if context.config.training.contrastive_steps:
        contrastive = _train_contrastive(context, data, train_log)
        context.timeline.end("contrastive steps")
    if context.config.model.head == "probe" or context.inputs.new_labels:
        probe = linear_probe.init_head_from_probe(
            context.strategy,
            data,
            context.inputs.task,
            is_final=trainer.end_position == 0,
            encoder_trained=contrastive is not None,
            new=context.inputs.new_labels,
        )
        context.timeline.end("head")
    return contrastive, probe


def _train_contrastive(context: TrainingContext, data: TokenizedSplit, train_log: Log | None) -> ContrastiveResult:
    """Run the contrastive steps, with a bar, and their loss in the log every few steps."""
    training, limit = context.config.training, None
    if training.max_minutes is not None:
        limit = max(0.0, _CONTRASTIVE_TIME * _TIME_USED * (60 * training.max_minutes - context.timeline.elapsed))
    steps = training.contrastive_steps or 0
    with context.output.progress_bar(0, steps) as bar:

        def after_step(step: ContrastiveStep) -> None:
            bar.update()
            if train_log is not None and (step.last or step.step % training.logging_steps == 0):
                train_log.write_contrastive(step)

        return contrastive_warmup(context.strategy, data, context.inputs.task, steps, after_step, limit)


def _dry_run(context: TrainingContext, trainer: Trainer, record: RunRecord) -> None:
    """Take steps that change nothing, where memory or time has to be known beforehand."""
    training, world, progress, batches = context.config.training, context.world, trainer.progress, trainer.batches
    start, end = progress.position, trainer.end_position
    unsure = training.max_minutes is not None or (world.distributed and not world.accelerator.synchronous)
    if unsure and not context.strategy.forward_is_collective and start < end:
        before = trainer.num_micro_batches
        dry_run.find_micro_batches(trainer, list(batches.steps(start, min(end, start + batches.num_rows))))
        if trainer.num_micro_batches != before:
            log_micro_batches(context.output, progress.step + 1, trainer.num_micro_batches)
    if training.max_minutes is None or end <= start:
        return
    why = "as measured when the run began"
    if not progress.is_planned_for(training):
        rate = dry_run.measure(trainer)
        tested = len(context.splits.test) if context.splits.test is not None else 0
        rows = start + rate * _TIME_USED * (60 * training.max_minutes - context.timeline.elapsed)
        validated = 0 if context.splits.folds is not None else len(context.splits.validation)
        progress.set_end(plan_end(batches, end, world.broadcast(rows), validated, tested, start), training)
        why = f"{training.max_minutes:g} minutes at the measured {rate:.0f} rows/s"
    assert progress.end is not None
    decision = decided("epochs", f"{progress.end / batches.num_rows:.3g}", why, "--max-minutes", True)
    record.findings.append(decision)
    context.output.log_decision(decision)

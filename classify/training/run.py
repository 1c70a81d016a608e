"""A training run from the first check to the last file, in the order the contract gives.

Every step that involves several processes is called by all of them; who writes and who speaks is asked once, of
`World.is_main`.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from pathlib import Path

from classify.config.schema import RunConfig
from classify.config.stored_run import earlier_commands
from classify.data.columns import Decision
from classify.data.sampler import BatchSampler, balance_by_cost, end_in_time, token_cost
from classify.errors import InputError, Interrupted
from classify.evaluation.metrics import format_metrics
from classify.launch import launcher
from classify.launch.interrupts import stop_signals
from classify.modeling.classifier import quiet_libraries
from classify.training import contrastive, dry_run, linear_probe, resume
from classify.training.callbacks import Checkpointer, Evaluate
from classify.training.finish import finish
from classify.training.inputs import RunInputs, check
from classify.training.output import say
from classify.training.progress import Progress
from classify.training.run_record import RunRecord
from classify.training.setup import Run, prepared, tokenize_tables
from classify.training.train_log import Log, Terminal, say_cut
from classify.training.trainer import Callback, Trainer

# Held while a training runs.
_TRAINING = threading.Lock()
# Of the time that --max-minutes leaves, the share to plan with; files, the baseline and a busy machine need the rest.
_TIME_USED = 0.9
# Of that, the share for the steps on pairs; epochs follow.
_PAIRS_TIME = 0.5


def train(
    config: RunConfig,
    checked: RunInputs | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    begun: float | None = None,
) -> Path:
    """Run a training from start to finish and return the output folder. Every rank calls it.

    Processes started by hand, e.g. by `torch.multiprocessing.spawn`, give their `rank`, the `world_size` and where
    they meet (`init_method="tcp://127.0.0.1:29500"`); behind a launcher its variables say so.

    `begun` is when the command was given (seconds since the epoch), for --max-minutes; now if not given.

    Raises InputError (arguments, data), CheckpointError (nothing to resume from can be trusted) and Interrupted
    (a signal came; the run was saved).
    """
    if rank is not None or world_size is not None or init_method is not None:
        if rank is None or world_size is None or init_method is None:
            raise InputError("train needs rank, world_size and init_method together; give all three, or none.")
        launcher.enter(rank, world_size, init_method, config.training.local_rank)
    if config.plan or (config.training.nproc is not None and not launcher.started_here()):
        raise InputError(
            f"{'plan' if config.plan else 'nproc'} is for the command line: train works in the process that calls it; "
            "start several with torchrun, or call it in each with rank, world_size and init_method."
        )
    # Seeds, precision and thread counts are the process's.
    if not _TRAINING.acquire(blocking=False):
        raise InputError(
            "train: another training runs in this process; wait for it to end, or start a process for each training."
        )
    try:
        return _train(config, checked, begun or time.time())
    finally:
        _TRAINING.release()


def _train(config: RunConfig, checked: RunInputs | None, begun: float) -> Path:
    """Check, tokenize, form the process group, run."""
    quiet_libraries()
    with launcher.forward_errors(config.training.start):
        checked = checked or check(config)
        if launcher.decides_alone():  # at once: a long table takes its time to tokenise
            for line in checked.choices():
                say(line)
        tokenized = tokenize_tables(checked)
    with checked.config.training.start() as world:
        world.raise_if_any_rank_failed(None)
        with prepared(checked, tokenized, world, begun) as run:
            return _run(run)


def _run(run: Run) -> Path:
    """Resume or start, train, score, write."""
    output, saved, training = run.output, run.checkpoint, run.config.training
    batches = BatchSampler(len(run.splits.train), training.train_batch_size, training.seed)
    end = _planned_end(run, batches)
    if output.resumes and resume.is_finished(output, run.config, saved, end):
        return output.folder
    trainer = Trainer(
        run.strategy,
        run.training_set,
        batches,
        run.checked.task.loss(training, run.splits.train.targets),
        run.loaded.vocabulary,
    )
    first_step = saved.step if saved is not None else 0
    with _record(run, batches).kept(output) as record, contextlib.ExitStack() as opened:
        if saved is not None:  # before the log is cut to where it stands
            trainer.load_state_dict(saved, keep=output.is_writer)
        log = opened.enter_context(Log(run, first_step))
        evaluate, checkpointer = Evaluate(run, log), Checkpointer(run)
        if saved is None:
            _start(run, trainer, evaluate, is_final=end == 0)
        end = _dry_run(run, trainer, record, end)
        if saved is None and trainer.progress.best is not None:
            checkpointer.save(trainer)
        start_seconds = run.elapsed
        _fit(run, trainer, end, [log, evaluate, checkpointer])
        # Stopped within an epoch, or by a version that did not keep this score, and nothing was left to train.
        if trainer.progress.scored != trainer.progress.step or trainer.progress.latest is None:
            evaluate.score_epoch(trainer)
            checkpointer.save(trainer)
        finish(run, trainer, evaluate, log, record, start_seconds)
    return output.folder


def _fit(run: Run, trainer: Trainer, end: int, callbacks: list[Callback]) -> None:
    """Train to the end. Raises Interrupted, with the last step saved, where any rank had a signal."""
    minutes, progress = run.config.training.max_minutes, trainer.progress
    steps = trainer.batches.steps_until(end)
    with stop_signals() as received, run.output.progress_bar(progress.step, steps) as bar:
        trainer.fit(
            end,
            [Terminal(run.output, bar), *callbacks],
            interrupted=lambda: bool(received),
            late=lambda: minutes is not None and run.elapsed > 60 * minutes,
        )
        # All ranks have left the loop at the same step; a signal may have come since the last time they asked.
        if run.world.all_reduce_any(bool(received)):
            number = run.world.broadcast(received[0] if received else int(signal.SIGTERM))
            raise Interrupted(
                f"stopped by {signal.Signals(number).name} after step {progress.step}, which is saved; "
                f"go on with --resume {shlex.quote(str(run.output.folder))}",
                number,
            )


def _planned_end(run: Run, batches: BatchSampler) -> int:
    """Rows after which training ends, as far as that is known before it begins."""
    training = run.config.training
    end = batches.end_of(training.epochs, training.max_steps)
    if run.checkpoint is None:
        return end
    progress = Progress(**run.checkpoint.state["progress"])
    if progress.waited_long(training.patience):
        return progress.position
    if training.max_minutes is not None and progress.limits == _limits(run):
        return progress.end or end
    return end


def _limits(run: Run) -> list[float | None]:
    """What a plan for --max-minutes is made for."""
    training = run.config.training
    return [training.max_minutes, training.epochs, training.max_steps]


def _record(run: Run, batches: BatchSampler) -> RunRecord:
    """run.json of this run."""
    world = run.world
    shares = _rows_per_step(run, batches)
    topology = [{**entry, "rows_per_step": shares[i]} for i, entry in enumerate(world.topology)]
    return RunRecord(
        run.output.folder,
        run.config,
        run.splits,
        list(run.decisions),
        topology=topology,
        strategy=world.plan.strategy,
        launcher=world.plan.launch.launcher,
        precision=run.model.classifier.precision.name,
        extra={
            "task": run.checked.task.name,
            "packed": run.model.packed,
            "kernels": [kernel.name for kernel in run.model.kernels],
            "max_length": run.tokenized.max_length,
            "batch_size": batches.batch_size,
        },
        earlier=earlier_commands(run.output.folder),
        from_step=run.checkpoint.step if run.checkpoint is not None else 0,
    )


def _rows_per_step(run: Run, batches: BatchSampler) -> list[int]:
    """Rows of the first step that each rank computes: texts are shared by token cost, so counts may differ by a few."""
    data = run.training_set
    lengths = data.tokens.lengths_of(data.rows[batches.step_at(0).rows])
    return [len(share) for share in balance_by_cost(token_cost(lengths, run.model.hidden_size), run.world.world_size)]


def _start(run: Run, trainer: Trainer, evaluate: Evaluate, *, is_final: bool) -> None:
    """A fresh start, which is the first candidate for the best unless the head is random."""
    config, probe_metrics = run.config, None
    pairs_seconds = _train_on_pairs(run)
    if config.model.head == "probe":
        begin = time.perf_counter()
        start = linear_probe.init_head_from_probe(
            run.model, run.training_set, run.checked.task, run.world, config.training.seed, is_final=is_final
        )
        score = evaluate.score_start(trainer)
        probe_metrics = {
            **{name: value for name, value in score.metrics.items() if name != "loss"},
            "seconds": start.seconds,
            "contrastive_seconds": pairs_seconds,
        }
        run.output.say(
            f"head: starts from a logistic regression on the model's output of {start.rows} rows - evaluation "
            f"{format_metrics(score.metrics)} before fine-tuning, "
            f"{time.perf_counter() - begin:.1f} s (--head to change)"
        )
    trainer.begin(probe_metrics)


def _train_on_pairs(run: Run) -> float:
    """The recipe's steps on pairs of rows, said; the seconds they took."""
    training, output = run.config.training, run.output
    steps = training.contrastive_steps or 0
    if not steps:
        return 0.0
    limit = None
    if training.max_minutes is not None:
        limit = max(0.0, _PAIRS_TIME * _TIME_USED * (60 * training.max_minutes - run.elapsed))
    begin = time.perf_counter()
    with output.progress_bar(0, steps) as bar:
        done = contrastive.contrastive_warmup(
            run.model, run.training_set, run.world, training, steps, bar.update, limit
        )
    seconds = time.perf_counter() - begin
    cut = f" of {steps}, which would take longer than --max-minutes leaves" if done < steps else ""
    output.say(f"pairs: {done} steps{cut} on pairs of rows, {seconds:.1f} s (--contrastive-steps to change)")
    return seconds


def _dry_run(run: Run, trainer: Trainer, record: RunRecord, end: int) -> int:
    """Steps that change nothing, where memory or time has to be known beforehand. Returns the end that fits."""
    training, world, progress, batches = run.config.training, run.world, trainer.progress, trainer.batches
    start = progress.position
    unsure = training.max_minutes is not None or (world.distributed and not world.accelerator.synchronous)
    if unsure and not run.strategy.forward_is_collective and start < end:
        parts = trainer.parts
        dry_run.find_micro_batches(trainer, list(batches.steps(start, min(end, start + batches.rows))))
        if trainer.parts != parts:
            say_cut(run.output, progress.step + 1, trainer.parts)
    if training.max_minutes is None or end <= start:
        return end
    why = "as measured when the run began"
    if progress.end is None or progress.limits != _limits(run):
        rate = dry_run.measure(trainer)
        tested = len(run.splits.test) if run.splits.test is not None else 0
        rows = start + rate * _TIME_USED * (60 * training.max_minutes - run.elapsed)
        fitting = end_in_time(batches, end, world.broadcast(rows), len(run.splits.validation), tested, start)
        progress.set_end(fitting, _limits(run))
        why = f"{training.max_minutes:g} minutes at the {rate:.0f} rows/s that were measured"
    assert progress.end is not None
    guess = Decision("epochs", f"{progress.end / batches.rows:.3g}", why, "--max-minutes")
    record.add(guess)
    run.output.say(guess.line())
    return progress.end

"""A training run from the first check to the last file, in the order the contract gives.

Every step that involves several processes is called by all of them; who writes and who speaks is asked once, of
`World.is_main`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from classify.config.schema import RunConfig
from classify.config.stored_run import earlier_commands
from classify.data.columns import Guess
from classify.data.sampler import BatchSampler, divide, end_in_time, token_cost
from classify.distributed.process_group import telling_other_machines
from classify.errors import CheckpointError, InputError, Interrupted
from classify.evaluation import metrics
from classify.launch import launcher, restarts
from classify.training import checkpoint, contrastive, dry_run, linear_probe, resume, train_state, trainer
from classify.training.checkpoint import Checkpoint
from classify.training.finish import finish
from classify.training.inputs import Checked, check
from classify.training.interrupts import stop_signals
from classify.training.job import Job, prepare
from classify.training.output_dir import CHECKPOINTS
from classify.training.run_record import RunRecord
from classify.training.tracking import Tracker
from classify.training.train_log import TrainLog

# Of the time that --max-minutes leaves, the share to plan with; files, the baseline and a busy machine need the rest.
_TIME_USED = 0.9


def train(
    config: RunConfig,
    checked: Checked | None = None,
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
    begun = begun or time.time()
    config.training.renew_world()
    if checked is None:
        with telling_other_machines(lambda: config.training.world):
            checked = check(config)
    job = prepare(checked)
    job.begun = begun
    try:
        with job.held:
            return _run(job)
    finally:
        restarts.end_training()


def _run(job: Job) -> Path:
    """Resume or start, train, score, write."""
    found = resume.find_checkpoint(job) if job.destination.resume else None
    plan = BatchSampler(len(job.checked.corpus.train), job.batch_size, job.config.training.seed)
    end = _planned_end(job, plan, found)
    if job.destination.resume and resume.is_finished(job, found, end):
        return job.folder
    record = _record(job, found)
    with job.world.awaited(), job.writing("run.json"):
        if job.writes:
            # Stands there until the run says otherwise: a killed process cannot.
            record.write("interrupted")
    try:
        state = _begin(job, found, end)
        end = _rehearse(job, state, plan, end)
        with job.world.awaited(), job.writing("the training log"):
            _open_logs(job, state.progress.step)
        if found is None and (state.progress.best is not None or job.config.training.cycles > 1):
            _save(job, state)
        job.start_seconds = job.elapsed
        _loop(job, state, plan, end)
        # Stopped within an epoch, or by a version that did not keep this score, and nothing was left to train.
        if state.progress.scored != state.progress.step or state.progress.latest is None:
            _evaluate_epoch(job, state)
            _save(job, state)
        finish(job, state, record)
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException:
        if job.writes:
            with contextlib.suppress(OSError):  # a full disk, say: what went wrong first is the error to tell
                record.write("failed")
        raise
    finally:
        with contextlib.suppress(OSError):  # of a full disk: told already, where something was left to write
            job.tracker.close()
        with contextlib.suppress(OSError):
            if job.log is not None:
                job.log.close()
    return job.folder


def _planned_end(job: Job, plan: BatchSampler, found: Checkpoint | None) -> int:
    """Rows after which training ends, as far as that is known before it begins."""
    training = job.config.training
    end = plan.end_of(training.cycles * training.epochs, training.max_steps)
    if found is None:
        return end
    progress = train_state.Progress(**found.state["progress"])
    if progress.waited_long(training.patience):
        return progress.position
    if training.max_minutes is not None and progress.limits == job.limits:
        return progress.end or end
    return end


def _record(job: Job, found: Checkpoint | None) -> RunRecord:
    world = job.world
    shares = _rows_per_step(job)
    topology = [{**entry, "rows_per_step": shares[i]} for i, entry in enumerate(world.topology)]
    return RunRecord(
        job.folder,
        job.config,
        job.checked.corpus,
        job.guesses,
        topology=topology,
        strategy=world.plan.strategy,
        launcher=world.plan.launch.launcher,
        precision=job.precision.name,
        extra={
            "packed": job.model.packed,
            "max_length": job.max_length,
            "batch_size": job.batch_size,
            "job": job.names,
        },
        earlier=earlier_commands(job.folder),
        from_step=found.step if found is not None else 0,
    )


def _rows_per_step(job: Job) -> list[int]:
    """Rows of the first step that each rank computes: texts are shared by token cost, so counts may differ by a few."""
    data = job.training_set
    rows = data.rows[BatchSampler(len(data.rows), job.batch_size, job.config.training.seed).step_at(0).rows]
    lengths = data.tokens.lengths_of(rows)
    return [len(share) for share in divide(token_cost(lengths, job.model.hidden_size), job.world.world_size)]


def _begin(job: Job, found: Checkpoint | None, end: int) -> train_state.TrainState:
    """What a checkpoint holds, or a fresh start, which is the first candidate for the best unless it is random.

    `end` is the rows that training will consume.
    """
    if found is not None:
        return resume.restore(job, found)
    config, score = job.config, None
    pairs_seconds = _train_on_pairs(job)
    if config.model.head == "probe":
        begin = time.perf_counter()
        start = linear_probe.start_head(job.model, job.training_set, job.world, config.training.seed, is_final=end == 0)
        score = job.score(job.checked.corpus.eval)
        job.probe = {"accuracy": score.accuracy, "seconds": start.seconds, "contrastive_seconds": pairs_seconds}
        job.say(
            f"head: starts from a logistic regression on the model's output of {start.rows} rows - evaluation accuracy "
            f"{score.accuracy:.3f} before fine-tuning, {time.perf_counter() - begin:.1f} s (--head to change)"
        )
    state = train_state.make_state(job.strategy, job.objective)
    if score is not None:
        _keep_if_best(job, state.progress, score)
    return state


def _train_on_pairs(job: Job) -> float:
    """The recipe's steps on pairs of rows, said; the seconds they took."""
    training = job.config.training
    steps = training.contrastive_steps or 0
    if not steps:
        return 0.0
    with _bar(job, 0, steps) as bar:
        seconds = contrastive.pull_together(job.model, job.training_set, job.world, training, steps, bar.update)
    job.say(f"pairs: {steps} steps on pairs of rows, {seconds:.1f} s (--contrastive-steps to change)")
    return seconds


def _rehearse(job: Job, state: train_state.TrainState, plan: BatchSampler, end: int) -> int:
    """Steps that change nothing, where memory or time has to be known beforehand. Returns the end that fits."""
    training, world, data = job.config.training, job.world, job.training_set
    start = state.progress.position
    unsure = training.max_minutes is not None or (world.distributed and world.device.type != "cpu")
    if unsure and not state.strategy.forward_is_collective and start < end:
        parts = state.parts
        dry_run.rehearse(state, data, list(plan.steps(start, min(end, start + plan.rows))), training, world)
        if state.parts != parts:
            _tell_cut(job, state.progress.step + 1, state.parts)
    if training.max_minutes is None or end <= start:
        return end
    why = "as measured when the run began"
    if state.progress.end is None or state.progress.limits != job.limits:
        rate = dry_run.measure(state, data, training, world, job.batch_size)
        corpus = job.checked.corpus
        tested = len(corpus.test) if corpus.test is not None else 0
        rows = start + rate * _TIME_USED * (60 * training.max_minutes - job.elapsed)
        state.progress.end = end_in_time(plan, end, world.broadcast(rows), len(corpus.eval), tested, start)
        state.progress.limits = job.limits
        why = f"{training.max_minutes:g} minutes at the {rate:.0f} rows/s that were measured"
    job.guesses.append(Guess("epochs", f"{state.progress.end / plan.rows:.3g}", why, "--max-minutes"))
    job.say(job.guesses[-1].line())
    return state.progress.end


def _open_logs(job: Job, step: int) -> None:
    if job.writes:
        job.log = TrainLog(job.folder / "train_log.jsonl", step)
        names = job.checked.trackers
        if not job.world.is_main:  # with --save-on-each-node: files lie on each machine, a server hears of one run
            names = tuple(name for name in names if name == "tensorboard")
        job.tracker = Tracker(names, job.folder, job.config.flat(), step)


def _loop(job: Job, state: train_state.TrainState, plan: BatchSampler, end: int) -> None:
    """Train to the end; score and save at each epoch's end. Raises Interrupted after saving, when told to stop."""
    training = job.config.training
    cycle_ends = set(range(0, end + 1, end // training.cycles)) if training.cycles > 1 else set()
    competes = training.cycles == 1
    with stop_signals() as received, _bar(job, state.progress.step, plan.steps_until(end)) as bar:
        events = trainer.fit(
            state,
            job.training_set,
            training,
            job.world,
            batch_size=job.batch_size,
            end=end,
            stop=lambda: bool(received),
            late=lambda: training.max_minutes is not None and job.elapsed > 60 * training.max_minutes,
        )
        for event in events:
            bar.update()
            if event.cut_into is not None:
                _tell_cut(job, event.step, event.cut_into)
            with job.writing("the training log"):
                _log_step(job, event, bar)
            if event.epoch_ended or event.last:
                _evaluate_epoch(job, state, competes)
            if state.progress.position in cycle_ends:
                _end_cycle(job, state, last=event.last)
            if event.epoch_ended or event.last or event.save_due or event.stopped:
                _save(job, state)
            # Scores that differ in the last bit may be ranked otherwise on another rank's processor.
            if event.epoch_ended and not event.last and job.world.any(state.progress.waited_long(training.patience)):
                _tell_patience(job, state.progress)
                break
        # All ranks have left the loop at the same step; a signal may have come since the last time they asked.
        if job.world.any(bool(received)):
            number = job.world.broadcast(received[0] if received else int(signal.SIGTERM))
            raise Interrupted(
                f"stopped by {signal.Signals(number).name} after step {state.progress.step}, which is saved; "
                f"go on with --resume {shlex.quote(str(job.folder))}",
                number,
            )


def _tell_cut(job: Job, step: int, parts: int) -> None:
    job.say(
        f"note: step {step}: out of memory with the rows of a step at once; they are cut into {parts} micro-batches "
        "from here on, which changes nothing but dropout's draws"
    )


def _end_cycle(job: Job, state: train_state.TrainState, last: bool) -> None:
    """Take the weights into the average; then go back to the start, or at the last cycle's end to the average."""
    job.average.add(job.strategy.weights(keep=job.writes))
    cycles = job.config.training.cycles
    if not last:
        job.say(f"training {job.average.count} of {cycles} is done; the next one begins from the same start")
        if not resume.take_weights(job, 0):
            raise CheckpointError(
                f"{job.folder}: the start of all {cycles} trainings cannot be read any more; start afresh with "
                "--overwrite-output-dir."
            )
        job.strategy.restart()
        return
    tensors = job.world.broadcast_tensors(job.average.tensors if job.world.is_main else None)
    job.strategy.load_weights(tensors)
    score = job.score(job.checked.corpus.eval)
    _keep_if_best(job, state.progress, score)
    job.say(f"the average of {cycles} trainings: {_words(score)}")
    _log_score(job, state.progress, score)


def _tell_patience(job: Job, progress: train_state.Progress) -> None:
    assert progress.best is not None, "scores were waited for"
    name = metrics.NAMES[job.config.training.metric_for_best_model]
    job.say(f"stopped: no better {name} since epoch {progress.best['epoch']:g} (--patience to change)")


def _bar(job: Job, step: int, total: int) -> tqdm:
    quiet = not job.world.is_main or not sys.stderr.isatty()
    return tqdm(total=total, initial=step, disable=quiet, leave=False, unit="step", dynamic_ncols=True)


def _log_step(job: Job, event: trainer.StepDone, bar: tqdm) -> None:
    if event.loss is None:
        return
    bar.set_postfix_str(f"loss {event.loss:.4f}", refresh=False)
    if job.log is None:
        return
    values: dict[str, Any] = {
        "step": event.step,
        "epoch": event.epoch,
        "loss": event.loss,
        "learning_rate": event.learning_rate,
        "grad_norm": event.grad_norm if math.isfinite(event.grad_norm or 0.0) else None,
        "rows_per_second": event.rows_per_second,
    }
    job.log.write(values)
    names = ("loss", "learning_rate", "grad_norm", "rows_per_second")
    job.tracker.log("train", event.step, {name: values[name] for name in names if values[name] is not None})


def _evaluate_epoch(job: Job, state: train_state.TrainState, competes: bool = True) -> None:
    """Score the evaluation part, say and log it; remember the best, where these weights compete for being kept."""
    progress = state.progress
    rows = len(job.checked.corpus.train)
    score = job.score(job.checked.corpus.eval)
    better = competes and _keep_if_best(job, progress, score)
    planned = job.config.training.epochs * job.config.training.cycles
    if job.config.training.max_minutes is not None and progress.end is not None:
        planned = progress.end / rows
    planned = max(planned, progress.position / rows)  # --max-steps, where the recipe has no epochs
    mean = progress.mean_loss
    if progress.first_loss is None:
        progress.first_loss = mean
    job.say(
        f"epoch {progress.position / rows:.4g} of {planned:.4g}: loss {mean:.4f}, {_words(score)}, "
        f"{progress.position / progress.seconds:.0f} rows/s{' - best so far' if better else ''}"
    )
    _log_score(job, progress, score)


def _words(score: metrics.Score) -> str:
    return f"evaluation loss {score.loss:.4f}, accuracy {score.accuracy:.4f}, macro F1 {score.macro_f1:.4f}"


def _log_score(job: Job, progress: train_state.Progress, score: metrics.Score) -> None:
    epoch = progress.position / len(job.checked.corpus.train)
    with job.writing("the training log"):
        if job.log is not None:
            job.log.write({"step": progress.step, "epoch": epoch, "eval": score.summary})
        job.tracker.log("eval", progress.step, score.summary)


def _keep_if_best(job: Job, progress: train_state.Progress, score: metrics.Score) -> bool:
    """Remember the score of the step that training stands at, and whether it is the best so far, which is returned."""
    job.scores[progress.step] = score
    epoch = progress.position / len(job.checked.corpus.train)
    return progress.add_score(score.summary, epoch, job.config.training.metric_for_best_model)


def _save(job: Job, state: train_state.TrainState) -> None:
    """Write a checkpoint; those who do not write wait, so that nobody runs ahead of a failing disk."""
    progress = state.progress
    limit = job.config.training.save_total_limit

    def keep(steps: list[int]) -> set[int]:
        # Steps beyond this one belong to a course that was left by going back to an older checkpoint.
        steps = [step for step in steps if step <= progress.step]
        best = {int(progress.best["step"])} if progress.best is not None else set()
        best |= {0} if job.config.training.cycles > 1 else set()
        newest = set(steps[-limit:])
        return newest if best <= newest else best | set(steps[-max(1, limit - 1) :])

    weights, moments = job.strategy.weights(keep=job.writes), job.strategy.moments(keep=job.writes)
    if job.writes:
        weights |= job.average.for_checkpoint()
    if job.writes and job.vocabulary is not None and job.vocabulary.compacted:
        weights[resume.VOCABULARY] = job.vocabulary.as_tensor()
    with job.world.awaited(), job.writing(f"checkpoint {checkpoint.name_of(progress.step)}"):
        if job.writes:
            checkpoint.save(
                job.folder / CHECKPOINTS,
                progress.step,
                weights,
                moments,
                {
                    "progress": dataclasses.asdict(progress),
                    "identity": job.identity(),
                    "model_folder": str(job.checked.model.path.resolve()),
                    "settings": job.config.flat(),
                    "scaler": job.strategy.scaler.state_dict(),
                    "probe": job.probe,
                    "averaged": job.average.count,
                },
                keep=keep,
            )

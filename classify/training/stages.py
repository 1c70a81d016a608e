"""The stages of a training that a run and each of its folds pass: the head's start, and the steps."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable

from classify.console import progress_bar
from classify.errors import Interrupted
from classify.evaluation.metrics import format_metrics
from classify.launch.signals import stop_signals
from classify.training import linear_probe
from classify.training.callbacks import Evaluate
from classify.training.contrastive import ContrastiveSteps, contrastive_warmup
from classify.training.linear_probe import Probe
from classify.training.log import Log, ProgressCallback
from classify.training.progress import Requests
from classify.training.setup import TrainingContext
from classify.training.terminal import log
from classify.training.trainer import Callback, Trainer

# Share of the time that --max-minutes leaves for contrastive steps; epochs follow.
_CONTRASTIVE_TIME = 0.5


def start_head(
    context: TrainingContext, trainer: Trainer, evaluate: Evaluate, train_log: Log
) -> linear_probe.Learned | None:
    """Start a new run's head and print how; unless it is random, the start is the first candidate for the best.

    Returns the features that the head has learned from, if they are final.
    """
    planned = context.config.training.contrastive_steps or 0
    contrastive, probe = fit_head(context, trainer, train_log)
    if contrastive is not None:
        trainer.progress.add_contrastive({**vars(contrastive), "loss": float(contrastive.loss)})
        cut = f" of {planned} (limited by --max-minutes)" if contrastive.steps < planned else ""
        log(
            f"contrastive: {contrastive.steps} steps{cut}, loss {contrastive.loss:.4f}, "
            f"{contrastive.rows / contrastive.seconds:.0f} rows/s ({contrastive.seconds:.1f} s; --contrastive-steps)"
        )
    if context.config.model.head == "random":
        return None
    begin = time.perf_counter()
    if probe is None and context.config.model.head == "probe":
        log(
            "note: the head starts random: the encoder's features are nearly constant, so a linear model on them would "
            "start worse than chance (--head)"
        )
        return None
    score, _ = evaluate.score(trainer)
    if probe is None:
        if score is not None:
            log(f"head: kept, validation {format_metrics(score.metrics)} (--head)")
        return None
    rows, seconds, learned = probe
    metrics = {} if score is None else score.metrics
    trainer.progress.add_probe({**metrics, "seconds": seconds})
    validated = f", validation {format_metrics(metrics)}" if metrics else ""
    names = max(0, rows - len(trainer.data.rows))  # of labels, as texts
    counted = f"{rows - names:,} rows" + (f" and {names} label names" if names else "")
    log(
        f"head: {context.inputs.task.head.probe} fitted on the features of {counted}{validated} "
        f"({seconds + time.perf_counter() - begin:.1f} s; --head)"
    )
    return learned


def fit_head(
    context: TrainingContext, trainer: Trainer, train_log: Log | None = None
) -> tuple[ContrastiveSteps | None, Probe | None]:
    """Run the recipe's contrastive steps, then start the head from a probe; return the result of each that ran."""
    training, data = context.config.training, context.with_label_texts(trainer.data)
    contrastive, probe = None, None
    if training.contrastive_steps:
        limit = None
        if training.max_minutes is not None:
            limit = max(0.0, _CONTRASTIVE_TIME * (60 * training.max_minutes - context.timeline.elapsed))
        steps = training.contrastive_steps
        with progress_bar(steps, 0, "step", enabled=True) as bar:

            def after_step(done: ContrastiveSteps, rate: float, last: bool) -> None:
                bar.update()
                if train_log is not None and (last or done.steps % training.logging_steps == 0):
                    train_log.write_contrastive(done, rate)

            contrastive = contrastive_warmup(context.strategy, data, context.inputs.task, steps, after_step, limit)
        context.timeline.end("contrastive steps")
    if context.config.model.head == "probe":
        probe = linear_probe.init_head_from_probe(
            context.strategy,
            data,
            context.inputs.task,
            context.inputs.kept,
            is_final=trainer.end_position == 0,
            encoder_trained=contrastive is not None,
        )
        context.timeline.end("head")
    return contrastive, probe


def fit(
    context: TrainingContext,
    trainer: Trainer,
    callbacks: list[Callback],
    stopped_at: str | None = None,
    end_requested: Callable[[], bool] = bool,
    save_requested: Callable[[], bool] = bool,
) -> None:
    """Train to the end, or where `end_requested` on any rank; a checkpoint is due where `save_requested`.

    Raises Interrupted where any rank received a signal; `stopped_at` says after what.
    """
    minutes, progress, begin = context.config.training.max_minutes, trainer.progress, context.timeline.elapsed

    steps = trainer.batches.steps_until(trainer.end_position)
    bar_of_steps = progress_bar(steps, progress.step, "step", enabled=True)
    with stop_signals() as received, bar_of_steps as bar:

        def ask() -> Requests:
            share = 0.0
            if minutes is not None:
                left = 60 * minutes - begin
                share = (context.timeline.elapsed - begin) / left if left > 0 else 1.0
            return Requests(bool(received), end_requested(), save_requested(), share)

        trainer.fit([ProgressCallback(context.selection_metric, bar), *callbacks], ask)
        # All ranks have left the loop at the same step; a signal may have come since they last agreed.
        if number := context.world.all_reduce_max(received[0] if received else 0):
            where = stopped_at or f"after step {progress.step}, which is saved"
            raise Interrupted(
                f"stopped by {signal.Signals(number).name} {where}; "
                f"continue with --resume {shlex.quote(str(context.output.folder))}",
                number,
                is_printed=context.world.is_local_main,
            )
    context.timeline.end("epochs")

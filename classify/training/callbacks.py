"""Callbacks: evaluation with early stopping, and checkpoints."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from classify.errors import ClassifyError, InputError
from classify.evaluation.metrics import Scores, display_name, format_metrics
from classify.training import checkpoint
from classify.training.log import Log
from classify.training.parts import StepState
from classify.training.progress import StepEnd
from classify.training.setup import TrainingContext
from classify.training.terminal import log
from classify.training.trainer import Callback, Trainer, explain_divergence

# Validation texts whose logits differ by less get the same output. Those of a random head differ by more.
_SAME = 1e-2
# Most of the time that saving within an epoch may take.
_SAVING_SHARE = 0.02


class Evaluate(Callback):
    """Scores the validation split at each epoch's end and every --eval-steps; with folds the last weights are kept.

    `final_logits` are those of the validation split at the end of training, which `finish` need not compute again.
    """

    def __init__(self, context: TrainingContext, train_log: Log):
        self.context, self.train_log = context, train_log
        self.final_logits: npt.NDArray[np.float32] | None = None
        self._noted = False

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        if not step.eval_due:
            return
        self.context.timeline.end("epochs")
        self.score_epoch(trainer)
        self.context.timeline.end("evaluation")
        patience, progress = self.context.config.training.patience, trainer.progress
        if progress.last_collapsed and not self._noted:
            assert progress.collapsed_epoch is not None
            self._noted = True
            log(f"note: {describe_collapse(progress.collapsed_epoch)}; use a lower --learning-rate")
        if not step.last and progress.is_out_of_patience(patience):
            assert progress.best is not None, "a score was compared"
            name = display_name(self.context.selection_metric)
            log(f"stopped: no better {name} since epoch {progress.best['epoch']:.4g} (--patience)")

    def score_epoch(self, trainer: Trainer) -> None:
        """Score the validation split, if there is one; print and log, and remember the best score."""
        progress = trainer.progress
        planned = trainer.end_position / trainer.batches.num_rows  # before this score, which may use up --patience
        score, better = self.score(trainer)
        mean = progress.mean_loss
        validated = f", validation loss {score['loss']:.4f}, {format_metrics(score.metrics)}" if score else ""
        if progress.step:
            log(
                f"epoch {trainer.epoch:.4g} of {planned:.4g}: loss {mean:.4f}{validated}, "
                f"{progress.position / progress.seconds:.0f} rows/s{' - best so far' if better else ''}"
            )
        if score is not None:
            self.train_log.write_score(trainer, score)

    def score(self, trainer: Trainer) -> tuple[Scores | None, bool]:
        """Score the current weights, not logged; also return whether they are the best so far."""
        context, progress = self.context, trainer.progress
        if context.splits.folds is not None:
            progress.add_unscored(trainer.epoch)
            return None, False
        split, ends = context.splits.validation, progress.position >= trainer.end_position
        # Epochs are compared in the precision of training; the scores of the end are the result's, so they are exact.
        with contextlib.nullcontext() if ends else context.classifier.precision.autocast(training=True):
            logits = context.compute_logits(split)
        if ends:
            self.final_logits = logits
        score = context.score(context.inputs.task, logits, split)
        if context.selection_metric not in score.values:
            raise InputError(f"metrics: {context.selection_metric!r} is not defined on the validation rows.")
        # Rank 0's for all: scores that differ in the last bit may be ranked otherwise on another rank's processor.
        collapsed = len(logits) > 1 and bool(np.ptp(logits, axis=0).max() < _SAME)
        values, collapsed = context.world.broadcast([score.values, collapsed])
        better = progress.add_score(values, trainer.epoch, context.selection_metric, collapsed=collapsed)
        return score, better


class Checkpointer(Callback):
    """Saves at each epoch's end, every --save-steps and --save-minutes, at the best score, and where training ends."""

    def __init__(self, context: TrainingContext):
        self.context = context
        self.saved_step: int | None = None
        self._saved_at, self._cost = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Whether --save-minutes have passed, or more, so that saving stays cheap."""
        seconds = 60 * self.context.config.training.save_minutes
        return seconds > 0 and time.monotonic() - self._saved_at > max(seconds, self._cost / _SAVING_SHARE)

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        progress = trainer.progress
        is_best = step.eval_due and progress.best is not None and progress.best["step"] == progress.step
        ends = step.last or step.stopped or progress.is_out_of_patience(self.context.config.training.patience)
        if step.epoch_ended or step.save_due or is_best or ends:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint; ranks that do not write wait, so that a disk error stops all ranks.

        Raises ClassifyError, with nothing written, where a weight is not finite: a run resumed from it could not learn.
        """
        context, output, progress = self.context, self.context.output, trainer.progress
        context.timeline.end("epochs")
        begin = time.monotonic()
        limit = context.config.training.save_total_limit

        def keep(steps: list[int]) -> set[int]:
            # Drop later steps left by an abandoned resume.
            steps = [step for step in steps if step <= progress.step]
            best = {int(progress.best["step"])} if progress.best is not None else set()
            newest = set(steps[-limit:])
            return newest if best <= newest else best | set(steps[-max(1, limit - 1) :])

        weights, tensors, values = trainer.state_dict(keep=output.is_writer)
        finite = (bool(torch.isfinite(value).all()) for value in weights.values() if value.is_floating_point())
        if context.world.all_reduce_any(not all(finite)):
            raise ClassifyError(explain_divergence(trainer.strategy, progress.step, "some weights are not finite"))
        with output.world.sync_errors(), output.writing(f"checkpoint {checkpoint.folder_name(progress.step)}"):
            if output.is_writer:
                started_with = {
                    "identity": context.identity,
                    "model_folder": str(context.inputs.model.path.resolve()),
                    "settings": context.settings,
                }
                checkpoint.save(
                    output.checkpoints,
                    progress.step,
                    weights,
                    tensors,
                    {**values, **started_with},
                    keep=keep,
                    files=self._write_stock_files,
                )
        self.saved_step, self._saved_at = progress.step, time.monotonic()
        self._cost = self._saved_at - begin
        context.timeline.end("checkpoints")

    def _write_stock_files(self, folder: Path) -> None:
        """Write what transformers needs beside the weights, where they fit a stock model."""
        config = self.context.classifier.stock_config()
        if config is not None:
            (folder / "config.json").write_text(config, encoding="utf-8")
            self.context.data.tokenizer.save_pretrained(folder)


class GivenCallbacks(Callback):
    """Calls the caller's callbacks; comes after evaluation and checkpoints."""

    def __init__(self, context: TrainingContext, checkpointer: Checkpointer):
        self.context, self.checkpointer = context, checkpointer
        self._end_requested = False

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        progress, given = trainer.progress, self.context.inputs.parts.callbacks
        if not given:
            return
        state = StepState(
            step=progress.step,
            epoch=trainer.epoch,
            learning_rate=step.learning_rate,
            loss=step.loss,
            is_main=self.context.world.is_main,
            model=self.context.classifier.model,
        )
        self._end_requested |= any([callback.on_step_end(state) for callback in given])  # noqa: C419 - each is called
        for callback in given:
            if step.eval_due and progress.last_eval is not None:
                callback.on_evaluate(state, progress.last_eval)
            if self.checkpointer.saved_step == progress.step:
                callback.on_save(state, self.context.output.checkpoints / checkpoint.folder_name(progress.step))

    def end_requested(self) -> bool:
        return self._end_requested


def describe_collapse(epoch: float) -> str:
    return f"training has collapsed by epoch {epoch:.4g}: all validation texts get the same output"

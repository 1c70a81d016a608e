"""The numbers of a run: train_log.jsonl, trackers such as TensorBoard, and the progress bar."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from classify.console import ProgressLines
from classify.distributed.memory import used_memory
from classify.errors import escape_controls
from classify.evaluation.metrics import Scores, display_name
from classify.files import atomic_write
from classify.findings import decisions
from classify.training.contrastive import ContrastiveStep
from classify.training.output import Output
from classify.training.setup import TrainingContext
from classify.training.terminal import log_event
from classify.training.tracking import Tracker
from classify.training.trainer import Callback, StepEnd, Trainer


class Log(Callback):
    """Writes a line of train_log.jsonl every few steps and for every evaluation, and the same to trackers.

    Does nothing on ranks that do not write. A resumed run first drops the lines beyond its checkpoint.
    """

    def __init__(self, context: TrainingContext, after_step: int | None):
        self.output = output = context.output
        self._file: IO[str] | None = None
        self._tracker = Tracker()
        with self._close_on_error(), output.world.sync_errors(), output.writing("the training log"):
            if output.is_writer:
                self._file = _reopen(output.folder / "train_log.jsonl", after_step)
                trackers = context.inputs.trackers if output.world.is_main else ()  # one process, for all machines
                self._tracker = Tracker(trackers, output.folder, context.config.flat(), after_step)
                lines = (f"- {escape_controls(finding.line())}" for finding in decisions(context.findings))
                self._tracker.log_text("decisions", "\n".join(lines))

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        if step.metrics is None or self._file is None:
            return
        values = {
            "loss": step.metrics.loss,
            "learning_rate": step.learning_rate,
            "grad_norm": step.metrics.grad_norm if math.isfinite(step.metrics.grad_norm) else None,
            "rows_per_second": step.metrics.rows_per_second,
        }
        with self.output.writing("the training log"):
            self._write({"step": trainer.progress.step, "epoch": trainer.epoch, **values})
            numbers = {name: value for name, value in values.items() if value is not None}
            self._tracker.log("train", trainer.progress.step, numbers)

    def write_contrastive(self, step: ContrastiveStep) -> None:
        if self._file is None:
            return
        values = {"loss": float(step.loss), "learning_rate": step.learning_rate}
        values["rows_per_second"] = step.rows / step.seconds
        with self.output.writing("the training log"):
            self._write({"contrastive_step": step.step, **values})
            self._tracker.log("contrastive", step.step, values, other_axis=True)

    def write_score(self, trainer: Trainer, score: Scores) -> None:
        """Write the score of the validation split at the current step."""
        with self.output.writing("the training log"):
            self._write({"step": trainer.progress.step, "epoch": trainer.epoch, "eval": score.values})
            self._tracker.log("eval", trainer.progress.step, score.values)

    def close_trackers(self) -> None:
        """Flush the trackers, before the run reports success. A collective."""
        with self.output.world.sync_errors(), self.output.writing("tensorboard"):
            self._tracker.close()

    def close(self) -> None:
        """Close all files; ignore disk errors, since a failed write was reported earlier."""
        with contextlib.suppress(OSError):
            self._tracker.close()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _write(self, values: dict[str, Any]) -> None:
        """Append one line and hand it to the operating system."""
        if self._file is not None:
            if self.output.world.is_main:
                log_event("log", values)
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()


class ProgressCallback(Callback):
    """Moves the progress bar, and prints a line where memory ran out."""

    def __init__(self, output: Output, metric: str, bar: tqdm | ProgressLines, num_micro_batches: int):
        self.output, self.metric, self.bar, self.num_micro_batches = output, metric, bar, num_micro_batches

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Move the bar, and describe the step where its loss is due."""
        if trainer.num_micro_batches != self.num_micro_batches:
            self.num_micro_batches = trainer.num_micro_batches
            log_micro_batches(self.output, trainer.progress.step, self.num_micro_batches)
        if step.metrics is not None and not self.bar.disable:
            loss, rate = step.metrics.loss, step.metrics.rows_per_second
            parts = [f"epoch {trainer.epoch:.2f}", f"loss {loss:.4f}", f"{rate:.0f} rows/s"]
            best = trainer.progress.best
            if best is not None and self.metric in best:
                parts.append(f"best {display_name(self.metric)} {best[self.metric]:.3f}")
            parts.append(f"{used_memory(self.output.world.device) / 2**30:.1f} GiB")
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update()


def log_micro_batches(output: Output, step: int, count: int) -> None:
    """Print that memory ran out in a step."""
    output.log(
        f"note: step {step}: out of memory; continuing with {count} micro-batches per step (same gradient, different "
        "dropout masks)"
    )


def _reopen(path: Path, after_step: int | None) -> IO[str]:
    """Drop the lines after a step, or all lines if it is None, and open the file to append."""
    kept: list[str] = []
    if after_step is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            with contextlib.suppress(ValueError):  # cut short by a kill
                if line.endswith("\n") and json.loads(line).get("step", 0) <= after_step:
                    kept.append(line)
    with atomic_write(path) as file:
        file.writelines(kept)
    return path.open("a", encoding="utf-8")

"""The numbers of a run, written to every sink: train_log.jsonl, trackers such as TensorBoard, and the progress bar."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from classify.console import ProgressLines
from classify.distributed.memory import used_memory
from classify.errors import InputError
from classify.evaluation.metrics import Scores, display_name
from classify.files import atomic_write
from classify.training.contrastive import ContrastiveSteps
from classify.training.progress import StepEnd
from classify.training.setup import TrainingContext
from classify.training.terminal import log_event
from classify.training.trainer import Callback, Trainer


class Log(Callback):
    """Writes the numbers of a step every few steps, and every score, to all sinks of the process that writes.

    A resumed run first drops what an interrupted one had written beyond its checkpoint, `after_step`.
    """

    def __init__(self, context: TrainingContext, after_step: int | None):
        self.output = output = context.output
        self.sinks: list[Sink] = []
        with output.world.sync_errors(), output.writing("the training log"):
            if output.is_writer:
                self.sinks.append(LogFile(output.folder / "train_log.jsonl", after_step))
            for name in context.inputs.trackers if output.world.is_main else ():  # one process, for all machines
                self.sinks.append(start_tracker(name, output.folder, context.config.flat(), after_step))

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        if step.loss is None:
            return
        values = {
            "loss": step.loss,
            "learning_rate": step.learning_rate,
            "grad_norm": step.grad_norm,
            "rows_per_second": step.rows_per_second,
        }
        self._write("train", trainer.progress.step, values, trainer.epoch)

    def write_contrastive(self, done: ContrastiveSteps, rate: float) -> None:
        values = {"loss": float(done.loss), "learning_rate": rate, "rows_per_second": done.rows / done.seconds}
        self._write("contrastive", done.steps, values)

    def write_score(self, trainer: Trainer, score: Scores) -> None:
        self._write("eval", trainer.progress.step, score.values, trainer.epoch)

    def _write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None = None) -> None:
        with self.output.writing("the training log"):
            for sink in self.sinks:
                sink.write(part, step, values, epoch)

    def finish(self) -> None:
        """Flush the trackers, before the run reports success. A collective."""
        with self.output.world.sync_errors(), self.output.writing("tensorboard"):
            while self.sinks:
                self.sinks.pop().close()

    def close(self) -> None:
        """Close all sinks; ignore disk errors, since a failed write was reported earlier."""
        while self.sinks:
            with contextlib.suppress(OSError):
                self.sinks.pop().close()


class Sink:
    """Where the numbers of a run go; `Log` opens, writes and closes it on one process."""

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        """Write the scalars of a part ("train", "eval", "contrastive") at a step; None is no number."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class LogFile(Sink):
    """train_log.jsonl, a line of JSON each time; the lines are events of --json, too."""

    def __init__(self, path: Path, after_step: int | None):
        kept: list[str] = []
        if after_step is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                with contextlib.suppress(ValueError):  # cut short by a kill
                    if line.endswith("\n") and json.loads(line).get("step", 0) <= after_step:
                        kept.append(line)
        with atomic_write(path) as file:
            file.writelines(kept)
        self._file = path.open("a", encoding="utf-8")

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        line: dict[str, Any] = {"contrastive_step": step} if part == "contrastive" else {"step": step, "epoch": epoch}
        line |= {"eval": values} if part == "eval" else values
        log_event("log", line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard(Sink):
    """Each part is a run of its own with the same names, so that one chart shows both losses.

    Accelerate's tracker could not cut what an interrupted run had written beyond its checkpoint.
    """

    def __init__(self, folder: Path, after_step: int | None):
        self._folder, self._purge_step = folder, None if after_step is None else after_step + 1
        self._boards: dict[str, Any] = {}

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._board(part).add_scalar(name, value, step)

    def _board(self, part: str) -> Any:
        if part not in self._boards:
            from torch.utils.tensorboard import SummaryWriter

            self._boards[part] = SummaryWriter(str(self._folder / part), purge_step=self._purge_step)
        return self._boards[part]

    def close(self) -> None:
        for board in self._boards.values():
            board.close()


class AccelerateTracker(Sink):
    """One of Accelerate's trackers, in a project called classify, with the run's settings.

    It has one axis, that of the optimizer steps, so contrastive steps are not written. A server that is gone does not
    end a training.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]):
        from accelerate.state import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # does nothing where one exists; Accelerate's messages need it
        kind = LOGGER_TYPE_TO_CLASS[name]
        place = {"logging_dir": str(folder / name)} if kind.requires_logging_directory else {}
        self._tracker: Any = kind("classify", **place)
        self._tracker.main_process_only = False  # this process is the one; Accelerate would look for its own
        self._tracker.start()
        self._tracker.store_init_configuration({key: value for key, value in settings.items() if value is not None})

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        if self._tracker is None or part == "contrastive":
            return
        numbers = {f"{part}/{name}": value for name, value in values.items() if value is not None}
        try:
            self._tracker.log(numbers, step=step)
        except Exception as error:
            line = f"note: {self._tracker.name} failed and is no longer written to ({_describe(error)})"
            print(line, file=sys.stderr, flush=True)
            self._tracker = None

    def close(self) -> None:
        if self._tracker is not None:
            with contextlib.suppress(Exception):
                self._tracker.finish()


def start_tracker(name: str, folder: Path, settings: Mapping[str, Any], after_step: int | None) -> Sink:
    """Start a tracker by its name in --report-to. Raises InputError where it cannot be started."""
    if name == "tensorboard":
        return TensorBoard(folder / name, after_step)
    try:
        return AccelerateTracker(name, folder, settings)
    except Exception as error:
        raise InputError(
            f"--report-to {name}: it cannot be started ({_describe(error)}); fix that, or leave it out."
        ) from None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class ProgressCallback(Callback):
    """Moves the progress bar."""

    def __init__(self, metric: str, bar: tqdm | ProgressLines):
        self.metric, self.bar = metric, bar

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        if step.loss is not None and not self.bar.disable:
            parts = [f"epoch {trainer.epoch:.2f}", f"loss {step.loss:.4f}", f"{step.rows_per_second:.0f} rows/s"]
            best = trainer.progress.best
            if best is not None and self.metric in best:
                parts.append(f"best {display_name(self.metric)} {best[self.metric]:.3f}")
            parts.append(f"{used_memory(trainer.world.device) / 2**30:.1f} GiB")
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update()

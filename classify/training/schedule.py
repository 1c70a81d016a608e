"""When the steps of a training log, evaluate, save and end, and the learning rate that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler, Step
from classify.distributed.world import World
from classify.training.optimizer import learning_rate_factor
from classify.training.progress import Progress

# Most steps between two stop checks of ranks on accelerators.
_ASK_STEPS = 10


class Requests(NamedTuple):
    """What this process asks for after a step; the trainer acts on the answers of all ranks together.

    `stop` says that a signal came: the step is the last, and training may be resumed. With `end` training ends with
    this step, and with `save` a checkpoint is due. `time_share` is the share of --max-minutes that has passed, of which
    rank 0's counts: the learning rate follows it where it is ahead of the steps, and at 1 training ends.
    """

    stop: bool = False
    end: bool = False
    save: bool = False
    time_share: float = 0.0


@dataclass(frozen=True)
class StepEnd:
    """A finished step, and what is due after it.

    With `log_due` it has the mean loss since the last such step, this step's gradient norm if that is finite, and the
    rows per second so far.
    """

    learning_rate: float
    epoch_ended: bool
    eval_due: bool
    save_due: bool
    log_due: bool
    last: bool
    stopped: bool
    loss: float | None = None
    grad_norm: float | None = None
    rows_per_second: float | None = None


class Schedule:
    """The steps from the current progress to the end of training, and what is due after each."""

    def __init__(
        self,
        config: TrainingConfig,
        batches: BatchSampler,
        progress: Progress,
        world: World,
        ask: Callable[[], Requests],
    ):
        self.config, self.batches, self.progress = config, batches, progress
        self.world, self.ask = world, ask
        self.end = progress.end_of_training(config, batches)
        self._total_steps = batches.steps_until(self.end)
        self._passed = 0.0  # share of the time limit
        self._rate = 0.0

    def steps(self) -> Iterator[Step]:
        return self.batches.steps(self.progress.position, self.end)

    def learning_rate(self) -> float:
        config, step = self.config, max(self.progress.step, self._passed * self._total_steps)
        factor = learning_rate_factor(step, self._total_steps, config.warmup_steps, config.lr_scheduler_type)
        self._rate = config.peak_learning_rate * factor
        return self._rate

    def after(self, step: Step) -> StepEnd:
        """Say what is due after a step that the progress counts already. A collective."""
        config, progress = self.config, self.progress
        stopped, ended, save_due = self._ask()
        ended = ended or self._passed >= 1
        if ended:
            progress.set_end(step.end, config)
        last = ended or step.end >= self.end
        epoch_ended = step.end % self.batches.num_rows == 0
        save_due = save_due or (config.save_steps is not None and progress.step % config.save_steps == 0)
        eval_due = epoch_ended or last or (config.eval_steps is not None and progress.step % config.eval_steps == 0)
        log_due = eval_due or save_due or stopped or progress.step % config.logging_steps == 0
        return StepEnd(self._rate, epoch_ended, eval_due, save_due, log_due, last, stopped)

    def _ask(self) -> tuple[bool, bool, bool]:
        """Whether any rank has to stop, to end, to save; no in steps without an exchange. A collective."""
        world = self.world
        # Asking all ranks costs a small exchange; on devices it would also make the host wait, so it is done less.
        often = not world.distributed or world.accelerator.is_host
        if not often and self.progress.step % min(self.config.logging_steps, _ASK_STEPS):
            return False, False, False
        asked = self.ask()
        if not world.is_main:  # ranks with other clocks would have other learning rates
            asked = asked._replace(time_share=0.0)
        stop, end, save, share = world.all_reduce_sum(list(map(float, asked)))
        self._passed = max(self._passed, share)
        return stop > 0, end > 0, save > 0

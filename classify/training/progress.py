"""Training progress, what is due after each step, when training ends, and which of the scored steps a run keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler, Step
from classify.distributed.world import World
from classify.evaluation.metrics import ERRORS
from classify.training.optimizer import learning_rate_factor

# Standard errors by which an earlier score must lead for its weights to be kept; chance alone does that once in 40.
_STANDARD_ERRORS = 2.0
# Most steps between two stop checks of ranks on accelerators.
_ASK_STEPS = 10


@dataclass
class Progress:
    """Progress of training, all of which goes into a checkpoint. Others read it; its methods alone change it."""

    step: int = 0
    # Rows consumed since the start.
    position: int = 0
    # Time and tokens of the steps.
    seconds: float = 0.0
    tokens: int = 0
    # Summed loss and weight of the epoch so far.
    epoch_loss: float = 0.0
    epoch_weight: float = 0.0
    # Position at which a time limit or a callback ends training, and the limits that this was decided for.
    end: int | None = None
    time_plan: list[float | None] | None = None
    # Micro-batches per device and step that memory requires, once it has run out.
    min_micro_batches: int = 1
    # Epoch after which training had last collapsed.
    collapsed_epoch: float | None = None
    # Scores of the best step and of the last one that was scored, with their numbers; step 0 is the start.
    best: dict[str, float] | None = None
    last_eval: dict[str, float] | None = None
    # Since the best score, or since the first epoch's.
    epochs_without_improvement: int = 0
    # Mean training loss of the first epoch.
    first_loss: float | None = None
    # How training began, for metrics.json: the results of contrastive steps and of the probe.
    contrastive: dict[str, float] | None = None
    probe: dict[str, float] | None = None

    @property
    def mean_loss(self) -> float:
        return self.epoch_loss / (self.epoch_weight or 1.0)

    @property
    def last_collapsed(self) -> bool:
        """Whether all validation texts got the same output from the step that was scored last."""
        return self.last_eval is not None and bool(self.last_eval.get("collapsed"))

    @property
    def is_scored(self) -> bool:
        return self.last_eval is not None and self.last_eval["step"] == self.step

    def add_contrastive(self, results: dict[str, float]) -> None:
        self.contrastive = results

    def add_probe(self, results: dict[str, float]) -> None:
        self.probe = results

    def add_step(self, step: Step, tokens: int, *, begins_epoch: bool) -> None:
        """Count a step that was taken. Its loss and seconds follow."""
        self.step += 1
        self.position = step.end
        self.tokens += tokens
        if begins_epoch:
            self.epoch_loss, self.epoch_weight = 0.0, 0.0

    def add_loss(self, total: float, weight: float, *, epoch_ended: bool) -> None:
        self.epoch_loss += total
        self.epoch_weight += weight
        if epoch_ended and self.first_loss is None:
            self.first_loss = self.mean_loss

    def add_seconds(self, seconds: float) -> None:
        self.seconds += seconds

    def raise_micro_batches(self, count: int) -> None:
        self.min_micro_batches = count

    def set_end(self, end: int, config: TrainingConfig) -> None:
        """Remember where a time limit or a callback ends training, unless a resumed run has other limits."""
        self.end, self.time_plan = end, _limits(config)

    def end_of_training(self, config: TrainingConfig, batches: BatchSampler) -> int:
        """The rows consumed at the end of training, as far as that is known now."""
        if self.is_out_of_patience(config.patience):
            return self.position
        if self.end is not None and self.time_plan == _limits(config):
            return self.end
        return batches.compute_end(config.epochs, config.max_steps)

    def add_score(self, scores: dict[str, float], epoch: float, metric: str, *, collapsed: bool = False) -> bool:
        """Remember the scores of the current step on the validation split; return whether they are the best so far.

        A model that has collapsed is not better, whatever it scores.
        """
        begins = self.last_eval is None or self.last_eval["step"] == 0  # it may take some epochs to pass the start
        collapsed = collapsed and self.step > 0
        self.last_eval = {"step": self.step, "epoch": epoch, **scores, "collapsed": collapsed}
        better = self.best is None or _rank(self.last_eval, metric) > _rank(self.best, metric)
        self.epochs_without_improvement = 0 if better or begins else self.epochs_without_improvement + 1
        if better:
            self.best = self.last_eval
        if collapsed:
            self.collapsed_epoch = epoch
        return better

    def add_unscored(self, epoch: float) -> None:
        """Remember the current step as the one to keep, where there is no validation split."""
        self.best = self.last_eval = {"step": self.step, "epoch": epoch}

    def is_out_of_patience(self, patience: int | None) -> bool:
        return patience is not None and self.epochs_without_improvement >= patience

    def choose_kept(self, rule: str, metric: str, share: str | None, rows: int) -> dict[str, float]:
        """Choose the scored step whose weights a run keeps, by `--keep`.

        `share` is the metric, if any, that is a share of the validation split's `rows`.

        The maximum of several scores on few rows is biased upwards: "auto" takes the last weights unless the accuracy
        of the best leads by two standard errors (Breiman et al., 1984, "Classification and Regression Trees", section
        3.4.3, by one), whichever metric chose the best. For losses the best is kept.
        """
        assert self.best is not None, "the last step is always scored"
        assert self.last_eval is not None
        if rule == "last" or self.best["step"] == self.last_eval["step"]:
            return self.last_eval
        if self.last_collapsed or rule == "best" or metric in ERRORS or share is None:
            return self.best
        accuracy = self.last_eval[share]
        margin = _STANDARD_ERRORS * math.sqrt(accuracy * (1 - accuracy) / rows)
        ahead = self.best[share] - accuracy
        return self.best if ahead > margin else self.last_eval


def _limits(config: TrainingConfig) -> list[float | None]:
    return [config.max_minutes, config.epochs, config.max_steps]


def _rank(scores: dict[str, float], metric: str) -> tuple[float, float]:
    """Order scores, larger is better; equal ones by the loss. Those of a model that has collapsed come last."""
    if scores.get("collapsed"):
        return -math.inf, -math.inf
    value = scores[metric]
    return (-value if metric in ERRORS else value), -scores["loss"]


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

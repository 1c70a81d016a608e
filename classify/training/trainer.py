"""Training: one step, the loop over them, and all that they change.

The gradient of a step is the sum over its rows divided by the global number of rows, whoever computes which of them.
Every random draw is a function of (seed, epoch, step, micro-batch, rank), so a resumed run draws what an uninterrupted
one would have drawn. Evaluation, logs and checkpoints are callbacks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.data import sampler
from classify.data.tokenize import TrainingSet
from classify.distributed.batch_norm import counted, statistics_kept
from classify.distributed.memory import attempt, release_cache
from classify.errors import CheckpointError, ClassifyError, RankError
from classify.modeling.classifier import LoadedModel
from classify.modeling.kernels.dropout import seed_draws
from classify.modeling.layout import send
from classify.modeling.vocabulary import Vocabulary
from classify.tasks.base import Loss
from classify.training.checkpoint import Checkpoint
from classify.training.optimizer import learning_rate_factor, set_learning_rate
from classify.training.progress import Progress
from classify.training.strategies.base import Strategy, Tensors

# At least so often, in steps, the ranks of a run on devices ask each other whether to stop.
_ASK_STEPS = 10
# Name of the id map among the weights of a checkpoint with a compact embedding table.
VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class StepEnd:
    """A finished step. `loss` (mean over the rows since the last one given) is there when it was due, else None.

    `cut_into` is the new number of micro-batches, where memory ran out in this step.
    """

    step: int
    epoch: float
    loss: float | None
    learning_rate: float
    grad_norm: float | None
    rows_per_second: float | None
    epoch_ended: bool
    save_due: bool
    last: bool
    stopped: bool
    cut_into: int | None = None


class Callback:
    """What happens between two steps. Every rank calls it, in the order in which callbacks are given."""

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Act on a finished step; `trainer.stop()` makes it the last one."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrainerState:
    """What a checkpoint holds of a training: tensors by name, and `values` that JSON can say."""

    weights: Tensors
    moments: Tensors
    values: dict[str, Any]


class Trainer:
    """Trains a model by a strategy; owns the weights, the optimizer's state and where training stands.

    `parts` is the micro-batches that a rank cuts its share of a step into, at least; `micros` how many they were the
    last time. `probe_metrics` says how the head's start was found, for metrics.json.
    """

    def __init__(
        self,
        strategy: Strategy,
        data: TrainingSet,
        batches: sampler.BatchSampler,
        loss: Loss,
        vocabulary: Vocabulary | None = None,
    ):
        self.strategy, self.data, self.batches = strategy, data, batches
        self.loss = loss
        self.config, self.world = strategy.config, strategy.world
        self.progress = Progress()
        self.probe_metrics: dict[str, float] | None = None
        self.parts = self.config.gradient_accumulation_steps
        self.micros = 1
        self._vocabulary = vocabulary if vocabulary is not None and vocabulary.compacted else None
        self._stopped = False

    @property
    def model(self) -> LoadedModel:
        """The model that is trained."""
        return self.strategy.model

    @property
    def epoch(self) -> float:
        """Epochs done so far, and the part of the one that has begun."""
        return self.progress.position / self.batches.rows

    def begin(self, probe_metrics: dict[str, float] | None = None) -> None:
        """Make the model ready for training from the weights that it has."""
        self.probe_metrics = probe_metrics
        self.strategy.begin()

    def state_dict(self, keep: bool) -> TrainerState:
        """All that a checkpoint holds of this training, its tensors on ranks that `keep` them. A collective."""
        weights, moments = self.strategy.weights(keep=keep), self.strategy.moments(keep=keep)
        if keep and self._vocabulary is not None:
            weights[VOCABULARY] = self._vocabulary.as_tensor()
        values = {
            "progress": dataclasses.asdict(self.progress),
            "scaler": self.strategy.scaler.state_dict(),
            "probe": self.probe_metrics,
        }
        return TrainerState(weights, moments, values)

    def load_state_dict(self, saved: Checkpoint, keep: bool) -> None:
        """Begin where `state_dict` was taken; `keep` as there. The main process reads the files. A collective.

        Raises CheckpointError where its embedding table is of other tokens.
        """
        is_main = self.world.is_main
        weights = self.world.broadcast_tensors(saved.model_tensors() if is_main else None)
        if self._vocabulary is not None:
            _check_vocabulary(saved, weights.get(VOCABULARY), self._vocabulary.as_tensor())
        self.strategy.load_weights(weights)
        self.begin(saved.state["probe"])
        tensors = self.world.broadcast_tensors(saved.optimizer_tensors() if is_main else None)
        self.strategy.load_optimizer(tensors, saved.state["scaler"])
        self.progress = Progress(**saved.state["progress"])
        self.parts = max(self.parts, self.progress.parts)

    def end_of_run(self) -> int:
        """Rows consumed at the end of training, as the configuration says."""
        return self.batches.end_of(self.config.epochs, self.config.max_steps)

    def stop(self) -> None:
        """Leave `fit` behind this step. Every rank calls it at the same one."""
        self._stopped = True

    def fit(
        self,
        end: int,
        callbacks: Sequence[Callback] = (),
        *,
        interrupted: Callable[[], bool] = lambda: False,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train until `end` rows are consumed, calling each callback behind each step. A collective."""
        for event in self.steps(end, interrupted=interrupted, late=late):
            for callback in callbacks:
                callback.on_step_end(self, event)
            if self._stopped:
                return

    def steps(
        self,
        end: int | None = None,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        late: Callable[[], bool] = lambda: False,
    ) -> Iterator[StepEnd]:
        """Train from where `progress` stands, one event a step. A collective: every rank iterates.

        `end` is in rows consumed; what the configuration says if not given. The seconds in `progress` are those of
        steps alone. `interrupted` asks whether this process was to end (a signal); when any rank was, all finish the
        step and the event says `stopped`. `late` asks whether time is up: that step is the last.
        """
        config, world, progress = self.config, self.world, self.progress
        end = end if end is not None else self.end_of_run()
        total_steps = self.batches.steps_until(end)
        recent = _RecentLoss()
        parts = self.parts
        for step in self.batches.steps(progress.position, end):
            begin = time.perf_counter()
            rate = config.peak_learning_rate * learning_rate_factor(
                progress.step, total_steps, config.warmup_steps, config.lr_scheduler_type
            )
            set_learning_rate(self.strategy.optimizer, rate)
            if step.position % self.batches.rows == 0:
                progress.epoch_loss, progress.epoch_weight = 0.0, 0.0
            loss, weight, norm = self.train_step(step)
            recent.add(loss, weight)
            progress.step += 1
            progress.position = step.end
            progress.tokens += int(self.data.tokens.lengths_of(self.data.rows[step.rows]).sum())

            epoch_ended = step.end % self.batches.rows == 0
            # Asking all ranks costs a small exchange; on devices it would also make the host wait, so it is done less.
            often = not world.distributed or world.accelerator.synchronous
            ask = often or progress.step % min(config.logging_steps, _ASK_STEPS) == 0
            votes = world.all_reduce_sum([float(interrupted()), float(late())]) if ask else [0.0, 0.0]
            stopped = votes[0] > 0
            last = step.end >= end or votes[1] > 0
            progress.parts = self.parts
            if votes[1] > 0:
                progress.end = progress.position
            save_due = config.save_steps is not None and progress.step % config.save_steps == 0
            log_due = progress.step % config.logging_steps == 0 or epoch_ended or last or save_due or stopped
            mean = recent.mean(self) if log_due else None
            progress.seconds += time.perf_counter() - begin
            yield StepEnd(
                step=progress.step,
                epoch=self.epoch,
                loss=mean,
                learning_rate=rate,
                grad_norm=float(norm) if log_due else None,
                rows_per_second=progress.position / progress.seconds if log_due else None,
                epoch_ended=epoch_ended,
                save_due=save_due,
                last=last,
                stopped=stopped,
                cut_into=self.parts if self.parts != parts else None,
            )
            parts = self.parts
            if stopped or last:
                return

    def train_step(self, step: sampler.Step) -> tuple[torch.Tensor, float, torch.Tensor]:
        """One optimizer step at the learning rate that is set.

        Returns (this rank's summed loss, summed weight of the step's rows on all ranks, gradient norm). Where memory
        runs out the same step is tried again with micro-batches of half the size, which changes nothing but dropout's
        draws.
        """
        number, rank = self.progress.step + 1, self.world.rank
        while True:
            result, reason = attempt(lambda: self._backward_or_nothing(step), self.world.device)
            if result is not None:
                break
            if self.world.distributed:  # the other ranks are waiting in the exchange
                raise RankError(
                    f"step {number}: rank {rank} is out of memory ({reason}); go on with --resume and "
                    f"--gradient-accumulation-steps {self._finer()}, which changes nothing but dropout's draws; or "
                    f"{self._less_memory()}."
                )
            self.make_room(len(step.rows), reason)
        total, weight_sum = result
        norm, reason = attempt(self.strategy.optimizer_step, self.world.device)
        if norm is None:
            # AdamW has changed some weights, or made some of its moments: the step can neither be undone nor repeated.
            who = f"rank {rank} is " if self.world.distributed else ""
            raise RankError(
                f"step {number}: {who}out of memory in the optimizer's step ({reason}), which keeps two numbers for "
                "each weight that is trained; go on with --resume where more memory is free, or start anew with "
                "--lora, --freeze-layers or a smaller --model."
            )
        self.world.flush()
        return total, weight_sum, norm

    def _backward_or_nothing(self, step: sampler.Step) -> tuple[torch.Tensor, float]:
        """`backward`, whose error leaves no BatchNorm's statistics moved: the step is tried again."""
        with statistics_kept(self.model.classifier, after_errors_only=True):
            return self.backward(step)

    def backward(self, step: sampler.Step) -> tuple[torch.Tensor, float]:
        """Gradients of a step, exchanged between ranks; (this rank's summed loss, the rows' weights on all ranks)."""
        data, world, strategy, config = self.data, self.world, self.strategy, self.config
        rows = data.rows[step.rows]
        micros = micro_batches(
            self.model,
            data.tokens.lengths_of(rows),
            world.rank,
            world.world_size,
            self.parts,
            world.replicas,
            strategy.tokens_at_once,
        )
        self.micros = len(micros)
        # A rank without rows still takes part in the exchange of gradients: one row, counted zero times.
        weights = [1.0] * len(micros)
        for _ in range(max(1, strategy.passes(len(micros))) - len(micros)):
            micros.append([np.zeros(1, dtype=np.int64)])
            weights.append(0.0)
        # The wrapped model averages over ranks, so each rank's part is scaled up by their number.
        step_targets = data.targets[step.rows]
        weight_sum = self.loss.weight_sum(step_targets)
        scale = world.world_size / weight_sum
        total = torch.zeros((), device=world.device)
        strategy.module.train()
        for number, (pieces, weight) in enumerate(zip(micros, weights, strict=True)):
            seed_draws(config.seed, step.epoch, self.progress.step, number, world.rank, world.device.type)
            batches = [self.model.batch(data.tokens, rows[piece]) for piece in pieces]
            labels = step_targets[np.concatenate(pieces)]
            filled = self.loss.filled(labels, self.model.filled(len(labels)))
            targets = send(torch.from_numpy(filled), world.device)
            last = number == len(micros) - 1
            with strategy.accumulate(last), counted(strategy.module, weight > 0):
                loss = self.loss.loss_sum(strategy.forward(batches), targets)
                strategy.backward(loss * (scale * weight), last)
                total += weight * loss.detach()
            world.flush()
        return total, weight_sum

    def make_room(self, rows: int, reason: str) -> None:
        """Twice as many micro-batches from now on.

        Raises ClassifyError where each micro-batch holds a single text already.
        """
        if self.parts * self.world.replicas * self.world.world_size >= rows:
            raise ClassifyError(
                f"step {self.progress.step + 1}: out of memory with a single text ({reason}); {self._less_memory()}."
            )
        self.parts = self._finer()
        self.strategy.clear_gradients()
        release_cache(self.world.device)

    def _finer(self) -> int:
        """Into how many micro-batches to cut a step so that each is half of what it is."""
        return 2 * max(self.parts, self.micros)

    def _less_memory(self) -> str:
        """What a person can do, where halving micro-batches does not help or cannot be done."""
        if self.model.classifier.precision.half is not None:
            return "take --gradient-checkpointing or a smaller --max-length"
        return "take --gradient-checkpointing, a smaller --max-length or --precision bf16"


class _RecentLoss:
    """The loss since its mean was last taken, kept on the device so that no step waits for it."""

    def __init__(self) -> None:
        self._loss: torch.Tensor | None = None
        self._weight = 0.0

    def add(self, loss: torch.Tensor, weight: float) -> None:
        """Add one rank's summed loss of a step, and the summed weight of the step's rows on all ranks."""
        self._loss = loss if self._loss is None else self._loss + loss
        self._weight += weight

    def mean(self, trainer: Trainer) -> float:
        """Exact (weighted) mean over all rows of all ranks since the last call; adds to the epoch's. A collective."""
        assert self._loss is not None
        progress = trainer.progress
        total = trainer.world.all_reduce_sum([float(self._loss)])[0]
        mean = total / self._weight
        progress.epoch_loss += total
        progress.epoch_weight += self._weight
        self._loss, self._weight = None, 0.0
        if not math.isfinite(mean):
            raise ClassifyError(
                f"step {progress.step}: the loss is {mean}; training has diverged. Lower --learning-rate, or take "
                "another --precision."
            )
        return mean


def _check_vocabulary(saved: Checkpoint, before: torch.Tensor | None, now: torch.Tensor) -> None:
    """Rows of a compact table mean tokens only together with the ids they had."""
    if before is None or not torch.equal(before.cpu(), now):
        raise CheckpointError(
            f"{saved.path}: its embedding table is of other tokens than these tables hold; start afresh with "
            "--overwrite-output-dir."
        )


Rows = npt.NDArray[np.int64]


def micro_batches(
    model: LoadedModel,
    lengths: Rows,
    rank: int,
    world_size: int,
    parts: int,
    replicas: int,
    tokens_at_once: int | None = None,
) -> list[list[Rows]]:
    """The micro-batches of one rank: each holds, for up to `replicas` devices, indices into the step's rows.

    Ranks share the step by token cost, largest first; a rank's share is cut again into `parts` micro-batches, or into
    as many as it takes to hold about `tokens_at_once`, padding too. Texts of like length share a padded one. With fewer
    rows than ranks, some ranks have none.
    """
    costs = sampler.token_cost(lengths, model.hidden_size)
    share = sampler.balance_by_cost(costs, world_size)[rank]
    if not len(share):
        return []
    if model.packed:
        if tokens_at_once is not None:
            parts = max(parts, math.ceil(lengths[share].sum() / tokens_at_once))
        cuts = [share[part] for part in sampler.balance_by_cost(costs[share], parts)]
        return [
            [cut[piece] for piece in sampler.balance_by_cost(costs[cut], replicas) if len(piece)]
            for cut in cuts
            if len(cut)
        ]
    if model.static_shapes:
        sizes = np.array([model.padded_length(length) for length in lengths[share].tolist()])
        alike = [share[sizes == size] for size in np.unique(sizes)]
        return [[cut] for group in alike for cut in np.array_split(group, parts) if len(cut)]
    pieces = sampler.split_by_length(lengths[share], parts)
    if tokens_at_once is not None:
        within = sampler.batch_by_tokens(lengths[share], tokens_at_once, padded=True)
        pieces = max(pieces, within, key=len)
    cuts = [share[piece] for piece in pieces]
    return [[cut[piece] for piece in sampler.split_by_length(lengths[cut], replicas)] for cut in cuts]

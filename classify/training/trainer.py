"""Training: one step, the loop over them, and all that they change.

The gradient of a step is the sum over its rows divided by the sum of their weights, each 1 by default, on any number
of ranks.
Every random draw is a function of (seed, epoch, step, micro-batch, rank), so a resumed run draws what an uninterrupted
one would have drawn. Evaluation, logs and checkpoints are callbacks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from classify.data import sampler
from classify.data.sampler import Rows
from classify.data.tokenize import TokenizedSplit
from classify.distributed.memory import attempt
from classify.errors import CheckpointError, ClassifyError, RankError
from classify.launch.devices import accelerator_of
from classify.modeling.classifier import Classifier
from classify.modeling.packing import divide_padded, pad_targets, send
from classify.tasks.base import Loss, Task
from classify.training.checkpoint import Checkpoint
from classify.training.parts import GivenLoss, Parts
from classify.training.progress import Progress, Requests, Schedule, StepEnd
from classify.training.strategies.base import Strategy
from classify.training.terminal import log
from classify.training.weights import Tensors

# Most processes of a machine that are taken to share its caches, so that micro-batches do not become too small.
_SHARERS = 4
# Name of the id map among the weights of a checkpoint with a compact embedding table.
VOCABULARY = "vocabulary"


class Callback:
    """Acts between two steps. Every rank calls it, in the order in which callbacks are given."""

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        raise NotImplementedError


class Trainer:
    """Trains a classifier by a strategy, which owns weights and optimizer; the trainer owns the progress."""

    def __init__(self, strategy: Strategy, data: TokenizedSplit, batches: sampler.BatchSampler, loss: Loss):
        self.strategy, self.data, self.batches, self.loss = strategy, data, batches, loss
        self.config, self.world = strategy.config, strategy.world
        self.progress = Progress()
        # Summed since the last log line; on the device, so that no step waits for it.
        self._loss_sum, self._weight_sum = torch.zeros((), device=self.world.device), 0.0

    @property
    def classifier(self) -> Classifier:
        return self.strategy.classifier

    @property
    def epoch(self) -> float:
        return self.progress.position / self.batches.num_rows

    @property
    def end_position(self) -> int:
        return self.progress.end_of_training(self.config, self.batches)

    @property
    def num_micro_batches(self) -> int:
        return max(self.config.gradient_accumulation_steps, self.progress.min_micro_batches)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a micro-batch, or None.

        There is no limit where each pass is a collective or moves weights between devices: passes cost too much there.
        """
        limit = self.classifier.max_tokens
        if limit is None or not self.world.plan.spec.may_split_steps or self.strategy.forward_is_collective:
            return None
        return limit // min(_SHARERS, self.world.plan.launch.local_world_size)

    def state_dict(self, *, keep: bool) -> tuple[Tensors, Tensors, dict[str, Any]]:
        """All that a checkpoint holds of this training: weights, tensors of the optimizer, and values for JSON.

        Tensors are on ranks that `keep` them. A collective.
        """
        weights, tensors, values = self.strategy.state_dict(keep=keep)
        vocabulary = self.classifier.vocabulary
        if keep and vocabulary is not None and vocabulary.compacted:
            weights[VOCABULARY] = torch.from_numpy(vocabulary.used)
        return weights, tensors, {"progress": dataclasses.asdict(self.progress), **values}

    def load_state_dict(self, saved: Checkpoint) -> None:
        """Continue where `state_dict` was taken. The main process reads the files. A collective.

        Raises CheckpointError if it was saved with another vocabulary.
        """
        is_main, vocabulary = self.world.is_main, self.classifier.vocabulary
        weights = self.world.broadcast_tensors(saved.model_tensors() if is_main else None)
        if vocabulary is not None and vocabulary.compacted:
            before = weights.get(VOCABULARY)
            # The rows of the compact embedding table must belong to the same token ids.
            if before is None or not torch.equal(before.cpu(), torch.from_numpy(vocabulary.used)):
                raise CheckpointError(
                    f"{saved.path}: expected a checkpoint with the vocabulary of this data. Got another one; start "
                    "over with --overwrite-output-dir."
                )
        self.strategy.setup(weights)
        tensors = self.world.broadcast_tensors(saved.optimizer_tensors() if is_main else None)
        self.strategy.load_optimizer(tensors, saved.state)
        self.progress = saved.progress

    def fit(self, callbacks: Sequence[Callback] = (), ask: Callable[[], Requests] = Requests) -> None:
        """Train to the end, calling each callback after each step; see `steps`. A collective."""
        for event in self.steps(ask):
            for callback in callbacks:
                callback.on_step_end(self, event)
            if self.progress.is_out_of_patience(self.config.patience):
                return

    def steps(self, ask: Callable[[], Requests] = Requests) -> Iterator[StepEnd]:
        """Train from the current progress, one event per step; `ask` says what this process wants after one.

        A collective: every rank iterates.

        `progress.seconds` counts the steps, not the time between them.
        """
        progress, tokens = self.progress, self.data.tokens
        schedule = Schedule(self.config, self.batches, progress, self.world, ask)
        for step in schedule.steps():
            begin = time.perf_counter()
            with self.world.dump_if_stalled():
                norm = self.train_step(step, schedule.learning_rate())
                progress.add_step(
                    step,
                    int(tokens.lengths(self.data.rows[step.indices]).sum()),
                    begins_epoch=step.position % self.batches.num_rows == 0,
                )
                event = schedule.after(step)
                loss = self._record_loss(event) if event.log_due else None
            progress.add_seconds(time.perf_counter() - begin)
            if loss is not None:
                finite, speed = math.isfinite(norm), progress.position / progress.seconds
                event = dataclasses.replace(
                    event, loss=loss, grad_norm=float(norm) if finite else None, rows_per_second=speed
                )
            yield event
            if event.stopped or event.last:
                return

    def _record_loss(self, step: StepEnd) -> float:
        """Compute the exact (weighted) mean of the losses since the last call, on all ranks. A collective.

        Adds them to the epoch's loss, which a checkpoint holds, so it is called before each. Raises ClassifyError where
        the mean is not finite.
        """
        total, weight = self.world.all_reduce_sum([float(self._loss_sum)])[0], self._weight_sum
        self._loss_sum, self._weight_sum = torch.zeros_like(self._loss_sum), 0.0
        self.progress.add_loss(total, weight, epoch_ended=step.epoch_ended)
        mean = total / weight
        if not math.isfinite(mean):
            raise ClassifyError(explain_divergence(self.strategy, self.progress.step, f"the loss is {mean}"))
        return mean

    def train_step(self, step: sampler.Step, learning_rate: float) -> torch.Tensor:
        """Take one optimizer step; return the gradient's norm.

        Where memory runs out the same step is tried again with micro-batches of half the size, with the same gradient,
        except for different dropout masks.
        """
        while True:
            result, reason = attempt(lambda: self.compute_gradients(step), self.world.device)
            if result is not None:
                break
            self.halve_micro_batches(step, reason)
        try:
            norm = self.strategy.optimizer_step(learning_rate)
        except FloatingPointError as error:
            raise ClassifyError(explain_divergence(self.strategy, self.progress.step + 1, str(error))) from None
        self._loss_sum = self._loss_sum + result[0]
        self._weight_sum += result[1]
        return norm

    def compute_gradients(self, step: sampler.Step) -> tuple[torch.Tensor, float]:
        """Run the forward and backward passes of a step; its gradients are averaged over ranks.

        Returns (this rank's summed loss, the rows' weights on all ranks).
        """
        strategy, world, classifier = self.strategy, self.world, self.classifier
        rows = self.data.take(step.indices)
        weight_sum = self.loss.weight_sum(rows.targets, rows.weights)
        # The wrapped model averages over ranks, so each rank's loss is scaled up by their number.
        scale = world.world_size / weight_sum
        total = torch.zeros((), device=world.device)
        micro_batches = self._divide(step)
        count = len(micro_batches)
        # Where passes wait for each other, every rank runs as many as the busiest one. A rank without rows still takes
        # part in the exchange of gradients. Its passes compute a row that does not count.
        passes = world.all_reduce_max(count) if strategy.forward_is_collective else max(1, count)
        micro_batches += [[np.zeros(1, dtype=np.int64)]] * (passes - count)
        if not classifier.model.training:
            strategy.module.train()
        for number, per_device in enumerate(micro_batches):
            counts, last = number < count, number == passes - 1
            chosen = np.concatenate(per_device)
            padded = pad_targets(rows.targets[chosen], self.loss.padding, classifier.shapes)
            weights = None
            if rows.weights is not None:
                row_weights = pad_targets(rows.weights[chosen], 0.0, classifier.shapes)
                weights = send(torch.from_numpy(row_weights), world.device)
            batches = [classifier.batch(rows.tokens, rows.rows[places]) for places in per_device]
            targets = send(torch.from_numpy(padded), world.device)
            seed_draws(self.config.seed, step.epoch, self.progress.step, number, world.rank, world.device.type)
            with strategy.accumulate(last):
                loss = self.loss.loss_sum(strategy.forward(batches), targets, weights)
                strategy.backward(loss * (scale * counts), last)
                total += counts * loss.detach()
        return total, weight_sum

    def halve_micro_batches(self, step: sampler.Step, reason: str) -> None:
        """Halve the micro-batches from here on, doubling their number.

        Raises ClassifyError where each micro-batch holds a single text already, or where there are other ranks.
        """
        doubled = 2 * max(self.num_micro_batches, len(self._divide(step)))
        if self.world.distributed:  # the other ranks are waiting in the exchange
            raise RankError(explain_memory(self, reason, doubled))
        if self.num_micro_batches * self.world.replicas >= len(step.indices):
            raise ClassifyError(explain_memory(self, reason))
        self.progress.raise_micro_batches(doubled)
        self.strategy.release_memory()
        log(
            f"note: step {self.progress.step + 1}: out of memory; continuing with {doubled} micro-batches per step "
            "(same gradient, different dropout masks)"
        )

    def _divide(self, step: sampler.Step) -> list[list[Rows]]:
        return make_micro_batches(
            self.classifier,
            self.data.tokens.lengths(self.data.rows[step.indices]),
            self.world.rank,
            self.world.world_size,
            self.num_micro_batches,
            self.world.replicas,
            self.max_tokens,
        )


def make_trainer(strategy: Strategy, task: Task, data: TokenizedSplit, parts: Parts) -> Trainer:
    """Make the trainer of a run, or of one fold, on these rows."""
    config, weights = strategy.config, None
    if config.sampler == "balanced":
        stratify_by = task.targets.stratify_by(data.targets)
        weights = 1.0 / np.bincount(stratify_by)[stratify_by]
    batches = sampler.BatchSampler(
        len(data.rows), config.rows_per_step(strategy.world.num_devices), config.seed, weights
    )
    loss = task.head.loss(config, data.targets)
    return Trainer(strategy, data, batches, loss if parts.loss is None else GivenLoss(parts.loss, loss))


def seed_draws(seed: int, epoch: int, step: int, micro_batch: int, rank: int, device: str = "cpu") -> None:
    """Seed torch for one micro-batch: dropout depends on these five numbers only."""
    sequence = np.random.SeedSequence([seed, epoch, step, micro_batch, rank])
    number = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
    torch.manual_seed(number)
    accelerator_of(device).seed(number)


def explain_divergence(strategy: Strategy, step: int, sign: str) -> str:
    """The error message of a diverged training; `sign` says how it showed."""
    group = strategy.optimizer.param_groups[0]
    rate = group["lr"] / group["scale"]
    return (
        f"step {step}: {sign} at the learning rate {rate:.3g}; training has diverged. Continue "
        "with --resume and a lower --learning-rate, or start over with another --precision."
    )


def explain_memory(trainer: Trainer, reason: str, micro_batches: int | None = None) -> str:
    """The error message of a step that does not fit; of a smaller one, in `micro_batches`, where that can help."""
    config, rounds = trainer.config, trainer.classifier.precision.half_dtype is not None
    resumed = [] if micro_batches is None else [f"--gradient-accumulation-steps {micro_batches}"]
    resumed += [] if config.gradient_checkpointing else ["--gradient-checkpointing"]
    on_resume = f"continue with --resume and {' or '.join(resumed)}, or " if resumed else ""
    saving = "--lora, --freeze-layers, a smaller --max-length" + ("" if rounds else ", --precision bf16")
    return (
        f"step {trainer.progress.step + 1}: rank {trainer.world.rank} is out of memory ({reason}); {on_resume}start "
        f"over with {saving} or a smaller --model."
    )


def make_micro_batches(
    classifier: Classifier,
    lengths: Rows,
    rank: int,
    world_size: int,
    count: int,
    replicas: int,
    max_tokens: int | None = None,
) -> list[list[Rows]]:
    """The micro-batches of one rank: each holds, for up to `replicas` devices, indices into the step's rows.

    The step is sharded over the ranks by token cost, largest first. A shard is split again into `count` micro-batches,
    or more if one would exceed about `max_tokens` with padding. Padded micro-batches hold texts of similar length. With
    fewer rows than ranks, some ranks have none.
    """
    costs = sampler.token_cost(lengths, classifier.hidden_size)
    shard = sampler.balance_by_cost(costs, world_size)[rank]
    if not len(shard):
        return []
    if classifier.packed:
        if max_tokens is not None:
            count = max(count, math.ceil(lengths[shard].sum() / max_tokens))
        cuts = [shard[part] for part in sampler.balance_by_cost(costs[shard], count)]
        return [
            [cut[piece] for piece in sampler.balance_by_cost(costs[cut], replicas) if len(piece)]
            for cut in cuts
            if len(cut)
        ]
    parts = divide_padded(lengths[shard], count, replicas, max_tokens, classifier.shapes)
    return [[shard[piece] for piece in pieces] for pieces in parts]

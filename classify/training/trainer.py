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
from dataclasses import dataclass
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
from classify.modeling.layout import send
from classify.modeling.packing import Batch
from classify.tasks.base import Loss, Task
from classify.training.checkpoint import Checkpoint
from classify.training.optimizer import learning_rate_factor, set_learning_rate
from classify.training.parts import Parts
from classify.training.progress import Progress, compute_end_of_training
from classify.training.strategies.base import Strategy
from classify.training.strategies.named_state import Tensors

# Most processes of a machine that are taken to share its caches, so that micro-batches do not become too small.
_SHARERS = 4
# Most steps between two stop checks of ranks on accelerators.
_ASK_STEPS = 10
# Name of the id map among the weights of a checkpoint with a compact embedding table.
VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class StepMetrics:
    """Mean loss over the rows since the last `StepMetrics`, this step's gradient norm, rows per second so far."""

    loss: float
    grad_norm: float
    rows_per_second: float


@dataclass(frozen=True)
class StepEnd:
    """A finished step, with `metrics` where they are due (`--logging-steps`)."""

    learning_rate: float
    metrics: StepMetrics | None
    epoch_ended: bool
    eval_due: bool
    save_due: bool
    last: bool
    stopped: bool


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step on one rank: a batch for each replica, and the targets of their rows.

    One that is not `counted` holds a row that is not of the step: its rank only takes part in the exchange.
    """

    batches: list[Batch]
    targets: torch.Tensor
    counted: bool
    last: bool


class Callback:
    """Acts between two steps. Every rank calls it, in the order in which callbacks are given."""

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Act on a finished step."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrainerState:
    """State of a training for a checkpoint: tensors by name, and `values` for JSON."""

    weights: Tensors
    optimizer: Tensors
    values: dict[str, Any]


class Trainer:
    """Trains a classifier by a strategy, which owns weights and optimizer; the trainer owns the progress.

    `probe_metrics` and `contrastive_metrics` describe the start, for metrics.json.
    """

    def __init__(self, strategy: Strategy, data: TokenizedSplit, batches: sampler.BatchSampler, loss: Loss):
        self.strategy, self.data, self.batches, self.loss = strategy, data, batches, loss
        self.config, self.world = strategy.config, strategy.world
        self.progress = Progress()
        self.probe_metrics: dict[str, float] | None = None
        self.contrastive_metrics: dict[str, float] | None = None

    @property
    def classifier(self) -> Classifier:
        return self.strategy.classifier

    @property
    def epoch(self) -> float:
        return self.progress.position / self.batches.num_rows

    @property
    def end_position(self) -> int:
        return compute_end_of_training(self.config, self.batches, self.progress)

    @property
    def num_micro_batches(self) -> int:
        """The micro-batches per device and step: as requested, or more where memory has run out."""
        return max(self.config.gradient_accumulation_steps, self.progress.min_micro_batches)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a micro-batch; None for no limit.

        None where each pass is a collective or moves weights between devices: more micro-batches cost too much there.
        """
        limit = self.classifier.max_tokens
        if limit is None or not self.world.plan.spec.may_split_steps or self.strategy.forward_is_collective:
            return None
        return limit // min(_SHARERS, self.world.plan.launch.local_world_size)

    def state_dict(self, *, keep: bool) -> TrainerState:
        """All that a checkpoint holds of this training, tensors on ranks that `keep` them. A collective."""
        weights, optimizer = self.strategy.state_dict(keep=keep)
        vocabulary = self.classifier.vocabulary
        if keep and vocabulary is not None and vocabulary.compacted:
            weights[VOCABULARY] = torch.from_numpy(vocabulary.used)
        values = {
            "progress": dataclasses.asdict(self.progress),
            "scaler": self.strategy.scaler.state_dict(),
            "probe": self.probe_metrics,
            "contrastive": self.contrastive_metrics,
        }
        return TrainerState(weights, optimizer, values)

    def load_state_dict(self, saved: Checkpoint) -> None:
        """Continue where `state_dict` was taken. The main process reads the files. A collective.

        Raises CheckpointError where its vocabulary differs from that of the data.
        """
        is_main, vocabulary = self.world.is_main, self.classifier.vocabulary
        weights = self.world.broadcast_tensors(saved.model_tensors() if is_main else None)
        if vocabulary is not None and vocabulary.compacted:
            _check_vocabulary(saved, weights.get(VOCABULARY), torch.from_numpy(vocabulary.used))
        self.strategy.setup(weights)  # the optimizer's settings are this run's; only its moments are loaded
        tensors = self.world.broadcast_tensors(saved.optimizer_tensors() if is_main else None)
        self.strategy.load_optimizer(tensors, saved.state["scaler"])
        self.progress = saved.progress
        self.probe_metrics, self.contrastive_metrics = saved.state["probe"], saved.state["contrastive"]

    def fit(
        self,
        callbacks: Sequence[Callback] = (),
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        end_requested: Callable[[], bool] = lambda: False,
        time_share: Callable[[], float] = lambda: 0.0,
        save_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the end, calling each callback after each step; see `steps`. A collective."""
        for event in self.steps(
            stop_requested=stop_requested,
            end_requested=end_requested,
            time_share=time_share,
            save_requested=save_requested,
        ):
            for callback in callbacks:
                callback.on_step_end(self, event)
            if self.progress.is_out_of_patience(self.config.patience):
                return

    def steps(
        self,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        end_requested: Callable[[], bool] = lambda: False,
        time_share: Callable[[], float] = lambda: 0.0,
        save_requested: Callable[[], bool] = lambda: False,
    ) -> Iterator[StepEnd]:
        """Train from the current progress, one event per step. A collective: every rank iterates.

        The seconds in `progress` are those of steps alone.
        `stop_requested` returns whether this process received a signal; when any rank did, all finish the step and the
        event says `stopped`. Where `end_requested` does the step is the last, and where `save_requested` does a
        checkpoint is due. `time_share` returns the share of --max-minutes that has passed: the learning rate follows it
        where it is ahead of the steps, and at 1 the step is the last.
        """
        config, progress, end = self.config, self.progress, self.end_position
        total_steps = self.batches.steps_until(end)
        # Since the last log line; on the device, so that no step waits for it.
        recent_loss, recent_weight = torch.zeros((), device=self.world.device), 0.0
        passed = 0.0
        for step in self.batches.steps(progress.position, end):
            begin = time.perf_counter()
            rate = self._compute_learning_rate(total_steps, passed)
            set_learning_rate(self.strategy.optimizer, rate)
            if step.position % self.batches.num_rows == 0:
                progress.epoch_loss, progress.epoch_weight = 0.0, 0.0
            with self.world.dump_if_stalled():
                loss, weight, norm = self.train_step(step)
                recent_loss, recent_weight = recent_loss + loss, recent_weight + weight
                progress.step += 1
                progress.position = step.end
                progress.tokens += int(self.data.tokens.lengths(self.data.rows[step.indices]).sum())
                stopped, ended, save_due, now = self._agree([stop_requested, end_requested, save_requested], time_share)
                passed = max(passed, now)
                out_of_time = ended or passed >= 1

            epoch_ended = step.end % self.batches.num_rows == 0
            last = step.end >= end or out_of_time
            if out_of_time:
                progress.set_end(progress.position, config)
            save_due |= config.save_steps is not None and progress.step % config.save_steps == 0
            eval_due = epoch_ended or last or (config.eval_steps is not None and progress.step % config.eval_steps == 0)
            log_due = progress.step % config.logging_steps == 0 or eval_due or save_due or stopped
            mean = math.nan
            if log_due:
                mean = self._record_loss(recent_loss, recent_weight)
                recent_loss, recent_weight = torch.zeros_like(recent_loss), 0.0
            progress.seconds += time.perf_counter() - begin
            yield StepEnd(
                learning_rate=rate,
                metrics=StepMetrics(mean, float(norm), progress.position / progress.seconds) if log_due else None,
                epoch_ended=epoch_ended,
                eval_due=eval_due,
                save_due=save_due,
                last=last,
                stopped=stopped,
            )
            if stopped or last:
                return

    def _compute_learning_rate(self, total_steps: int, passed: float) -> float:
        """The learning rate of the next step of `total_steps`, where this share of the time limit has `passed`."""
        step = max(self.progress.step, passed * total_steps)
        factor = learning_rate_factor(step, total_steps, self.config.warmup_steps, self.config.lr_scheduler_type)
        return self.config.peak_learning_rate * factor

    def _agree(
        self, questions: Sequence[Callable[[], bool]], time_share: Callable[[], float]
    ) -> tuple[bool, bool, bool, float]:
        """For each question whether any rank says yes, and rank 0's time share; no and 0 in steps without an exchange.

        A collective.
        """
        world, step = self.world, self.progress.step
        # Asking all ranks costs a small exchange; on devices it would also make the host wait, so it is done less.
        often = not world.distributed or world.accelerator.is_host
        if not often and step % min(self.config.logging_steps, _ASK_STEPS):
            return False, False, False, 0.0
        share = time_share() if world.is_main else 0.0  # ranks with other clocks would have other learning rates
        *answers, share = world.all_reduce_sum([*(float(question()) for question in questions), share])
        stopped, ended, save_due = (answer > 0 for answer in answers)
        return stopped, ended, save_due, share

    def _record_loss(self, loss: torch.Tensor, weight: float) -> float:
        """The exact (weighted) mean of this rank's summed `loss` and those of all ranks. A collective.

        Adds it to the epoch's loss, which a checkpoint holds, so it is called before each. Raises ClassifyError where
        the mean is not finite.
        """
        with self.world.dump_if_stalled():
            total = self.world.all_reduce_sum([float(loss)])[0]
        self.progress.epoch_loss += total
        self.progress.epoch_weight += weight
        mean = total / weight
        if not math.isfinite(mean):
            raise ClassifyError(self._describe_divergence(self.progress.step, f"the loss is {mean}"))
        return mean

    def train_step(self, step: sampler.Step) -> tuple[torch.Tensor, float, torch.Tensor]:
        """Take one optimizer step at the learning rate that is set.

        Returns (this rank's summed loss, summed weight of the step's rows on all ranks, gradient norm). Where memory
        runs out the same step is tried again with micro-batches of half the size, with the same gradient,
        except for different dropout masks.
        """
        number, rank = self.progress.step + 1, self.world.rank
        while True:
            result, reason = attempt(lambda: self.compute_gradients(step), self.world.device)
            if result is not None:
                break
            if self.world.distributed:  # the other ranks are waiting in the exchange
                raise RankError(
                    self._explain_single_text(step, reason)
                    or f"step {number}: rank {rank} is out of memory ({reason}); continue with --resume and "
                    f"--gradient-accumulation-steps {self._halved(step)} (same gradient, different dropout masks)"
                    f"{'' if self.config.gradient_checkpointing else ' or --gradient-checkpointing'}; or start over "
                    f"with {self._smaller()}."
                )
            self.halve_micro_batches(step, reason)
        total, weight_sum = result
        norm, reason = attempt(self.strategy.optimizer_step, self.world.device)
        if norm is None:
            # AdamW has changed some weights, or made some of its moments: the step can neither be undone nor repeated.
            who = f"rank {rank} is " if self.world.distributed else ""
            raise RankError(
                f"step {number}: {who}out of memory in the optimizer step ({reason}), where AdamW allocates two "
                "moments per trained weight; continue with --resume where more memory is free, or start over with "
                "--lora, --freeze-layers or a smaller --model."
            )
        if self.strategy.refuses(norm):
            raise ClassifyError(self._describe_divergence(number, f"the gradient's norm is {float(norm)}"))
        return total, weight_sum, norm

    def compute_gradients(self, step: sampler.Step) -> tuple[torch.Tensor, float]:
        """Run the forward and backward passes of a step; its gradients are averaged over ranks.

        Returns (this rank's summed loss, the rows' weights on all ranks).
        """
        strategy, world = self.strategy, self.world
        # The wrapped model averages over ranks, so each rank's loss is scaled up by their number.
        weight_sum = self.loss.weight_sum(self.data.targets[step.indices])
        scale = world.world_size / weight_sum
        total = torch.zeros((), device=world.device)
        if not self.classifier.model.training:
            strategy.module.train()
        for number, micro_batch in enumerate(self.micro_batches(step)):
            seed_draws(self.config.seed, step.epoch, self.progress.step, number, world.rank, world.device.type)
            with strategy.accumulate(micro_batch.last):
                loss = self.loss.loss_sum(strategy.forward(micro_batch.batches), micro_batch.targets)
                strategy.backward(loss * (scale * micro_batch.counted), micro_batch.last)
                total += micro_batch.counted * loss.detach()
        return total, weight_sum

    def micro_batches(self, step: sampler.Step) -> Iterator[MicroBatch]:
        """Collate this rank's rows of a step, one micro-batch after the other, and at least one."""
        rows, classifier = self.data.take(step.indices), self.classifier
        micro_batches = self._divide(step)
        count = passes = len(micro_batches)
        # Where passes wait for each other, every rank runs as many as the busiest one.
        if self.strategy.forward_is_collective:
            passes = self.world.all_reduce_max(count)
        # A rank without rows still takes part in the exchange of gradients, with a row that does not count.
        micro_batches += [[np.zeros(1, dtype=np.int64)]] * (max(1, passes) - count)
        for number, per_device in enumerate(micro_batches):
            targets = classifier.padding.targets(rows.targets[np.concatenate(per_device)], self.loss.padding)
            yield MicroBatch(
                batches=[classifier.batch(rows.tokens, rows.rows[places]) for places in per_device],
                targets=send(torch.from_numpy(targets), self.world.device),
                counted=number < count,
                last=number == len(micro_batches) - 1,
            )

    def halve_micro_batches(self, step: sampler.Step, reason: str) -> None:
        """Halve the micro-batches from here on, doubling their number, on every rank. A collective.

        Raises ClassifyError where each micro-batch holds a single text already.
        """
        if (fault := self._explain_single_text(step, reason)) is not None:
            raise ClassifyError(fault)
        # Ranks may have split their shards into different numbers of micro-batches.
        self.progress.min_micro_batches = self.world.all_reduce_max(self._halved(step))
        self.strategy.release_memory()

    def _describe_divergence(self, step: int, sign: str) -> str:
        return describe_divergence(step, self.strategy.optimizer.param_groups[0]["lr"], sign)

    def _explain_single_text(self, step: sampler.Step, reason: str) -> str | None:
        """The message where smaller micro-batches cannot help, since each holds a single text already."""
        if self.num_micro_batches * self.world.replicas * self.world.world_size < len(step.indices):
            return None
        return (
            f"step {self.progress.step + 1}: out of memory with a single text ({reason}); "
            f"{'' if self.config.gradient_checkpointing else 'use --gradient-checkpointing, or '}start over with "
            f"{self._smaller()}."
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

    def _halved(self, step: sampler.Step) -> int:
        return 2 * max(self.num_micro_batches, len(self._divide(step)))

    def _smaller(self) -> str:
        """Name settings that need less memory, which a resumed run cannot change."""
        return "a smaller --max-length" + (
            " or --precision bf16" if self.classifier.precision.half_dtype is None else ""
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
    return Trainer(strategy, data, batches, parts.choose_loss(task.head.loss(config, data.targets)))


def seed_draws(seed: int, epoch: int, step: int, micro_batch: int, rank: int, device: str = "cpu") -> None:
    """Seed torch for one micro-batch: dropout depends on these five numbers only."""
    sequence = np.random.SeedSequence([seed, epoch, step, micro_batch, rank])
    number = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
    torch.manual_seed(number)
    accelerator_of(device).seed(number)


def describe_divergence(step: int, rate: float, sign: str) -> str:
    """The error message of a diverged training at the learning rate `rate`; `sign` says how it showed."""
    return (
        f"step {step}: {sign} at the learning rate {rate:.3g}; training has diverged. Continue "
        "with --resume and a lower --learning-rate, or start over with another --precision."
    )


def _check_vocabulary(saved: Checkpoint, before: torch.Tensor | None, now: torch.Tensor) -> None:
    """Raise CheckpointError where the rows of the compact embedding table belong to other token ids."""
    if before is None or not torch.equal(before.cpu(), now):
        raise CheckpointError(
            f"{saved.path}: expected a checkpoint with the vocabulary of this data. Got another one; start over with "
            "--overwrite-output-dir."
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
    parts = classifier.padding.divide(lengths[shard], count, replicas, max_tokens)
    return [[shard[piece] for piece in pieces] for pieces in parts]

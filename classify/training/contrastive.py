"""Contrastive training of the encoder, before the head is initialized, as in SetFit.

Few texts per class still give many pairs of texts, each with the same class or not. So SetFit (Tunstall et al., 2022,
"Efficient Few-Shot Learning Without Prompts", section 3) first trains an encoder on pairs. Here a step uses all pairs
of a batch in one pass, so dozens of steps suffice where single pairs need hundreds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from classify.config.recipe import CONTRASTIVE_LENGTH, CONTRASTIVE_ROWS
from classify.data.sampler import balance_by_cost, token_cost
from classify.data.tokenize import TokenizedSplit
from classify.errors import ClassifyError
from classify.tasks.base import Task
from classify.training.optimizer import learning_rate_factor, trained_params
from classify.training.strategies.base import Strategy
from classify.training.trainer import seed_draws

# Rows of a class up to which its rows, not the class, weigh as much as others.
_RARE = 2
_WARMUP = 0.1
# Epoch number reserved for the dropout seeds of contrastive steps.
_EPOCH = 1 << 31


@dataclass(frozen=True)
class ContrastiveStep:
    """A finished contrastive step, `seconds` after the first began; `loss` stays on the device until it is read.

    `rows` were drawn in all steps so far.
    """

    step: int
    rows: int
    last: bool
    loss: torch.Tensor
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class ContrastiveResult:
    """Steps taken, rows drawn, seconds, and the last loss, of at least one step."""

    steps: int
    rows: int
    seconds: float
    loss: float


def contrastive_warmup(
    strategy: Strategy,
    data: TokenizedSplit,
    task: Task,
    steps: int,
    after_step: Callable[[ContrastiveStep], object] | None = None,
    seconds: float | None = None,
) -> ContrastiveResult:
    """Train all but the output layer on pairs of rows for some steps, or as many as fit into `seconds`.

    Starts from a new optimizer and leaves a new one behind. The ranks share the rows of a step and exchange features
    and gradients, so that each pair counts whichever rank has its rows. With `seconds` the learning rate falls by the
    share of the time where that is larger than the share of the steps. A collective.

    Raises ClassifyError if training diverges.
    """
    begin = time.perf_counter()
    config, world = strategy.config, strategy.world
    trainer = ContrastiveTrainer(strategy, data, task)
    stratify_by = task.targets.stratify_by(data.targets)
    generator = np.random.default_rng(config.seed)
    strategy.module.train()
    step = total_rows = position = 0
    while position < steps:
        rate = config.peak_learning_rate * learning_rate_factor(position, steps, _WARMUP)
        seed_draws(config.seed, _EPOCH, step, 0, world.rank, world.device.type)
        selected = draw_rows(stratify_by, CONTRASTIVE_ROWS, generator)
        with world.dump_if_stalled():
            trainer.train_step(selected, rate)
        step += 1
        total_rows += len(selected)
        spent = time.perf_counter() - begin
        position = step
        if seconds is not None:
            position = world.broadcast(max(step, int(steps * spent / seconds) if seconds > 0 else steps))
        if after_step is not None:
            after_step(ContrastiveStep(step, total_rows, position >= steps, trainer.loss, rate, spent))
    loss = float(trainer.loss)
    if not math.isfinite(loss):  # once it is not, it stays so
        raise ClassifyError(explain_divergence(f"the contrastive loss is {loss}"))
    strategy.reset_optimizer()
    return ContrastiveResult(step, total_rows, time.perf_counter() - begin, loss)


def explain_divergence(sign: str) -> str:
    return f"{sign}; training has diverged. Lower --learning-rate, or use --contrastive-steps 0."


class ContrastiveTrainer:
    """Steps on pairs of rows, through a strategy."""

    def __init__(self, strategy: Strategy, data: TokenizedSplit, task: Task):
        # The start of each text suffices, and all pairs of a step are in memory at once.
        self.data = replace(data, tokens=data.tokens.cut(min(data.tokens.max_length, CONTRASTIVE_LENGTH)))
        self.strategy, self.task, self.world = strategy, task, strategy.world
        self.loss = torch.zeros(())

    def train_step(self, selected: npt.NDArray[np.int64], rate: float) -> None:
        """Take an optimizer step on indices into the training rows. Raises ClassifyError if training diverges."""
        world, strategy = self.world, self.strategy
        # What NumPy's `choice` draws is not the same in all its versions (NEP 19), and ranks may have different ones.
        selected = np.array(world.broadcast(selected.tolist()))
        rows = self.data.rows[selected]
        costs = token_cost(self.data.tokens.lengths(rows), strategy.classifier.hidden_size)
        shards = [
            [shard[piece] for piece in balance_by_cost(costs[shard], world.replicas) if len(piece)]
            for shard in balance_by_cost(costs, world.world_size)
        ]
        with strategy.accumulate(last=False):
            local_features = self._features([rows[piece] for piece in shards[world.rank]])
            everyone = world.gather(local_features.detach())  # in the order of ranks
            before = sum(len(piece) for shard in shards[: world.rank] for piece in shard)
            features = torch.cat([everyone[:before], local_features, everyone[before + len(local_features) :]])
            targets = self.data.targets[selected[np.concatenate([piece for shard in shards for piece in shard])]]
            loss = contrastive_loss(
                features, torch.from_numpy(self.task.targets.similarity(targets)).to(features.device)
            )
            if loss.requires_grad:  # not on a rank without rows
                # The rows of all ranks are in each rank's loss: gradients are summed; those averaged are scaled up.
                strategy.backward(loss * (world.world_size if strategy.averages_each_pass else 1), last=True)
        self.loss = loss.detach()
        if not strategy.averages_each_pass:
            head = set(map(id, strategy.weights.output_layer().values()))  # no loss of features reaches it
            params = [weight for weight in trained_params(strategy.optimizer) if id(weight) not in head]
            world.all_reduce_gradients(params)
        try:
            strategy.optimizer_step(rate)
        except FloatingPointError as error:
            raise ClassifyError(explain_divergence(f"{error} in a contrastive step")) from None

    def _features(self, pieces: list[npt.NDArray[np.int64]]) -> torch.Tensor:
        """Compute the input of the output layer for the rows of each replica, (n, width)."""
        strategy, tokens = self.strategy, self.data.tokens
        count = sum(map(len, pieces))
        if not pieces and not strategy.forward_is_collective:
            return torch.zeros(0, strategy.classifier.output_layer.in_features, device=self.world.device)
        # Where passes wait for each other, a rank without rows computes one row and discards it.
        batches = [strategy.classifier.batch(tokens, rows) for rows in pieces or [self.data.rows[:1]]]
        return strategy.forward(batches, features=True)[:count].float()


def draw_rows(numbers: npt.NDArray[np.int64], count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw about `count` indices into `numbers`, each number equally often, if possible at least twice.

    With more numbers than half of `count`, some are left out. Numbers of one or two rows are drawn no more often than
    rows of others: many are typing errors.
    """
    classes, rows = np.unique(numbers, return_counts=True)
    rare = rows <= _RARE
    if rare.any() and not rare.all():
        classes = classes[~rare | (generator.random(len(classes)) < rows / rows.mean())]
    if 2 * len(classes) > count:
        classes = generator.choice(classes, count // 2, replace=False)
    each = max(2, count // len(classes))
    members = [np.flatnonzero(numbers == number) for number in classes]
    return np.concatenate([generator.choice(of, min(each, len(of)), replace=False) for of in members])


def contrastive_loss(features: torch.Tensor, similarity: torch.Tensor) -> torch.Tensor:
    """The mean squared error of each pair's cosine, which should be the similarity of their labels.

    features (n, width), similarity (n, n). Pairs with and without any similarity weigh the same; a kind that does not
    occur does not count.
    """
    unit = normalize(features, dim=1)
    alike = similarity > 0
    errors = (unit @ unit.T - similarity) ** 2
    kinds = torch.stack([alike, ~alike]).float().triu(diagonal=1)  # (2, n, n): each pair once
    counts = kinds.sum((1, 2))
    means = (errors * kinds).sum((1, 2)) / counts.clamp(min=1)
    return means.sum() / (counts > 0).sum()

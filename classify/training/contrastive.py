"""Contrastive training of the encoder, before the head is initialized, as in SetFit.

Few texts per class still give many pairs of texts, each with the same class or not. So SetFit (Tunstall et al., 2022,
"Efficient Few-Shot Learning Without Prompts", section 3) first trains an encoder on pairs. Here a step uses all pairs
of a batch in one pass, so dozens of steps suffice where single pairs need hundreds.
"""

from __future__ import annotations

import functools
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
from classify.distributed.memory import attempt
from classify.errors import ClassifyError
from classify.tasks.base import Task
from classify.training.optimizer import learning_rate_factor, trained_params
from classify.training.strategies.base import Strategy
from classify.training.trainer import seed_draws

# Rows of a class up to which its rows, not the class, weigh as much as others.
_RARE = 2
# With fewer, where memory is short, there is little left to learn from.
_FEWEST_ROWS = 4
_WARMUP = 0.1
# Epoch number reserved for the dropout seeds of contrastive steps.
_EPOCH = 1 << 31


@dataclass(frozen=True)
class ContrastiveSteps:
    """The steps taken so far, the rows drawn in them, their seconds, and the last loss, which stays on the device."""

    steps: int
    rows: int
    seconds: float
    loss: torch.Tensor


def contrastive_warmup(
    strategy: Strategy,
    data: TokenizedSplit,
    task: Task,
    steps: int,
    after_step: Callable[[ContrastiveSteps, float, bool], object] | None = None,
    seconds: float | None = None,
) -> ContrastiveSteps:
    """Train all but the output layer on pairs of rows for some steps, or as many as fit into `seconds`.

    Starts from a new optimizer and leaves a new one behind. With `seconds` the learning rate falls by the share of the
    time where that is larger than the share of the steps. `after_step` gets the steps so far, the learning rate, and
    whether the step was the last. A collective.

    Raises ClassifyError if training diverges.
    """
    begin = time.perf_counter()
    config, world = strategy.config, strategy.world
    # The start of each text suffices, and all pairs of a step are in memory at once.
    data = replace(data, tokens=data.tokens.cut(min(data.tokens.max_length, CONTRASTIVE_LENGTH)))
    stratify_by = task.targets.stratify_by(data.targets)
    generator = np.random.default_rng(config.seed)
    strategy.module.train()
    count = CONTRASTIVE_ROWS
    done, position = ContrastiveSteps(0, 0, 0.0, torch.zeros(())), 0
    while position < steps:
        rate = config.peak_learning_rate * learning_rate_factor(position, steps, _WARMUP)
        seed_draws(config.seed, _EPOCH, done.steps, 0, world.rank, world.device.type)
        selected = draw_rows(stratify_by, count, generator)
        with world.dump_if_stalled():
            loss, _ = attempt(
                functools.partial(contrastive_step, strategy, data, task, selected, rate),
                world.device,
                reraise=world.distributed or count <= _FEWEST_ROWS,  # other ranks wait in the exchange
            )
        if loss is None:  # out of memory: from here on steps have half as many rows
            strategy.release_memory()
            count //= 2
            continue
        done = ContrastiveSteps(done.steps + 1, done.rows + len(selected), time.perf_counter() - begin, loss)
        position = done.steps
        if seconds is not None:
            position = world.broadcast(max(position, int(steps * done.seconds / seconds) if seconds > 0 else steps))
        if after_step is not None:
            after_step(done, rate, position >= steps)
    if not math.isfinite(done.loss):  # once it is not, it stays so
        raise ClassifyError(explain_divergence(f"the contrastive loss is {float(done.loss)}"))
    strategy.reset_optimizer()
    return replace(done, seconds=time.perf_counter() - begin)


def explain_divergence(sign: str) -> str:
    return f"{sign}; training has diverged. Lower --learning-rate, or use --contrastive-steps 0."


def contrastive_step(
    strategy: Strategy, data: TokenizedSplit, task: Task, selected: npt.NDArray[np.int64], rate: float
) -> torch.Tensor:
    """Take an optimizer step on the pairs of some rows, as indices into `data`; return its loss, on the device.

    The ranks share the rows and exchange features and gradients, so that each pair counts whichever rank has its rows.
    A collective. Raises ClassifyError if training diverges.
    """
    world, classifier, tokens = strategy.world, strategy.classifier, data.tokens
    # What NumPy's `choice` draws is not the same in all its versions (NEP 19), and ranks may have different ones.
    selected = np.array(world.broadcast(selected.tolist()))
    rows = data.rows[selected]
    costs = token_cost(tokens.lengths(rows), classifier.hidden_size)
    shards = [
        [shard[piece] for piece in balance_by_cost(costs[shard], world.replicas) if len(piece)]
        for shard in balance_by_cost(costs, world.world_size)
    ]
    own, count = shards[world.rank], sum(map(len, shards[world.rank]))
    with strategy.accumulate(last=False):
        if own or strategy.forward_is_collective:
            # Where passes wait for each other, a rank without rows computes one row and discards it.
            pieces = [rows[piece] for piece in own] or [data.rows[:1]]
            batches = [classifier.batch(tokens, piece) for piece in pieces]
            local_features = strategy.forward(batches, features=True)[:count].float()
        else:
            local_features = torch.zeros(0, classifier.output_layer.in_features, device=world.device)
        everyone = world.gather(local_features.detach())  # in the order of ranks
        before = sum(len(piece) for shard in shards[: world.rank] for piece in shard)
        features = torch.cat([everyone[:before], local_features, everyone[before + count :]])
        targets = data.targets[selected[np.concatenate([piece for shard in shards for piece in shard])]]
        loss = contrastive_loss(features, torch.from_numpy(task.targets.similarity(targets)).to(features.device))
        if loss.requires_grad:  # not on a rank without rows
            # The rows of all ranks are in each rank's loss: gradients are summed; those averaged are scaled up.
            strategy.backward(loss * (world.world_size if strategy.averages_each_pass else 1), last=True)
    if not strategy.averages_each_pass:
        head = set(map(id, strategy.weights.output_layer().values()))  # no loss of features reaches it
        world.all_reduce_gradients([one for one in trained_params(strategy.optimizer) if id(one) not in head])
    try:
        strategy.optimizer_step(rate)
    except FloatingPointError as error:
        raise ClassifyError(explain_divergence(f"{error} in a contrastive step")) from None
    return loss.detach()


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

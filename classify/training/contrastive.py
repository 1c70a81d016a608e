"""Before the head starts: texts of a class are pulled together, and classes apart.

A handful of texts a class say little by themselves, but every two of them say whether they belong together. So SetFit
(Tunstall et al., 2022, "Efficient Few-Shot Learning Without Prompts", section 3) first trains an encoder on pairs. Here
all pairs of a batch count in one pass, so some dozens of steps do what a pass over single pairs takes hundreds for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from classify.config.schema import TrainingConfig
from classify.data.sampler import balance_by_cost, token_cost
from classify.data.tokenize import TrainingSet
from classify.distributed.memory import attempt, release_cache
from classify.distributed.world import World
from classify.errors import ClassifyError, RankError
from classify.modeling.classifier import LoadedModel, output_layer
from classify.modeling.kernels.dropout import seed_draws
from classify.training.optimizer import learning_rate_factor, make_optimizer, set_learning_rate

# Rows of a step; of long texts as many as hold so many tokens.
_ROWS, _FEWEST_ROWS, _TOKENS = 32, 8, 8_192
# With fewer, where memory is short, there is little left to learn from.
_LEAST_ROWS = 4
_WARMUP = 0.1
# No epoch has this number: dropout draws what no other step does.
_EPOCH = 1 << 31

T = TypeVar("T")


def contrastive_warmup(
    model: LoadedModel,
    data: TrainingSet,
    world: World,
    config: TrainingConfig,
    steps: int,
    after_step: Callable[[], object] = lambda: None,
    seconds: float | None = None,
) -> int:
    """Train all but the output layer on pairs of rows for some steps, or as many as fit into `seconds`; returns them.

    The ranks share the rows of a step and exchange features and gradients, so that each pair counts whichever rank has
    its rows. Where memory runs out, steps have half as many rows from there on. A collective.

    Raises ClassifyError where memory does not do for four rows, or training diverges.
    """
    begin = time.perf_counter()
    world.broadcast_parameters(model.stock)
    pairs = ContrastiveTrainer(model, data, world, config)
    draw = np.random.default_rng(config.seed)
    rows = int(np.clip(_TOKENS / data.tokens.lengths_of(data.rows).mean(), _FEWEST_ROWS, _ROWS))
    was_training = model.classifier.training
    model.classifier.train()
    try:
        step = 0
        while step < steps:
            rate = config.peak_learning_rate * learning_rate_factor(step, steps, _WARMUP)
            seed_draws(config.seed, _EPOCH, step, 0, world.rank, world.device.type)
            while not pairs.step(draw_rows(data.targets, rows, draw), rate):
                rows //= 2
                if rows < _LEAST_ROWS:
                    raise ClassifyError(
                        "out of memory with the pairs of a few texts; take a smaller --max-length or "
                        "--contrastive-steps 0."
                    )
            after_step()
            step += 1
            if seconds is not None:
                spent = time.perf_counter() - begin
                steps = world.broadcast(min(steps, max(step, int(step * seconds / spent))))
        if not math.isfinite(float(pairs.loss)):  # once it is not, it stays so
            raise ClassifyError(
                f"the loss of the steps on pairs is {float(pairs.loss)}; training has diverged. Lower --learning-rate, "
                "or take --contrastive-steps 0."
            )
    finally:
        pairs.close()
        model.classifier.train(was_training)
    world.broadcast_parameters(model.stock)
    return steps


class ContrastiveTrainer:
    """What a step on pairs needs: an optimizer, and the features as they reach the output layer."""

    def __init__(self, model: LoadedModel, data: TrainingSet, world: World, config: TrainingConfig):
        self.model, self.data, self.world = model, data, world
        self.optimizer = make_optimizer(model.classifier, config, world.device)
        self.layer = output_layer(model.stock)
        head = {id(parameter) for parameter in self.layer.parameters()}
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.trained = [parameter for parameter in trained if id(parameter) not in head]
        # Without a gradient scaler fp16 would lose small gradients; what this costs on a few rows is little.
        is_fp16 = model.classifier.precision.half is torch.float16
        self.forward = model.classifier.logits if is_fp16 else model.classifier
        self.limit = config.max_grad_norm or math.inf
        self.loss = torch.zeros(())
        self._caught: list[torch.Tensor] = []
        self._hook = self.layer.register_forward_pre_hook(lambda _, args: self._caught.append(args[0]))

    def close(self) -> None:
        """Leave the model as it was but for its weights."""
        self._hook.remove()
        self._caught.clear()

    def step(self, chosen: npt.NDArray[np.int64], rate: float) -> bool:
        """One optimizer step on places in the training rows; False, with nothing done, where memory ran out."""
        world = self.world
        # What NumPy's `choice` draws is not the same in all its versions (NEP 19), and ranks may have different ones.
        chosen = np.array(world.broadcast(chosen.tolist()))
        rows = self.data.rows[chosen]
        costs = token_cost(self.data.tokens.lengths_of(rows), self.model.hidden_size)
        shares = balance_by_cost(costs, world.world_size)
        own = self._on_all_ranks(lambda: self._features(rows[shares[world.rank]]))
        if own is None:
            return False
        everyone = world.gather(own.detach())  # in the order of ranks
        before = sum(map(len, shares[: world.rank]))
        features = torch.cat([everyone[:before], own, everyone[before + len(own) :]])
        labels = torch.from_numpy(self.data.targets[chosen[np.concatenate(shares)]])
        loss = contrastive_loss(features, labels.to(features.device))
        if not self._on_all_ranks(lambda: _backward(loss)):
            return False
        self.loss = loss.detach()
        moved, reason = attempt(lambda: self._move(rate), world.device)
        if moved is None:
            raise RankError(
                f"rank {world.rank} is out of memory in the optimizer's step on pairs ({reason}), which no smaller "
                "step would mend; take --contrastive-steps 0."
            )
        self.optimizer.zero_grad(set_to_none=True)
        world.flush()
        return True

    def _features(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """What the output layer reads of some rows, (n, width)."""
        if not len(rows):
            return torch.zeros(0, self.layer.in_features, device=self.world.device)
        self._caught.clear()
        self.forward(self.model.batch(self.data.tokens, rows).to(self.world.device))
        return self._caught.pop()[: len(rows)].float()

    def _move(self, rate: float) -> bool:
        """Exchange gradients and move the weights."""
        self.world.add_gradients(self.trained)
        torch.nn.utils.clip_grad_norm_(self.trained, self.limit)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        return True

    def _on_all_ranks(self, compute: Callable[[], T]) -> T | None:
        """What a computation returns; None where memory ran out on any rank. A collective."""
        result, _ = attempt(compute, self.world.device)
        if self.world.all_reduce_any(result is None):
            self.optimizer.zero_grad(set_to_none=True)
            release_cache(self.world.device)  # on all ranks: two may share a device
            return None
        return result


def _backward(loss: torch.Tensor) -> bool:
    if loss.requires_grad:  # not on a rank without rows
        loss.backward()
    return True


def draw_rows(labels: npt.NDArray[np.int64], count: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    """About `count` places in `labels`, each class as often as the others, at least twice where it can be.

    Of more classes than half the count some are left out.
    """
    classes = np.unique(labels)
    if 2 * len(classes) > count:
        classes = draw.choice(classes, count // 2, replace=False)
    each = max(2, count // len(classes))
    places = [np.flatnonzero(labels == one) for one in classes]
    return np.concatenate([draw.choice(of, min(each, len(of)), replace=False) for of in places])


def contrastive_loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the cosine of each two rows, whose aim is 1 within a class and 0 between two.

    features (n, width), labels (n,). Both kinds of pairs weigh the same; a kind that does not occur counts for nothing.
    """
    unit = normalize(features, dim=1)
    same = labels[:, None] == labels[None, :]
    errors = (unit @ unit.T - same.float()) ** 2
    kinds = torch.stack([same, ~same]).float().triu(diagonal=1)  # (2, n, n): each pair once
    counts = kinds.sum((1, 2))
    means = (errors * kinds).sum((1, 2)) / counts.clamp(min=1)
    return means.sum() / (counts > 0).sum()

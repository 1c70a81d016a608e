"""Dry runs before the first step: steps that change nothing, to learn how much memory and time training takes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from classify.data import sampler
from classify.distributed.batch_norm import statistics_kept
from classify.distributed.memory import attempt
from classify.training.trainer import Trainer

# Steps that a measurement takes; the first one does not count.
_MEASURED = 6


def find_micro_batches(trainer: Trainer, steps: Sequence[sampler.Step]) -> None:
    """Find, before the first step, how many micro-batches the heaviest of `steps` needs. A collective.

    Out of memory in the midst of a step, a rank could not tell the others, who wait for its gradients. So the model is
    tried as it was before DistributedDataParallel wrapped it, which would exchange its buffers; not for FSDP2, whose
    every forward pass is an exchange. AdamW's moments, which are not there yet, are counted in.
    """
    data, world, strategy = trainer.data, trainer.world, trainer.strategy
    costs = sampler.token_cost(data.tokens.row_lengths(data.rows), strategy.classifier.hidden_size)
    heaviest = max(steps, key=lambda step: float(costs[step.rows].sum()))

    def dry_step() -> object:
        moments = list(_allocate_moments(trainer))
        with strategy.without_exchange(), statistics_kept(strategy.classifier):
            return moments, trainer.compute_gradients(heaviest)

    while True:
        result, reason = attempt(dry_step, world.device)
        failed = result is None
        del result
        strategy.clear_gradients()
        if not world.all_reduce_any(failed):
            return
        trainer.halve_micro_batches(heaviest, reason or "another rank")


def _allocate_moments(trainer: Trainer) -> Iterator[torch.Tensor]:
    """Allocate the memory that AdamW will take where it will: two moments per weight.

    DistributedDataParallel's buckets hold the gradients already that the bare model's backward pass makes.
    """
    each = 2 - trainer.world.distributed
    return (torch.empty_like(weight) for weight in trainer.strategy.trained for _ in range(each))


def measure(trainer: Trainer) -> float:
    """Return rows per second of training, from a few steps that change nothing. A collective."""
    batches, world = trainer.batches, trainer.world
    seconds = []
    with statistics_kept(trainer.strategy.classifier), trainer.strategy.dry_updates():
        for step, _ in zip(itertools.cycle(batches.steps(0, batches.rows)), range(_MEASURED), strict=False):
            begin = time.perf_counter()
            total, *_ = trainer.train_step(step)
            float(total)  # waits for a device
            mine = torch.tensor([time.perf_counter() - begin], device=world.device)
            seconds.append(float(world.gather(mine).max()) / len(step.rows))
    return 1.0 / statistics.median(seconds[1:])

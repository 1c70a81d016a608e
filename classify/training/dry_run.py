"""A dry run before the first step of several processes on devices: how many micro-batches memory needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from classify.data import sampler
from classify.distributed.memory import attempt
from classify.training.strategies.base import trained_params
from classify.training.trainer import Trainer


def find_micro_batches(trainer: Trainer, steps: Sequence[sampler.Step]) -> None:
    """Find, before the first step, how many micro-batches the heaviest of `steps` needs. A collective.

    A rank that runs out of memory inside a step cannot tell the others, who wait for its gradients. So the heaviest
    step is tried without any exchange, with AdamW's moments allocated; not for FSDP2, whose every pass is a collective.
    """
    data, world, strategy = trainer.data, trainer.world, trainer.strategy
    costs = sampler.token_cost(data.tokens.lengths(data.rows), strategy.classifier.hidden_size)
    heaviest = max(steps, key=lambda step: float(costs[step.indices].sum()))
    # AdamW has two moments per weight. The buckets of DistributedDataParallel hold a gradient per weight already, and
    # the dry run makes another: so one moment less is allocated.
    each = 2 - world.distributed

    def dry_step() -> object:
        new = [weight for weight in trained_params(strategy.optimizer) if weight not in strategy.optimizer.state]
        moments = [torch.empty_like(weight) for weight in new for _ in range(each)]
        with strategy.accumulate(last=False):
            return moments, trainer.compute_gradients(heaviest)

    while True:
        result, reason = attempt(dry_step, world.device)
        failed = result is None
        del result
        strategy.clear_gradients()
        if not world.all_reduce_any(failed):
            return
        trainer.halve_micro_batches(heaviest, reason or "another rank")

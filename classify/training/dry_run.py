"""Dry runs before the first step: steps that change nothing, to learn how much memory and time training takes."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from classify.data import sampler
from classify.distributed.batch_norm import restore_statistics
from classify.distributed.memory import attempt
from classify.training.strategies.base import Strategy, trained_params
from classify.training.trainer import Trainer

# Steps that a measurement takes; the first one does not count.
_MEASURED = 6


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


def measure(trainer: Trainer) -> float:
    """Return rows per second of training, from a few steps that change nothing. A collective."""
    batches, world = trainer.batches, trainer.world
    rows, seconds = list[int](), list[float]()
    with restore_statistics(trainer.classifier), _without_updates(trainer.strategy):
        for step, _ in zip(itertools.cycle(batches.steps(0, batches.num_rows)), range(_MEASURED), strict=False):
            begin = time.perf_counter()
            total, *_ = trainer.train_step(step)
            float(total)  # waits for a device
            local_seconds = torch.tensor([time.perf_counter() - begin], device=world.device)
            seconds.append(float(world.gather(local_seconds).max()))
            rows.append(len(step.indices))
    # The last step of an epoch has fewer rows, which take longer each: it counts once.
    by_rows: dict[int, list[float]] = {}
    for size, spent in zip(rows[1:], seconds[1:], strict=True):
        by_rows.setdefault(size, []).append(spent)
    typical = {size: statistics.median(times) for size, times in by_rows.items()}
    counts = {size: batches.num_rows // size if size == max(typical) else 1 for size in typical}
    total_rows = sum(count * size for size, count in counts.items())
    return total_rows / sum(count * typical[size] for size, count in counts.items())


@contextlib.contextmanager
def _without_updates(strategy: Strategy) -> Iterator[None]:
    """Have `optimizer_step` change nothing inside: learning rates are 0, the optimizer's state is restored."""
    optimizer, scaler = strategy.optimizer, strategy.scaler
    rates, scale = [group["lr"] for group in optimizer.param_groups], scaler.state_dict()
    state = {
        parameter: {key: value.clone() for key, value in values.items()}
        for parameter, values in optimizer.state.items()
    }
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.state.clear()
        optimizer.state.update(state)
        if scaler.is_enabled():
            scaler.load_state_dict(scale)

"""Before the first step: steps that change nothing, to learn how much memory and time training takes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from classify.config.schema import TrainingConfig
from classify.data import sampler
from classify.data.tokenize import TrainingSet
from classify.distributed.batch_norm import statistics_kept
from classify.distributed.memory import out_of_memory
from classify.distributed.world import World
from classify.training.train_state import TrainState
from classify.training.trainer import backward, make_room

# Steps that a measurement takes; the first one does not count.
_MEASURED = 6


def rehearse(
    state: TrainState, data: TrainingSet, steps: Sequence[sampler.Step], config: TrainingConfig, world: World
) -> None:
    """Find out, before the first step, into how many micro-batches the heaviest of `steps` has to be cut. A collective.

    Out of memory in the midst of a step, a rank could not tell the others, who wait for its gradients. So the model is
    tried as it was before DistributedDataParallel wrapped it, which would exchange its buffers; not for FSDP2, whose
    every forward pass is an exchange. AdamW's moments, which are not there yet, are counted in.
    """
    costs = sampler.token_cost(data.tokens.lengths_of(data.rows), state.model.hidden_size)
    heaviest = max(steps, key=lambda step: float(costs[step.rows].sum()))
    told: str | None = ""
    while told is not None:
        told = None
        ballast: list[torch.Tensor] = []
        try:
            ballast.extend(_moments(state, world))
            with state.strategy.without_exchange(), statistics_kept(state.model.classifier):
                backward(state, data, heaviest, config, world)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            told = str(error).partition("\n")[0]
        ballast.clear()
        state.strategy.clear_gradients()
        if world.any(told is not None):
            make_room(state, len(heaviest.rows), world, told or "another rank")
            told = ""


def _moments(state: TrainState, world: World) -> Iterator[torch.Tensor]:
    """As much memory as AdamW will take, where it will: two moments a weight.

    DistributedDataParallel's buckets hold the gradients already that the bare model's backward pass makes.
    """
    each = 2 - world.distributed
    return (torch.empty_like(weight) for weight in state.strategy.trained for _ in range(each))


def measure(state: TrainState, data: TrainingSet, config: TrainingConfig, world: World, batch_size: int) -> float:
    """Rows per second of training, from a few steps that change nothing. A collective.

    What the optimizer itself takes is not in it.
    """
    batches = sampler.BatchSampler(len(data.rows), batch_size, config.seed)
    seconds = []
    for step, _ in zip(itertools.cycle(batches.steps(0, batches.rows)), range(_MEASURED), strict=False):
        begin = time.perf_counter()
        with statistics_kept(state.model.classifier):
            total, _ = backward(state, data, step, config, world)
        state.strategy.clear_gradients()
        float(total)  # waits for a device
        mine = torch.tensor([time.perf_counter() - begin], device=world.device)
        seconds.append(float(world.gather(mine).max()) / len(step.rows))
    return 1.0 / statistics.median(seconds[1:])

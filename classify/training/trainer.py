"""Training: one step, and the loop over them. It reads top to bottom; logging, evaluation and saving are the caller's.

The gradient of a step is the sum over its rows divided by the global number of rows, whoever computes which of
them (law 1). Every random draw is a function of (seed, epoch, step, micro-batch, rank), so a resumed run draws what
an uninterrupted one would have drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from classify.config.schema import TrainingConfig
from classify.data import sampler
from classify.data.tokenize import TrainingSet
from classify.distributed.batch_norm import counted, statistics_kept
from classify.distributed.memory import out_of_memory, release_cache
from classify.distributed.world import World
from classify.errors import ClassifyError, RankError
from classify.modeling.kernels.dropout import seed_draws
from classify.modeling.transfer import send
from classify.training.optimizer import NO_LABEL, learning_rate_factor, set_learning_rate
from classify.training.train_state import Progress, TrainState, micro_batches

# At least so often, in steps, the ranks of a run on devices ask each other whether to stop.
_ASK_STEPS = 10


@dataclass(frozen=True)
class StepDone:
    """A finished step. `loss` (mean over the rows since the last one told) is there when it was due, else None.

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


def train_step(
    state: TrainState, data: TrainingSet, step: sampler.Step, config: TrainingConfig, world: World
) -> tuple[torch.Tensor, float, torch.Tensor]:
    """One optimizer step at the learning rate that is set.

    Returns (this rank's summed loss, summed weight of the step's rows on all ranks, gradient norm). Where memory runs
    out the same step is tried again with micro-batches of half the size, which changes nothing but dropout's draws.
    """
    while True:
        try:
            with statistics_kept(state.model.classifier, after_errors_only=True):
                total, weight_sum = backward(state, data, step, config, world)
            break
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            told = str(error).partition("\n")[0]
        # Out here nothing holds the failed attempt's activations any more.
        if world.distributed:  # the other ranks are waiting in the exchange
            raise RankError(
                f"step {state.progress.step + 1}: rank {world.rank} is out of memory ({told}); go on with --resume "
                f"and --gradient-accumulation-steps {finer(state)}, which changes nothing but "
                f"dropout's draws; or {_less_memory(state)}."
            )
        make_room(state, len(step.rows), world, told)
    try:
        norm = state.strategy.optimizer_step()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        # AdamW has changed some weights, or made some of its moments: the step can neither be undone nor repeated.
        rank = f"rank {world.rank} is " if world.distributed else ""
        reason = str(error).partition("\n")[0]
        raise RankError(
            f"step {state.progress.step + 1}: {rank}out of memory in the optimizer's step ({reason}), which keeps two "
            "numbers for each weight that is trained; go on with --resume where more memory "
            "is free, or start anew with --lora, --freeze-layers or a smaller --model."
        ) from error
    world.flush()
    return total, weight_sum, norm


def backward(
    state: TrainState,
    data: TrainingSet,
    step: sampler.Step,
    config: TrainingConfig,
    world: World,
) -> tuple[torch.Tensor, float]:
    """Gradients of a step, exchanged between ranks; (this rank's summed loss, the rows' weights on all ranks)."""
    rows = data.rows[step.rows]
    lengths = data.tokens.lengths_of(rows)
    strategy = state.strategy
    micros = micro_batches(
        state.model,
        lengths,
        world.rank,
        world.world_size,
        state.parts,
        world.replicas,
        strategy.tokens_at_once,
    )
    state.micros = len(micros)
    # A rank without rows still takes part in the exchange of gradients: one row, counted zero times.
    weights = [1.0] * len(micros)
    for _ in range(max(1, strategy.passes(len(micros))) - len(micros)):
        micros.append([np.zeros(1, dtype=np.int64)])
        weights.append(0.0)
    # The wrapped model averages over ranks, so each rank's part is scaled up by their number.
    weight_sum = state.objective.weight_sum(data.labels[rows])
    scale = world.world_size / weight_sum
    total = torch.zeros((), device=world.device)
    strategy.module.train()
    for number, (pieces, weight) in enumerate(zip(micros, weights, strict=True)):
        seed_draws(config.seed, step.epoch, state.progress.step, number, world.rank, world.device.type)
        batches = [state.model.batch(data.tokens, rows[piece]) for piece in pieces]
        labels = data.labels[rows[np.concatenate(pieces)]]
        filling = np.full(state.model.filled(len(labels)) - len(labels), NO_LABEL)
        truth = send(torch.from_numpy(np.concatenate([labels, filling])), world.device)
        last = number == len(micros) - 1
        with strategy.accumulate(last), counted(strategy.module, weight > 0):
            loss = state.objective.loss_sum(strategy.forward(batches), truth)
            strategy.backward(loss * (scale * weight), last)
            total += weight * loss.detach()
        world.flush()
    return total, weight_sum


def finer(state: TrainState) -> int:
    """Into how many micro-batches to cut a step so that each is half of what it is."""
    return 2 * max(state.parts, state.micros)


def make_room(state: TrainState, rows: int, world: World, told: str) -> None:
    """Twice as many micro-batches from now on.

    Raises ClassifyError where each micro-batch holds a single text already.
    """
    if state.parts * world.replicas * world.world_size >= rows:
        raise ClassifyError(
            f"step {state.progress.step + 1}: out of memory with a single text ({told}); {_less_memory(state)}."
        )
    state.parts = finer(state)
    state.strategy.clear_gradients()
    release_cache(world.device)


def _less_memory(state: TrainState) -> str:
    """What a person can do, where halving micro-batches does not help or cannot be done."""
    if state.model.classifier.precision.half is not None:
        return "take --gradient-checkpointing or a smaller --max-length"
    return "take --gradient-checkpointing, a smaller --max-length or --precision bf16"


def fit(
    state: TrainState,
    data: TrainingSet,
    config: TrainingConfig,
    world: World,
    *,
    batch_size: int,
    end: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    late: Callable[[], bool] = lambda: False,
) -> Iterator[StepDone]:
    """Train from where `state.progress` stands to the end, one event a step. A collective: every rank iterates.

    `end` is in rows consumed; what the configuration says if not given. The caller may evaluate and save between two
    events; `seconds` counts the steps alone. `stop` asks whether this process was told to end (a signal); when any
    rank was, all finish the step and the event says `stopped`. `late` asks whether time is up: that step is the last.
    """
    batches = sampler.BatchSampler(len(data.rows), batch_size, config.seed)
    end = end if end is not None else batches.end_of(config.cycles * config.epochs, config.max_steps)
    total_steps = batches.steps_until(end) // config.cycles
    progress = state.progress
    since = _Since()
    parts = state.parts
    for step in batches.steps(progress.position, end):
        begin = time.perf_counter()
        rate = config.peak_learning_rate * learning_rate_factor(
            progress.step % total_steps, total_steps, config.warmup_steps, config.lr_scheduler_type
        )
        set_learning_rate(state.strategy.optimizer, rate)
        if step.position % batches.rows == 0:
            progress.epoch_loss, progress.epoch_weight = 0.0, 0.0
        loss, weight, norm = train_step(state, data, step, config, world)
        since.add(loss, weight)
        progress.step += 1
        progress.position = step.end
        progress.tokens += int(data.tokens.lengths_of(data.rows[step.rows]).sum())

        epoch_ended = step.end % batches.rows == 0
        # Asking all ranks costs a small exchange; on devices it would also make the host wait, so it is done less.
        often = not world.distributed or world.device.type == "cpu"
        ask = often or progress.step % min(config.logging_steps, _ASK_STEPS) == 0
        votes = world.sum([float(stop()), float(late())]) if ask else [0.0, 0.0]
        stopped = votes[0] > 0
        last = step.end >= end or votes[1] > 0
        progress.parts = state.parts
        if votes[1] > 0:
            progress.end = progress.position
        save_due = config.save_steps is not None and progress.step % config.save_steps == 0
        told = progress.step % config.logging_steps == 0 or epoch_ended or last or save_due or stopped
        mean = since.mean(world, progress) if told else None
        progress.seconds += time.perf_counter() - begin
        yield StepDone(
            step=progress.step,
            epoch=step.end / batches.rows,
            loss=mean,
            learning_rate=rate,
            grad_norm=float(norm) if told else None,
            rows_per_second=progress.position / progress.seconds if told else None,
            epoch_ended=epoch_ended,
            save_due=save_due,
            last=last,
            stopped=stopped,
            cut_into=state.parts if state.parts != parts else None,
        )
        parts = state.parts
        if stopped or last:
            return


class _Since:
    """The loss since it was last told, kept on the device so that no step waits for it."""

    def __init__(self) -> None:
        self._loss: torch.Tensor | None = None
        self._weight = 0.0

    def add(self, loss: torch.Tensor, weight: float) -> None:
        """Add one rank's summed loss of a step, and the summed weight of the step's rows on all ranks."""
        self._loss = loss if self._loss is None else self._loss + loss
        self._weight += weight

    def mean(self, world: World, progress: Progress) -> float:
        """Exact (weighted) mean over all rows of all ranks since the last call; adds to the epoch's. A collective."""
        assert self._loss is not None
        total = world.sum([float(self._loss)])[0]
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

"""Assign rows to steps: pure functions of (rows, seed, epoch, batch size), without torch.

The global batch of a step does not depend on how many processes, devices or micro-batches divide it. Within an
epoch the rows come in a uniformly random order, each exactly once: the semantics of torch's `RandomSampler` in one
process, and of `DistributedSampler` in several, but without the rows that one repeats to make the shares equal.
A position in training is one number: rows consumed since the start.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def epoch_order(rows: int, seed: int, epoch: int) -> Rows:
    """A random permutation of range(rows) for one epoch, the same on every machine and NumPy version.

    Only bit streams of NumPy's bit generators are guaranteed to stay as they are (NEP 19), not `permutation`; so
    the order is that of one 64-bit draw per row.
    """
    return np.argsort(np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(rows), kind="stable")


def weighted_order(weights: npt.NDArray[np.float64], seed: int, epoch: int) -> Rows:
    """Draw as many rows as there are weights, with replacement, each in proportion to its weight; for one epoch."""
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(len(weights))
    shares = np.cumsum(weights)
    uniform = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53  # as NumPy's own doubles in [0, 1)
    return np.searchsorted(shares, uniform * shares[-1], side="right").clip(max=len(weights) - 1)


@dataclass(frozen=True)
class Step:
    """One optimizer step: the indices of its training rows in shuffled order, and the rows consumed before it."""

    epoch: int
    indices: Rows
    position: int

    @property
    def end(self) -> int:
        return self.position + len(self.indices)


@dataclass(frozen=True)
class BatchSampler:
    """The steps of a run. The last step of an epoch holds what is left; no row is dropped or repeated.

    With `weights` (rows,) an epoch draws as many rows with replacement, in proportion to them.
    """

    num_rows: int
    batch_size: int
    seed: int
    weights: npt.NDArray[np.float64] | None = field(default=None, compare=False)
    _orders: dict[int, Rows] = field(default_factory=dict, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def step_at(self, position: int) -> Step:
        epoch, offset = divmod(position, self.num_rows)
        order = self._order(epoch)
        return Step(epoch, order[offset : offset + self.batch_size], position)

    def steps(self, position: int, end: int) -> Iterator[Step]:
        while position < end:
            step = self.step_at(position)
            yield step
            position = step.end

    def compute_end(self, epochs: float, max_steps: int = -1) -> int:
        """The rows consumed at the end of a run of `epochs` epochs, or of `max_steps` steps if above 0."""
        steps = max_steps if max_steps > 0 else self.steps_until(math.ceil(round(epochs * self.num_rows, 6)))
        whole, rest = divmod(steps, self.steps_per_epoch)
        return whole * self.num_rows + min(rest * self.batch_size, self.num_rows)

    def steps_until(self, position: int) -> int:
        whole, offset = divmod(position, self.num_rows)
        return whole * self.steps_per_epoch + math.ceil(offset / self.batch_size)

    def _order(self, epoch: int) -> Rows:
        """The order of the rows of an epoch, computed once."""
        if epoch not in self._orders:
            plain, weights = functools.partial(epoch_order, self.num_rows), self.weights
            draw = plain if weights is None else functools.partial(weighted_order, weights)
            self._orders.clear()
            self._orders[epoch] = draw(self.seed, epoch)
        return self._orders[epoch]


def token_cost(lengths: npt.NDArray[np.int64], hidden_size: int) -> npt.NDArray[np.float64]:
    """The relative cost of texts of `lengths` tokens in an encoder of width `hidden_size`.

    Per token and layer a transformer multiplies 12 h^2 pairs in its matrices and 2 L h in attention, so the cost of
    a text is L (1 + L / (6 h)) in units of a token without attention.
    """
    return lengths * (1.0 + lengths / (6.0 * hidden_size))


def balance_by_cost(costs: npt.NDArray[np.float64], parts: int) -> list[Rows]:
    """Distribute items over `parts` bins of nearly equal cost: largest first, each to the least loaded bin.

    Returns for each bin the indices into `costs`, largest cost first; with fewer items than parts some are empty.
    Greedy longest-processing-time rule (R. L. Graham, 1969, Bounds on Multiprocessing Timing Anomalies): at most
    4/3 of the best possible maximum. Ties go by index, so the result is a pure function of the costs.
    """
    order = np.argsort(-costs, kind="stable")
    heap = [(0.0, part) for part in range(parts)]
    bins: list[list[int]] = [[] for _ in range(parts)]
    for item in order.tolist():
        load, part = heap[0]
        heapq.heapreplace(heap, (load + float(costs[item]), part))
        bins[part].append(item)
    return [np.array(items, dtype=np.int64) for items in bins]


def split_by_length(lengths: npt.NDArray[np.int64], parts: int) -> list[Rows]:
    """Cut items, longest first, into at most `parts` runs of equal count: like lengths share a padded batch."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    return [run for run in np.array_split(order, parts) if len(run)]


def batch_by_tokens(lengths: npt.NDArray[np.int64], token_budget: int, *, padded: bool = False) -> list[Rows]:
    """Cut all rows into batches of like length for evaluation, each within `token_budget` tokens.

    What a batch holds depends on the lengths alone, not on how many processes share the batches, so a text meets
    the same neighbours on any topology. `padded` counts every text at the length of the longest. A single text
    above the budget is one batch.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    cut: list[Rows] = []
    start, filled = 0, 0
    for place, row in enumerate(order.tolist()):
        size = int(lengths[order[start]]) if padded else int(lengths[row])
        if place > start and filled + size > token_budget:
            cut.append(order[start:place])
            start, filled = place, 0
            size = int(lengths[row])
        filled += size
    if len(order):
        cut.append(order[start:])
    return cut


def shard_batches(batches: Sequence[Rows], costs: npt.NDArray[np.float64], rank: int, world_size: int) -> list[Rows]:
    """The evaluation batches of one rank; together the ranks compute each exactly once."""
    totals = np.array([costs[batch].sum() for batch in batches])
    return [batches[i] for i in balance_by_cost(totals, world_size)[rank]]

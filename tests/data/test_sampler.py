"""The batch plan: pure, exact, balanced."""

from __future__ import annotations

import numpy as np
import pytest

from classify.data import sampler


def test_an_epoch_holds_every_row_once_and_its_last_step_what_is_left() -> None:
    batches = sampler.BatchSampler(num_rows=57, batch_size=8, seed=0)
    steps = list(batches.steps(0, 57))
    assert [len(step.indices) for step in steps] == [8] * 7 + [1]
    assert sorted(np.concatenate([step.indices for step in steps]).tolist()) == list(range(57))
    assert steps[-1].end == 57


def test_orders_are_the_same_on_every_machine_and_version() -> None:
    """Golden values: a checkpoint written today must find the same rows after an upgrade."""
    assert sampler.epoch_order(10, 42, 0).tolist() == [4, 8, 1, 9, 3, 6, 0, 7, 2, 5]
    assert sampler.epoch_order(10, 42, 1).tolist() == [1, 2, 8, 5, 3, 9, 6, 0, 4, 7]
    assert sampler.weighted_order(np.arange(1.0, 11.0), 42, 0).tolist() == [8, 6, 9, 8, 2, 9, 8, 8, 3, 6]


@pytest.mark.parametrize("weights", [None, np.linspace(1, 5, 57)], ids=["once", "drawn"])
@pytest.mark.parametrize("position", [0, 8, 48, 56, 57, 65, 5 * 57, 5 * 57 + 16])
def test_a_position_is_enough_to_go_on(position: int, weights: np.ndarray | None) -> None:
    whole, rest = (
        [(step.epoch, step.position, step.indices.tolist()) for step in batches.steps(start, 6 * 57)]
        for batches, start in ((sampler.BatchSampler(57, 8, 0, weights), start) for start in (0, position))
    )
    assert rest == [step for step in whole if step[1] >= position]


def test_the_order_is_uniform() -> None:
    """Each row is equally often in each place (chi-square of a 6 x 6 table over 3,000 epochs; 99.9 % bound)."""
    counts = np.zeros((6, 6))
    for epoch in range(3000):
        counts[np.arange(6), sampler.epoch_order(6, 7, epoch)] += 1
    assert ((counts - 500) ** 2 / 500).sum() < 52.6


def test_rows_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([1.0, 2.0, 0.0, 3.0, 4.0])
    counts = np.zeros(5)
    for epoch in range(2_000):
        counts += np.bincount(sampler.weighted_order(weights, 7, epoch), minlength=5)
    np.testing.assert_allclose(counts / 10_000, weights / 10, atol=0.02)
    assert counts[2] == 0


@pytest.mark.parametrize(
    ("epochs", "max_steps", "end", "steps"),
    [
        (1, -1, 57, 8),
        (3, -1, 171, 24),
        (0.5, -1, 32, 4),
        (1.5, -1, 89, 12),
        (0.001, -1, 8, 1),
        (3, 3, 24, 3),
        (3, 8, 57, 8),
        (3, 9, 65, 9),
    ],
)
def test_epochs_and_max_steps_to_rows(epochs: float, max_steps: int, end: int, steps: int) -> None:
    batches = sampler.BatchSampler(num_rows=57, batch_size=8, seed=0)
    assert batches.compute_end(epochs, max_steps) == end
    assert batches.steps_until(end) == steps
    assert len(list(batches.steps(0, end))) == steps


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 40])
def test_divide_deals_every_item_once_largest_first(parts: int) -> None:
    costs = np.random.default_rng(0).integers(1, 60, 32).astype(float)
    bins = sampler.balance_by_cost(costs, parts)
    assert len(bins) == parts
    assert sorted(np.concatenate(bins).tolist()) == list(range(32))
    assert sum(len(part) == 0 for part in bins) == max(0, parts - 32)
    for part in bins:
        assert (np.diff(costs[part]) <= 0).all()


def test_divide_balances() -> None:
    """32 rows a rank of uneven length: no rank works more than 3 % above the mean."""
    lengths = np.random.default_rng(1).gamma(2.0, 8.0, size=32 * 16).astype(np.int64) + 3
    costs = sampler.token_cost(lengths, 384)
    loads = np.array([costs[part].sum() for part in sampler.balance_by_cost(costs, 16)])
    assert loads.max() / loads.mean() < 1.03


@pytest.mark.parametrize("padded", [False, True])
def test_chunks_hold_every_row_once_within_the_budget(padded: bool) -> None:
    lengths = np.random.default_rng(2).integers(2, 100, 1001)
    lengths[17] = 5000
    cut = sampler.batch_by_tokens(lengths, 1000, padded=padded)
    assert sorted(np.concatenate(cut).tolist()) == list(range(1001))
    for rows in cut:
        size = lengths[rows].max() * len(rows) if padded else lengths[rows].sum()
        assert size <= 1000 or len(rows) == 1
    assert sampler.batch_by_tokens(np.array([], dtype=np.int64), 10) == []


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_ranks_together_compute_each_batch_once(world_size: int) -> None:
    lengths = np.random.default_rng(3).integers(2, 60, 333)
    cut = sampler.batch_by_tokens(lengths, 500)
    costs = sampler.token_cost(lengths, 384)
    shares = [sampler.shard_batches(cut, costs, rank, world_size) for rank in range(world_size)]
    rows = np.concatenate([rows for one in shares for rows in one])
    assert sorted(rows.tolist()) == list(range(333))

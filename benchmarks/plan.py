"""How evenly the rows of a step are divided over ranks, beside what others do; and how long planning takes.

    python benchmarks/plan.py sst2/train.tsv banking77/train.csv imdb/train.csv

For each table and number of ranks a few optimizer steps of 32 rows a rank are simulated. A step lasts as long as its
slowest rank, so the figure is the sum over steps of the largest rank's cost, divided by the sum of the mean costs: 1.00
is perfect, 1.20 means that ranks wait for a sixth of the time. The cost of a text is linear in its tokens plus
attention's quadratic part (`classify.data.sampler.token_cost`). A rank of this program computes its texts' own tokens;
under DistributedSampler or transformers' BatchRebalanceSampler it computes padded batches, so their padding is counted
in a second figure: cost with padding against the cost of the tokens alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from classify.config.schema import DEFAULT_MODEL
from classify.data import sampler, tokenize
from classify.modeling.find import resolve_model
from classify.tables.read import read_table
from classify.tables.roles import find_columns

Lengths = npt.NDArray[np.int64]
Way = Callable[[Lengths, int], list[float]]
HIDDEN = 384
ROWS_A_RANK = 32


def row_lengths(path: str) -> Lengths:
    """Token counts of a table's texts under the default model's tokenizer, cut at 512."""
    table = read_table(path)
    column = find_columns(table, None, None).text
    tokenizer = tokenize.load_tokenizer(str(resolve_model(DEFAULT_MODEL).path))
    return tokenize.tokenize_columns(tokenizer, table, [column], 512).lengths()


def padded_cost(lengths: Lengths) -> float:
    """Cost of a batch in which every text is as long as the longest."""
    return float(sampler.token_cost(np.full(len(lengths), lengths.max()), HIDDEN).sum()) if len(lengths) else 0.0


def ours(step: Lengths, ranks: int) -> list[float]:
    """Cost a rank: packed texts, divided largest first."""
    costs = sampler.token_cost(step, HIDDEN)
    return [float(costs[part].sum()) for part in sampler.balance_by_cost(costs, ranks)]


def distributed_sampler(step: Lengths, ranks: int) -> list[float]:
    """Cost a rank where each takes every n-th row of the shuffled order and pads."""
    return [padded_cost(step[rank::ranks]) for rank in range(ranks)]


def batch_rebalance(step: Lengths, ranks: int) -> list[float]:
    """Cost a rank under transformers' sampler, which pads too."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    found = []
    for rank in range(ranks):
        sampler = BatchRebalanceSampler(step.tolist(), len(step), ranks, 1, shuffle=False, rank=rank, drop_last=False)
        found.append(sum(padded_cost(step[np.array(batch)]) for batch in sampler))
    return found


def simulate(lengths: Lengths, ranks: int, ways: Mapping[str, Way], steps: int) -> dict[str, tuple[float, float]]:
    """Way -> (max over mean cost of ranks, cost with padding over cost of the tokens)."""
    batch = ROWS_A_RANK * ranks
    order = np.random.default_rng(0)
    totals = {way: [0.0, 0.0] for way in ways}
    tokens_alone = 0.0
    for _ in range(steps):
        step = lengths[order.integers(0, len(lengths), batch)]
        tokens_alone += float(sampler.token_cost(step, HIDDEN).sum())
        for way, function in ways.items():
            costs = function(step, ranks)
            totals[way][0] += max(costs) * ranks
            totals[way][1] += sum(costs)
    return {way: (slowest / mean, mean / tokens_alone) for way, (slowest, mean) in totals.items()}


def planning_seconds(rows: int, ranks: int) -> float:
    """Seconds to plan an epoch: the order, and every step divided over the ranks."""
    lengths = np.random.default_rng(1).integers(3, 128, rows)
    begin = time.perf_counter()
    costs = sampler.token_cost(lengths, HIDDEN)
    steps = sampler.BatchSampler(rows, ROWS_A_RANK * ranks, 42)
    for step in steps.steps(0, rows):
        sampler.balance_by_cost(costs[step.indices], ranks)
    return time.perf_counter() - begin


def main() -> None:
    """Print one table a data set, then the time of planning."""
    parser = argparse.ArgumentParser(description="Balance of ranks, and time of planning.")
    parser.add_argument("tables", nargs="+", metavar="TABLE")
    parser.add_argument("--steps", type=int, default=20, help="simulated steps (default: 20)")
    options = parser.parse_args()
    ways = {"this program": ours, "DistributedSampler": distributed_sampler, "BatchRebalanceSampler": batch_rebalance}
    for path in options.tables:
        lengths = row_lengths(path)
        print(f"\n{path}: {len(lengths)} texts, {lengths.mean():.1f} tokens on average, {lengths.max()} at most")
        print(f"{'ranks':>6}" + "".join(f"  {way:>30}" for way in ways))
        for ranks in (2, 8, 64, 1024):
            chosen = {way: f for way, f in ways.items() if ranks <= 64 or way != "BatchRebalanceSampler"}
            found = simulate(lengths, ranks, chosen, max(2, options.steps // max(1, ranks // 8)))
            cells = [f"max/mean {found[w][0]:.3f}, padding {found[w][1]:.2f}" if w in found else "-" for w in ways]
            print(f"{ranks:>6}" + "".join(f"  {cell:>30}" for cell in cells))
    for ranks in (1, 2, 8):
        print(f"planning an epoch of 1,000,000 rows for {ranks} ranks: {planning_seconds(1_000_000, ranks):.2f} s")


if __name__ == "__main__":
    main()

"""Divide rows into parts: train, validation and test, or folds. Each part has the same mix of classes.

Rows that must stay together, duplicate texts or rows of a group, move as one; any other row is a group of one. Parts
are filled one after another: each has a quota of rows of each class, to which groups of several rows are added first,
the largest first, where most of their rows are needed, and then single rows in random order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from classify.tables.table import TextHashes, group_duplicates

Rows = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int8]
# The rows that a group has of each class: (class, rows).
Content = list[tuple[int, int]]


def split_rows(
    hashes: TextHashes,
    labels: Rows,
    *,
    seed: int,
    eval_share: float,
    test_share: float,
    groups: Sequence[Rows] = (),
    earlier: Parts | None = None,
) -> Parts:
    """The split (rows,) of each row: 0 train, 1 validation, 2 test; a split with a share of 0 gets no rows.

    Duplicate texts, whose `hashes` are equal, share a split, so that no split is scored on training texts; so do rows
    with the same number in one of the `groups`. Every class keeps a row in train. `earlier` is the split that each row
    was in before, -1 for new rows: there it stays, and new rows fill up the rest.
    """
    shares = {part: share for part, share in ((1, eval_share), (2, test_share)) if share}
    return _divide(_find_groups(hashes, groups), labels, shares, earlier, seed=seed, rest=0, kept=1)


def assign_folds(
    hashes: TextHashes,
    labels: Rows,
    folds: int,
    *,
    seed: int,
    groups: Sequence[Rows] = (),
    earlier: Parts | None = None,
) -> Rows:
    """The fold (rows,) of each row, from 0. Rows share a fold as they share a split; see `split_rows`.

    There are as many folds as groups where those are fewer.
    """
    group_of = _find_groups(hashes, groups)
    folds = min(folds, int(group_of.max()) + 1)
    shares = dict.fromkeys(range(folds - 1), 1 / folds)
    assigned = _divide(group_of, labels, shares, earlier, seed=seed, rest=folds - 1, kept=0)
    return np.unique(assigned, return_inverse=True)[1].astype(np.int64)  # an earlier fold may have no row now


def cap_rows(labels: Rows, limit: int, *, seed: int) -> Rows:
    """At most `limit` rows (by number, ascending), with the same mix of classes and (where it fits) a row of each."""
    if len(labels) <= limit:
        return np.arange(len(labels))
    counts = np.bincount(labels)
    exact = np.where(counts > 0, np.maximum(counts * (limit / len(labels)), 1.0), 0.0)
    quota = _round_to(exact, limit, counts)
    while quota.sum() > limit:  # one row for each of many rare classes can be more than there is room for
        quota[quota.argmax()] -= 1
    shuffled = np.argsort(_draws(seed, len(labels), of="sample"), kind="stable")
    return np.sort(shuffled[_are_first(labels[shuffled], quota)])


def _find_groups(hashes: TextHashes, groups: Sequence[Rows]) -> Rows:
    """The group (rows,) of each row, numbered by first occurrence: copies, and rows that share a group with them."""
    _, group_of = group_duplicates(hashes)
    if not groups:
        return group_of
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of texts and groups, with an edge between each text and the groups of its rows.
    owners = np.cumsum([int(group_of.max()) + 1, *(len(np.unique(numbers)) for numbers in groups)])
    ends = [start + np.unique(numbers, return_inverse=True)[1] for start, numbers in zip(owners, groups, strict=False)]
    edges = (np.tile(group_of, len(groups)), np.concatenate(ends))
    graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(owners[-1], owners[-1]))
    components = connected_components(graph, directed=False)[1]
    return group_duplicates(components[group_of].astype(np.uint64))[1]


def _divide(
    group_of: Rows, labels: Rows, shares: dict[int, float], earlier: Parts | None, *, seed: int, rest: int, kept: int
) -> Parts:
    """The part (rows,) of each row: each part of `shares` gets its share of the rows, and `rest` the others.

    Of every class the rest keeps `kept` rows.
    """
    sizes, counts = np.bincount(group_of), np.bincount(labels, minlength=1)
    tally = _Tally({rest: 1 - sum(shares.values()), **shares}, counts, rest, kept)
    part_of = np.full(len(sizes), -1, dtype=np.int8)
    if earlier is not None:  # of several earlier parts in a group that of the first row counts, which is written last
        known = np.flatnonzero(np.isin(earlier, list(tally.shares)))[::-1]
        part_of[group_of[known]] = earlier[known]
    for part in tally.shares:
        tally.add(part, enumerate(np.bincount(labels[part_of[group_of] == part]).tolist()))
    draws, free = _draws(seed, len(sizes)), np.flatnonzero(part_of < 0)
    several, single = free[sizes[free] > 1], free[sizes[free] == 1]
    # Groups of about one size, up to twice, are in random order.
    several = several[np.lexsort((draws[several], -np.frexp(sizes[several])[1]))]
    contents = _contents(several, group_of, labels, len(counts))
    for group in several.tolist():
        part_of[group] = tally.place(contents[group])
    label_of = np.zeros(len(sizes), dtype=np.int64)
    label_of[group_of] = labels
    single = single[np.argsort(draws[single], kind="stable")]
    for part in shares:
        quota = tally.quota(part, np.bincount(label_of[single], minlength=len(counts)))
        are_taken = _are_first(label_of[single], quota)
        part_of[single[are_taken]] = part
        tally.add(part, enumerate(quota.tolist()))
        single = single[~are_taken]
    part_of[single] = rest
    for part in shares if kept else ():  # an empty split gets the smallest group, if train stays the largest split
        for group in reversed(several.tolist()) if not tally.sizes[part] else ():
            spares = part_of[group] == rest and tally.can_spare(contents[group])
            if spares and 2 * sizes[group] <= (part_of[group_of] == rest).sum():
                part_of[group] = part
                break
    return part_of[group_of]


class _Tally:
    """The rows of each class in each part so far; `counts` (classes,) are the rows of each class in all parts.

    `shares` has the share of all parts, `rest` first. Of every class the rest keeps `kept` rows, so that the other
    parts can have what is in `_spare`. Lists: a group has few classes, and Python's numbers are quicker one by one.
    """

    def __init__(self, shares: dict[int, float], counts: Rows, rest: int, kept: int):
        self.shares, self.sizes = shares, dict.fromkeys(shares, 0)
        self._filled = {part: [0] * len(counts) for part in shares}
        self._spare, self._counts, self._rest = (counts - kept).tolist(), counts.tolist(), rest
        # Weight of the parts' sizes against the balance of classes.
        self._size_weight = math.sqrt((counts > 0).sum()) / max(1, int(counts.sum()))

    def add(self, part: int, content: Iterable[tuple[int, int]]) -> None:
        for label, count in content:
            self._filled[part][label] += count
            self.sizes[part] += count
            self._spare[label] -= count if part != self._rest else 0

    def place(self, content: Content) -> int:
        """Add a group, its rows of each class, to the part that it suits best; return that part.

        That is where the chi-square statistic of rows and classes against their shares grows least, as in
        scikit-learn's StratifiedGroupKFold, but for parts of several sizes and in linear time.
        """
        parts = [part for part in self.shares if part == self._rest or self.can_spare(content)]
        best = min(parts, key=lambda part: self._growth(part, content))
        self.add(best, content)
        return best

    def can_spare(self, content: Content) -> bool:
        return all(self._spare[label] >= count for label, count in content)

    def _growth(self, part: int, content: Content) -> float:
        size, growth = 0, 0.0
        for label, count in content:
            size += count
            growth += count * (2 * self._filled[part][label] + count) / self._counts[label]
        return (growth + self._size_weight * size * (2 * self.sizes[part] + size)) / self.shares[part]

    def quota(self, part: int, free: Rows) -> Rows:
        """(classes,) how many of the `free` single rows of each class a part gets."""
        most = np.minimum(free, np.maximum(self._spare, 0))
        total = max(round(self.shares[part] * sum(self._counts) - self.sizes[part]), int(not self.sizes[part]))
        # Of what earlier parts left: a class too small for each part gives to the one or the other.
        before = list(self.shares)[1 : list(self.shares).index(part)]
        pool = self._counts - np.sum([self._filled[other] for other in before], axis=0, dtype=np.int64)
        ratio = self.shares[part] / (1 - sum(self.shares[other] for other in before))
        return _round_to(np.clip(ratio * pool - self._filled[part], 0, most), total, most)


def _contents(groups: Rows, group_of: Rows, labels: Rows, classes: int) -> dict[int, Content]:
    """The rows of each class in each of the groups."""
    rows = np.flatnonzero(np.isin(group_of, groups))
    pairs, counts = np.unique(group_of[rows] * classes + labels[rows], return_counts=True)
    contents: dict[int, Content] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        contents.setdefault(pair // classes, []).append((pair % classes, count))
    return contents


def _draws(seed: int, count: int, of: str = "split") -> npt.NDArray[np.uint64]:
    # The word as a number makes draws differ: a sample by the draws of the split would hold the rows of one fold alone.
    return np.random.PCG64(np.random.SeedSequence([seed, int.from_bytes(of.encode())])).random_raw(count)


def _round_to(exact: npt.NDArray[np.float64], total: int, most: Rows) -> Rows:
    """Round numbers down, and those with the largest remainders up, so that they sum to `total`; none above `most`."""
    rounded = np.minimum(np.floor(exact).astype(np.int64), most)
    for place in np.lexsort((-exact, rounded - exact)).tolist():
        if rounded.sum() >= total:
            break
        rounded[place] += rounded[place] < most[place]
    return rounded


def _are_first(labels: Rows, quota: Rows) -> npt.NDArray[np.bool_]:
    """(rows,) whether each row is among the first of its class, as many as its quota; `labels` are in random order."""
    by_class = np.argsort(labels, kind="stable")
    ordered = labels[by_class]
    are_first = np.empty(len(labels), dtype=bool)
    are_first[by_class] = np.arange(len(labels)) - np.searchsorted(ordered, ordered) < quota[ordered]
    return are_first

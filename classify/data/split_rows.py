"""Divide rows into parts: train, validation and test, or folds. Each part has the same mix of classes.

Rows that must stay together, duplicate texts or rows of a group, move as one; any other row is a group of one. Parts
are filled one after another: each has a quota of rows of each class, to which groups of several rows are added first,
the largest first, where most of their rows are needed, and then single rows in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from classify.tables.text_hashes import TextHashes, group_duplicates, join_pairs

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
    group_of = _find_groups(hashes, groups)
    shares = {1: eval_share, 2: test_share}
    before = _earlier_parts(group_of, earlier, [0, *(part for part, share in shares.items() if share)])
    return _assign(group_of, labels, shares, before, seed=seed, rest=0, keeps_all=True)[group_of]


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
    before = _earlier_parts(group_of, earlier, range(folds))
    shares = dict.fromkeys(range(folds - 1), 1 / folds)
    assigned = _assign(group_of, labels, shares, before, seed=seed, rest=folds - 1, keeps_all=False)[group_of]
    return np.unique(assigned, return_inverse=True)[1].astype(np.int64)  # an earlier fold may have no row now


def cap_rows(labels: Rows, rows: Rows, limit: int, *, seed: int) -> Rows:
    """At most `limit` of the given rows, with the same mix of classes and (where it fits) a row of each."""
    if len(rows) <= limit:
        return rows
    own = labels[rows]
    counts = np.bincount(own)
    exact = np.where(counts > 0, np.maximum(counts * (limit / len(rows)), 1.0), 0.0)
    quota = _round_to(exact, limit, counts)
    while quota.sum() > limit:  # one row for each of many rare classes can be more than there is room for
        quota[quota.argmax()] -= 1
    order = np.argsort(_draws(seed, len(rows), of="sample"), kind="stable")
    return rows[_place_in_class(own, order) < quota[own]]


def _find_groups(hashes: TextHashes, groups: Sequence[Rows]) -> Rows:
    """The group (rows,) of each row, numbered by first occurrence: copies, and rows that share a group with them."""
    _, group_of = group_duplicates(hashes)
    if not groups:
        return group_of
    nodes = int(group_of.max()) + 1
    edges = []
    for numbers in groups:
        _, owner = np.unique(numbers, return_inverse=True)
        edges.append((group_of, nodes + owner))
        nodes += int(owner.max()) + 1
    ones, others = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    return group_duplicates(join_pairs(ones, others, nodes)[group_of].astype(np.uint64))[1]


def _earlier_parts(group_of: Rows, earlier: Parts | None, parts: Sequence[int]) -> Parts:
    """The part (groups,) that the first known row of each group was in; -1 without one, or where it is none now."""
    before = np.full(int(group_of.max(initial=-1)) + 1, -1, dtype=np.int8)
    if earlier is not None:
        known = np.flatnonzero(np.isin(earlier, list(parts)))[::-1]
        before[group_of[known]] = earlier[known]  # where indices repeat the last one stays
    return before


def _assign(
    group_of: Rows, labels: Rows, shares: dict[int, float], before: Parts, *, seed: int, rest: int, keeps_all: bool
) -> Parts:
    """The part (groups,) of each group: each part of `shares` gets its share of the rows, and `rest` the others.

    With `keeps_all` the rest keeps a row of every class.
    """
    part_of, sizes, draws = before.copy(), np.bincount(group_of), _draws(seed, len(before))
    classes = int(labels.max(initial=0)) + 1
    free_groups = np.flatnonzero(before < 0)
    several, single = (free_groups[mask] for mask in (sizes[free_groups] > 1, sizes[free_groups] == 1))
    shares = {part: share for part, share in shares.items() if share}
    tally = _Tally({rest: 1 - sum(shares.values()), **shares}, _count(labels, classes), rest, keeps_all=keeps_all)
    for part in tally.sizes:
        tally.add(part, _content(labels[before[group_of] == part]))
    # Groups of about one size, up to twice, are in random order.
    several = several[np.lexsort((draws[several], -np.frexp(sizes[several])[1]))]
    contents = _contents(several, group_of, labels)
    for group in several.tolist():
        part_of[group] = tally.place(contents[group])
    label_of = np.zeros(len(sizes), dtype=np.int64)
    label_of[group_of] = labels
    single = single[np.argsort(draws[single], kind="stable")]
    for part in shares:
        quota = tally.quota(part, _count(label_of[single], classes))
        part_of[single[_place_in_class(label_of[single], np.arange(len(single))) < quota[label_of[single]]]] = part
        tally.add(part, list(enumerate(quota.tolist())))
        single = single[part_of[single] < 0]
    part_of[single] = rest
    for part in shares if keeps_all else ():  # an empty split gets the smallest group, if train stays the largest split
        for group in reversed(several.tolist()) if not tally.sizes[part] else ():
            spares = part_of[group] == rest and tally.can_spare(contents[group])
            if spares and 2 * sizes[group] <= (part_of[group_of] == rest).sum():
                part_of[group] = part
                break
    return part_of


class _Tally:
    """The rows of each class in each part so far; `counts` (classes,) are the rows of each class in all parts.

    Lists, since a group has few classes and Python's numbers are quicker one by one.
    """

    def __init__(self, shares: dict[int, float], counts: Rows, rest: int, *, keeps_all: bool):
        self.classes = {part: [0] * len(counts) for part in shares}
        self.sizes = dict.fromkeys(shares, 0)
        self._shares, self._counts, self._rest, self._keeps_all = shares, counts.tolist(), rest, keeps_all
        # Weight of the parts' sizes against the balance of classes.
        self._size_weight = math.sqrt((counts > 0).sum()) / max(1, int(counts.sum()))

    def add(self, part: int, content: Content) -> None:
        for label, count in content:
            self.classes[part][label] += count
            self.sizes[part] += count

    def place(self, content: Content) -> int:
        """Add a group, its rows of each class, to the part that it suits best; return that part.

        That is where the chi-square statistic of rows and classes against their shares grows least, as in
        scikit-learn's StratifiedGroupKFold, but for parts of several sizes and in linear time.
        """
        parts = [part for part in self._shares if part == self._rest or self.can_spare(content)]
        best = min(parts, key=lambda part: self._growth(part, content))
        self.add(best, content)
        return best

    def can_spare(self, content: Content) -> bool:
        """Whether the rest would keep a row of every class without these."""
        others = [self.classes[part] for part in self._shares if part != self._rest and self._keeps_all]
        return not others or all(
            self._counts[label] - sum(other[label] for other in others) > count for label, count in content
        )

    def _growth(self, part: int, content: Content) -> float:
        own, size, growth = self.classes[part], 0, 0.0
        for label, count in content:
            size += count
            growth += count * (2 * own[label] + count) / self._counts[label]
        return (growth + self._size_weight * size * (2 * self.sizes[part] + size)) / self._shares[part]

    def quota(self, part: int, free: Rows) -> Rows:
        """(classes,) how many of the `free` single rows of each class a part gets."""
        rows, counts = {other: np.array(classes) for other, classes in self.classes.items()}, np.array(self._counts)
        elsewhere = sum(rows[other] for other in rows if other != self._rest)
        most = np.minimum(free, np.maximum(counts - elsewhere - 1, 0)) if self._keeps_all else free
        total = max(round(self._shares[part] * counts.sum() - self.sizes[part]), int(not self.sizes[part]))
        # Of what earlier parts left: a class too small for each part gives to the one or the other.
        parts = list(self._shares)[1 : list(self._shares).index(part)]
        pool = counts - sum((rows[earlier] for earlier in parts), np.zeros_like(free))
        ratio = self._shares[part] / (1 - sum(self._shares[earlier] for earlier in parts))
        exact = np.clip(ratio * pool - rows[part], 0, most)
        return _round_to(exact, total, most)


def _contents(groups: Rows, group_of: Rows, labels: Rows) -> dict[int, Content]:
    """The rows of each class in each of the groups."""
    rows = np.flatnonzero(np.isin(group_of, groups))
    classes = int(labels.max(initial=0)) + 1
    pairs, counts = np.unique(group_of[rows] * classes + labels[rows], return_counts=True)
    contents: dict[int, Content] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        contents.setdefault(pair // classes, []).append((pair % classes, count))
    return contents


def _content(labels: Rows) -> Content:
    return list(enumerate(np.bincount(labels).tolist()))


def _count(labels: Rows, classes: int) -> Rows:
    return np.bincount(labels, minlength=classes).astype(np.int64)


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


def _place_in_class(labels: Rows, order: Rows) -> Rows:
    """(rows,) how many rows of its class come before each row in `order`."""
    place = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels[order], kind="stable")
    shuffled = order[by_class]
    starts = np.searchsorted(labels[shuffled], labels[shuffled], side="left")
    place[shuffled] = np.arange(len(labels)) - starts
    return place

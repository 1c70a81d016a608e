"""Assign rows to train, validation and test: stratified by class, and no text in two of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from classify.tables.text_hashes import TextHashes, group_duplicates, join_pairs

Rows = npt.NDArray[np.int64]
_BLOCK = 1 << 16


def split_rows(
    hashes: TextHashes,
    labels: Rows,
    *,
    seed: int,
    eval_share: float,
    test_share: float,
    groups: Sequence[npt.NDArray[np.int64]] = (),
    earlier: npt.NDArray[np.int8] | None = None,
) -> npt.NDArray[np.int8]:
    """Return the split (rows,) of each row: 0 train, 1 validation, 2 test.

    Each split has the same mix of classes, as nearly as whole rows allow.

    Duplicates, whose `hashes` are equal, go to the same split, so that no split is scored on training texts; so do rows
    with the same number in one of the `groups`. Every class keeps a row in train; a class with one
    row stays there whole. A split with a share of 0 gets no rows.

    `earlier` is the split that each row was in before, -1 for new rows: there it stays, and new rows fill up the rest.
    """
    first, group_of = group_duplicates(hashes)
    texts = len(first)
    if groups:
        first, group_of = _join_groups(first, group_of, groups)
    shares = (1.0 - eval_share - test_share, eval_share, test_share)
    if len(first) < texts:
        taken = _assign_groups(group_of, labels, shares, _draws(seed, len(first)), earlier)
    else:
        taken = _assign_texts(first, group_of, labels, shares, _draws(seed, len(first)), earlier)
    return taken[group_of]


def assign_folds(
    hashes: TextHashes,
    labels: Rows,
    folds: int,
    *,
    seed: int,
    groups: Sequence[npt.NDArray[np.int64]] = (),
    earlier: npt.NDArray[np.int8] | None = None,
) -> Rows:
    """Return the fold (rows,) of each row, from 0; folds have the same mix of classes as far as possible.

    Duplicates, and rows with the same number in one of the `groups`, share a fold. There are as many folds as
    groups where those are fewer. `earlier` is the fold that each row was in before, -1 for new ones: there it stays.
    """
    first, group_of = group_duplicates(hashes)
    if groups:
        first, group_of = _join_groups(first, group_of, groups)
    folds = min(folds, len(first))
    before = _earlier_splits(group_of, earlier, len(first), (1 / folds,) * folds)
    order = _largest_first(np.bincount(group_of), _draws(seed, len(first)), before < 0)
    tally = _Tally((1 / folds,) * folds, np.bincount(labels).tolist())
    assigned = np.zeros(len(order), dtype=np.int64)
    for group, content in zip(_in_turn(order), _contents(order, group_of, labels), strict=True):
        nearest = min(range(folds), key=lambda fold: tally.growth(fold, content))
        assigned[group] = before[group] if before[group] >= 0 else nearest
        tally.add(int(assigned[group]), content)
    return np.unique(assigned[group_of], return_inverse=True)[1].astype(np.int64)  # an earlier fold may have no row now


def _assign_texts(
    first: Rows,
    group_of: Rows,
    labels: Rows,
    shares: tuple[float, float, float],
    draws: npt.NDArray[np.uint64],
    earlier: npt.NDArray[np.int8] | None,
) -> npt.NDArray[np.int8]:
    """Return the split of each text: each class gives its quota of rows, with all their duplicates."""
    # A text with several labels counts for that of its first row; train must keep a row of each of them.
    group_labels = labels[first]
    differing = np.unique(group_of[labels != group_labels[group_of]])
    mixed = _class_counts(differing, group_of, labels)
    group_sizes = np.bincount(group_of, minlength=len(first))
    order = np.argsort(draws, kind="stable")
    before = _earlier_splits(group_of, earlier, len(first), shares)
    taken = np.maximum(before, 0)
    order = order[before[order] != 0]  # training rows of the earlier run stay in train
    for part in (1, 2):
        if shares[part]:
            _take(taken, part, shares[part], order, group_labels, group_sizes, mixed)
    return taken


def _assign_groups(
    group_of: Rows,
    labels: Rows,
    shares: tuple[float, float, float],
    draws: npt.NDArray[np.uint64],
    earlier: npt.NDArray[np.int8] | None,
) -> npt.NDArray[np.int8]:
    """Return the split of each group: rows and classes as near to their shares as whole groups allow.

    Groups come largest first. Each goes where the chi-square statistic of rows and classes against their shares grows
    least, as in scikit-learn's StratifiedGroupKFold, but for splits of several sizes and in linear time.
    """
    sizes = np.bincount(group_of)
    before = _earlier_splits(group_of, earlier, len(sizes), shares)
    order = _largest_first(sizes, draws, before < 0)
    contents = _contents(order, group_of, labels)
    taken = np.zeros(len(order), dtype=np.int8)
    tally = _Tally(shares, np.bincount(labels).tolist())
    scored = [split for split in (1, 2) if shares[split]]
    for group, content in zip(_in_turn(order), contents, strict=True):
        if before[group] >= 0:
            split = int(before[group])
        else:
            splits = (*scored, 0) if tally.can_leave_train(content) else (0,)
            split = min(splits, key=lambda split: tally.growth(split, content))
        taken[group] = split
        tally.add(split, content)
    for split in scored:  # one that no group fitted takes the smallest that leaves train the largest split
        for position in reversed(range(len(order))) if tally.rows[split] == 0 else ():
            group, content = int(order[position]), contents[position]
            rows_left = tally.rows[0] - int(sizes[group])
            largest = rows_left >= max(*tally.rows[1:], int(sizes[group]))
            if taken[group] == 0 and before[group] < 0 and largest and tally.can_leave_train(content):
                taken[group] = split
                tally.add(0, content, -1)
                tally.add(split, content)
                break
    return taken


def _largest_first(sizes: Rows, draws: npt.NDArray[np.uint64], new: npt.NDArray[np.bool_] | None = None) -> Rows:
    """Order groups, those that are not `new` first, by size; the draws decide up to twice the size."""
    return np.lexsort((draws, -np.frexp(sizes)[1], np.zeros(len(sizes), dtype=bool) if new is None else new))


def _contents(order: Rows, group_of: Rows, labels: Rows) -> list[list[tuple[int, int]]]:
    """Return the (class, rows) pairs of each group, in the given order of groups."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    num_classes = int(labels.max()) + 1
    keys, counts = np.unique(rank[group_of] * num_classes + labels, return_counts=True)
    place, classes = np.divmod(keys, num_classes)
    bounds = np.searchsorted(place, np.arange(len(order) + 1)).tolist()
    pairs = list(zip(classes.tolist(), counts.tolist(), strict=True))
    return [pairs[start:end] for start, end in itertools.pairwise(bounds)]


class _Tally:
    """Count the rows and classes of each split; a content lists (class, rows) of a group."""

    def __init__(self, shares: tuple[float, ...], rows_per_class: list[int]):
        self.rows = [0] * len(shares)
        self._classes = [[0] * len(rows_per_class) for _ in shares]
        self._shares, self._rows_per_class = shares, rows_per_class
        # Weight of split sizes against class balance.
        present = sum(count > 0 for count in rows_per_class)
        self._row_weight = math.sqrt(present) / sum(rows_per_class)

    def add(self, split: int, content: list[tuple[int, int]], sign: int = 1) -> None:
        """Count a group in a split, or out of it with a `sign` of -1."""
        for label, count in content:
            self.rows[split] += sign * count
            self._classes[split][label] += sign * count

    def can_leave_train(self, content: list[tuple[int, int]]) -> bool:
        """Return whether train keeps a row of every class without the group."""
        _, evaluated, tested = self._classes
        return all(self._rows_per_class[label] - evaluated[label] - tested[label] > count for label, count in content)

    def growth(self, split: int, content: list[tuple[int, int]]) -> float:
        """Return by how much the chi-square statistic grows with the group in the split, but for a constant."""
        classes, size, total = self._classes[split], 0, 0.0
        for label, count in content:
            size += count
            total += count * (2 * classes[label] + count) / self._rows_per_class[label]
        return (total + self._row_weight * size * (2 * self.rows[split] + size)) / self._shares[split]


def cap_rows(labels: Rows, rows: Rows, limit: int, *, seed: int) -> Rows:
    """Return at most `limit` of the given rows, with the same mix of classes and (where it fits) a row of each."""
    if len(rows) <= limit:
        return rows
    label_array = labels[rows]
    order = np.argsort(_draws(seed, len(rows)), kind="stable")
    quota = _quotas(np.bincount(label_array), limit, keep_one=True)
    place = _place_in_class(label_array, order)
    return rows[place < quota[label_array]]


def _join_groups(first: Rows, group_of: Rows, groups: Sequence[npt.NDArray[np.int64]]) -> tuple[Rows, Rows]:
    """Join duplicates that share a group, directly or through others; groups in order of first occurrence."""
    nodes, edges = len(first), []
    for numbers in groups:
        _, owner = np.unique(numbers, return_inverse=True)
        edges.append((group_of, nodes + owner))
        nodes += int(owner.max(initial=-1)) + 1
    ones, others = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    return group_duplicates(join_pairs(ones, others, nodes)[group_of].astype(np.uint64))


def _class_counts(groups: Rows, group_of: Rows, labels: Rows) -> dict[int, Rows]:
    """Count the rows of each class in each of the groups."""
    rows = np.flatnonzero(np.isin(group_of, groups))
    rows = rows[np.argsort(group_of[rows], kind="stable")]
    ends = np.searchsorted(group_of[rows], groups, side="right")
    pieces = np.split(labels[rows], ends[:-1]) if len(groups) else []
    return {group: np.bincount(piece) for group, piece in zip(groups.tolist(), pieces, strict=True)}


def _earlier_splits(
    group_of: Rows, earlier: npt.NDArray[np.int8] | None, count: int, shares: Sequence[float]
) -> npt.NDArray[np.int8]:
    """Return the split that the first known row of each group was in; -1 without one, or where it has no share now."""
    before = np.full(count, -1, dtype=np.int8)
    if earlier is not None:
        share_now = np.array([*shares, 0.0])[np.minimum(earlier, len(shares))]  # there may be fewer folds now
        assigned = np.flatnonzero((earlier >= 0) & (share_now > 0))[::-1]
        before[group_of[assigned]] = earlier[assigned]  # where indices repeat the last one stays
    return before


def _draws(seed: int, count: int) -> npt.NDArray[np.uint64]:
    # The word "split" as a number makes these draws differ from those of the epochs' order.
    return np.random.PCG64(np.random.SeedSequence([seed, 0x73706C6974])).random_raw(count)


def _take(
    taken: npt.NDArray[np.int8],
    part: int,
    fraction: float,
    order: Rows,
    labels: Rows,
    sizes: Rows,
    mixed: dict[int, Rows],
) -> None:
    """Mark groups for `part` until each class has given its quota of rows.

    `mixed` holds the number of rows of each class for groups that have several.
    """
    rows_per_class = np.bincount(labels, weights=sizes).astype(np.int64)
    elsewhere = np.bincount(labels, weights=sizes * (taken > 0)).astype(np.int64)
    quota = _quotas(rows_per_class, max(1, round(fraction * int(sizes.sum()))), keep_one=False, elsewhere=elsewhere)
    quota = np.maximum(quota - np.bincount(labels, weights=sizes * (taken == part)).astype(np.int64), 0)
    classes = max([0, *map(len, mixed.values())])
    left = np.bincount(labels, weights=sizes * (taken == 0), minlength=classes).astype(np.int64)
    for group, counts in mixed.items():
        if taken[group] == 0:
            left[labels[group]] -= sizes[group]
            left[: len(counts)] += counts

    def spared(group: int) -> bool:
        """Return whether train keeps a row of every class without this group."""
        if group not in mixed:
            return bool(left[labels[group]] - sizes[group] >= 1)
        counts = mixed[group]
        return bool(((left[: len(counts)] - counts >= 1) | (counts == 0)).all())

    missing = int(quota.sum())
    for group in _in_turn(order):
        if not missing:
            break
        label, size = labels[group], sizes[group]
        if taken[group] == 0 and 0 < size <= quota[label] and spared(group):
            taken[group] = part
            quota[label] -= size
            missing -= int(size)
            if group in mixed:
                left[: len(mixed[group])] -= mixed[group]
            else:
                left[label] -= size
    if not (taken == part).any():  # every text has more duplicates than fit: take one
        spared_group = next((group for group in _in_turn(order) if taken[group] == 0 and spared(group)), None)
        if spared_group is not None:
            taken[spared_group] = part


def _in_turn(order: Rows) -> Iterator[int]:
    """Yield the numbers as Python ints, which are quicker, in blocks to save memory."""
    for start in range(0, len(order), _BLOCK):
        yield from order[start : start + _BLOCK].tolist()


def _quotas(counts: Rows, total: int, *, keep_one: bool, elsewhere: Rows | None = None) -> Rows:
    """Return whole numbers proportional to `counts` that sum to `total`; `keep_one`: at least 1 per class.

    Uses the largest remainders. `elsewhere` counts rows in other splits: small classes should be in one of them.
    """
    exact = counts * (total / max(1, counts.sum()))
    quota = np.floor(exact).astype(np.int64)
    if keep_one:
        quota = np.where(counts > 0, np.maximum(quota, 1), 0)
    # Between equal remainders the larger class gives the row; of classes too small for one, one that has not given yet.
    again = np.zeros_like(counts) if elsewhere is None else np.where(quota == 0, elsewhere, 0)
    by_remainder = np.lexsort((-counts, again, -(exact - quota)))
    for label in by_remainder[: max(0, total - int(quota.sum()))]:
        quota[label] += 1
    while quota.sum() > total:  # one row for each of many rare classes can be more than there is room for
        quota[np.argmax(quota)] -= 1
    return np.minimum(quota, counts)


def _place_in_class(labels: Rows, order: Rows) -> Rows:
    """Return (rows,) how many rows of its class come before each row in `order`."""
    place = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels[order], kind="stable")
    shuffled = order[by_class]
    starts = np.searchsorted(labels[shuffled], labels[shuffled], side="left")
    place[shuffled] = np.arange(len(labels)) - starts
    return place

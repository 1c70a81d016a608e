"""Train, evaluation and test parts: stratified by class, and no text in two of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Row numbers of each part, ascending (file order); `None` where a part comes from a file of its own."""

    train: Rows
    eval: Rows | None
    test: Rows | None


def split_rows(
    texts: Sequence[str],
    labels: Rows,
    *,
    seed: int,
    eval_share: float,
    test_share: float,
    owners: Sequence[Sequence[Hashable]] = (),
    earlier: npt.NDArray[np.int8] | None = None,
) -> Split:
    """Divide rows into parts with the same mix of classes, as nearly as whole rows allow.

    Copies of a text go to the same part, so that no part is scored on what another has learned; so do rows with the
    same owner, in each of the `owners`. Every class keeps a row in train; a class with one row stays there whole. A
    share of 0 gives `None` for that part.

    `earlier` is the part that each row was in before (0 train, 1 evaluation, 2 test, -1 new): there it stays, and new
    rows fill the parts up.
    """
    groups = _joined(_groups(texts), owners) if owners else _groups(texts)
    # A text that occurs with several labels counts for the label of its first row, and for none may it be the last one.
    group_labels = np.array([labels[rows[0]] for rows in groups], dtype=np.int64)
    mixed = {g: np.bincount(labels[rows]) for g, rows in enumerate(groups) if len(rows) > 1 and np.ptp(labels[rows])}
    group_sizes = np.array([len(rows) for rows in groups], dtype=np.int64)
    order = np.argsort(_draws(seed, len(groups)), kind="stable")
    taken = np.zeros(len(groups), dtype=np.int8)
    if earlier is not None:
        before = [next((part for part in earlier[rows].tolist() if part >= 0), -1) for rows in groups]
        shares = (1.0, eval_share, test_share)
        taken = np.array([part if part > 0 and shares[part] else 0 for part in before], dtype=np.int8)
        order = order[np.array(before)[order] != 0]  # what was trained on is not taken for another part
    for part, fraction in ((1, eval_share), (2, test_share)):
        if fraction:
            _take(taken, part, fraction, order, group_labels, group_sizes, mixed)
    rows_of = {
        part: np.sort(np.array([row for g in np.flatnonzero(taken == part) for row in groups[g]], dtype=np.int64))
        for part in (0, 1, 2)
    }
    return Split(rows_of[0], rows_of[1] if eval_share else None, rows_of[2] if test_share else None)


def cap_rows(labels: Rows, rows: Rows, limit: int, *, seed: int) -> Rows:
    """At most `limit` of the given rows, with the same mix of classes and (where it fits) a row of each."""
    if len(rows) <= limit:
        return rows
    label_array = labels[rows]
    order = np.argsort(_draws(seed, len(rows)), kind="stable")
    quota = _quotas(np.bincount(label_array), limit, keep_one=True)
    place = _place_in_class(label_array, order)
    return rows[place < quota[label_array]]


def overlap(texts: Iterable[str], *others: Sequence[str]) -> list[list[int]]:
    """For each of the others, the indices of its texts that are also among `texts`."""
    known = set(map(plain, texts))
    return [[i for i, text in enumerate(other) if plain(text) in known] for other in others]


def plain(text: str) -> str:
    """A text without what copies of it differ in: case, and how much space stands where."""
    return " ".join(text.split()).casefold()


def _groups(texts: Sequence[str]) -> list[list[int]]:
    """Rows that share a text but for case and spaces, in order of first occurrence."""
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(plain(text), []).append(row)
    return list(groups.values())


def _joined(groups: list[list[int]], owners: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Groups of rows that have an owner in common, directly or through others, as one; in order of first occurrence."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links: list[tuple[int, int]] = []
    for of in owners:
        first: dict[Hashable, int] = {}
        links += [(number, first.setdefault(of[row], number)) for number, rows in enumerate(groups) for row in rows]
    ones, others = np.array(links).T
    graph = coo_array((np.ones(len(links), dtype=np.int8), (ones, others)), shape=(len(groups), len(groups)))
    _, components = connected_components(graph, directed=False)
    joined: dict[int, list[int]] = {}
    for rows, component in zip(groups, components.tolist(), strict=True):
        joined.setdefault(component, []).extend(rows)
    return [sorted(rows) for rows in joined.values()]


def _draws(seed: int, count: int) -> npt.NDArray[np.uint64]:
    # The word "split" as a number keeps these draws apart from those of the epochs' order.
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
    given = np.bincount(labels, weights=sizes * (taken > 0)).astype(np.int64)
    quota = _quotas(rows_per_class, max(1, round(fraction * int(sizes.sum()))), keep_one=False, given=given)
    quota = np.maximum(quota - np.bincount(labels, weights=sizes * (taken == part)).astype(np.int64), 0)
    classes = max([0, *map(len, mixed.values())])
    left = np.bincount(labels, weights=sizes * (taken == 0), minlength=classes).astype(np.int64)
    for group, counts in mixed.items():
        if taken[group] == 0:
            left[labels[group]] -= sizes[group]
            left[: len(counts)] += counts

    def spared(group: int) -> bool:
        """Whether train keeps a row of every class without this group."""
        if group not in mixed:
            return bool(left[labels[group]] - sizes[group] >= 1)
        counts = mixed[group]
        return bool(((left[: len(counts)] - counts >= 1) | (counts == 0)).all())

    for group in order.tolist():
        label, size = labels[group], sizes[group]
        if taken[group] == 0 and 0 < size <= quota[label] and spared(group):
            taken[group] = part
            quota[label] -= size
            if group in mixed:
                left[: len(mixed[group])] -= mixed[group]
            else:
                left[label] -= size
    if not (taken == part).any():  # every text has more copies than fit: rather one too large than none
        spared_group = next((group for group in order.tolist() if taken[group] == 0 and spared(group)), None)
        if spared_group is not None:
            taken[spared_group] = part


def _quotas(counts: Rows, total: int, *, keep_one: bool, given: Rows | None = None) -> Rows:
    """Whole numbers proportional to `counts` with sum `total` (largest remainder); `keep_one`: at least 1 a class.

    `given` is what each class has given to another part: many small classes should be seen in one of them.
    """
    exact = counts * (total / max(1, counts.sum()))
    quota = np.floor(exact).astype(np.int64)
    if keep_one:
        quota = np.where(counts > 0, np.maximum(quota, 1), 0)
    # Between equal remainders the larger class gives the row; of classes too small for one, one that has not given yet.
    again = np.zeros_like(counts) if given is None else np.where(quota == 0, given, 0)
    by_remainder = np.lexsort((-counts, again, -(exact - quota)))
    for label in by_remainder[: max(0, total - int(quota.sum()))]:
        quota[label] += 1
    while quota.sum() > total:  # one row for each of many rare classes can be more than there is room for
        quota[np.argmax(quota)] -= 1
    return np.minimum(quota, counts)


def _place_in_class(labels: Rows, order: Rows) -> Rows:
    """For each row, how many rows of its class come before it in `order`."""
    place = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels[order], kind="stable")
    shuffled = order[by_class]
    starts = np.searchsorted(labels[shuffled], labels[shuffled], side="left")
    place[shuffled] = np.arange(len(labels)) - starts
    return place

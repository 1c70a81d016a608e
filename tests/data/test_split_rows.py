"""Parts: stratified, deterministic, and never the same text in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from classify.data.split_rows import assign_folds, cap_rows, split_rows as split_copies
from classify.tables.table import text_hashes


def make_labels(count: int) -> np.ndarray:
    return np.random.default_rng(0).choice(5, count, p=[0.5, 0.3, 0.15, 0.04, 0.01])


class Parts(NamedTuple):
    """The rows of each split."""

    train: np.ndarray
    eval: np.ndarray
    test: np.ndarray


def split_rows(texts: Sequence[str], labels: np.ndarray, **options: Any) -> Parts:
    options = {"seed": 0, "eval_share": 0.1, "test_share": 0.1, **options}
    split = split_copies(text_hashes(texts), labels, **options)
    return Parts(*(np.flatnonzero(split == number) for number in range(3)))


def test_shares_and_proportions() -> None:
    labels = make_labels(1000)
    parts = split_rows([f"text {i}" for i in range(1000)], labels, seed=1)
    assert [len(parts.train), len(parts.eval), len(parts.test)] == [800, 100, 100]
    assert sorted(np.concatenate([parts.train, parts.eval, parts.test]).tolist()) == list(range(1000))
    for part in (parts.eval, parts.test):
        assert np.abs(np.bincount(labels[part], minlength=5) - 0.1 * np.bincount(labels)).max() <= 1
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize(
    ("case", "evaluated", "tested"),
    [
        ({"count": 40, "classes": 3, "copies": 1, "seed": 42}, [4, 13, 21, 26], [1, 28, 29, 33]),
        ({"count": 40, "classes": 3, "copies": 1, "seed": 42, "owned": True}, [4, 13, 21, 26], [1, 28, 29, 33]),
        ({"count": 50, "classes": 5, "copies": 1, "seed": 0, "test_share": 0.0}, [3, 14, 22, 36, 40], []),
        (
            {"count": 60, "classes": 7, "copies": 3, "seed": 1, "known": True},
            [0, 13, 14, 15, 28, 29, 30, 43, 44, 45, 58, 59],
            [4, 5, 6, 19, 20, 21, 34, 35, 36, 49, 50, 51],
        ),
    ],
)
def test_a_split_is_the_same_in_every_version(case: dict[str, Any], evaluated: list[int], tested: list[int]) -> None:
    """Earlier runs resume, and people compare scores: without groups of several texts no assignment may change."""
    count = case["count"]
    texts = [f"text {i * 7919 % count // case['copies']}" for i in range(count)]
    parts = split_rows(
        texts,
        np.arange(count) ** 2 % case["classes"],
        seed=case["seed"],
        test_share=case.get("test_share", 0.1),
        groups=[np.arange(count)] if "owned" in case else [],
        earlier=np.array([(-1, 0, 0, 1, 2)[i % 5] for i in range(count)], dtype=np.int8) if "known" in case else None,
    )
    assert parts.eval.tolist() == evaluated
    assert parts.test.tolist() == tested


@pytest.mark.parametrize("grouped", [False, True])
def test_a_class_with_one_row_stays_in_train(grouped: bool) -> None:
    """Also where most classes have one row, so that the quotas ask for some of them."""
    labels = np.array([0] * 10 + list(range(1, 31)))
    owners = [np.array([0, 0, *range(2, 40)])] if grouped else []
    for seed in range(20):
        parts = split_rows([str(i) for i in range(40)], labels, seed=seed, groups=owners)
        assert len(parts.eval)
        assert set(labels[parts.train]) == set(range(31))


@pytest.mark.parametrize(("limit", "classes"), [(100, 5), (20, 5), (5, 5), (3, 3)])
def test_cap_keeps_the_mix_and_each_class_where_it_fits(limit: int, classes: int) -> None:
    labels = make_labels(1000)
    kept = cap_rows(labels, limit, seed=0)
    assert len(kept) == limit
    assert len(set(labels[kept])) == classes
    assert (np.diff(kept) > 0).all()


# Groups of several texts.


def split_groups(groups: np.ndarray, labels: np.ndarray, seed: int = 0, **options: Any) -> Parts:
    """80/10/10 by whole groups; every row has a text that differs."""
    return split_rows([f"text {i}" for i in range(len(labels))], labels, seed=seed, groups=[groups], **options)


def random_labels(count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, count)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sizes", "classes", "expected"),
    [
        ([30] * 100, 20, [2400, 300, 300]),
        ([20] * 50, 4, [800, 100, 100]),
        ([100, 800, 100], 3, [800, 100, 100]),
        ([200] * 5, 3, [600, 200, 200]),
        ([5] * 3, 2, [5, 5, 5]),
        ([20] * 30, 100, [480, 60, 60]),
        ([5] * 40 + [1] * 800, 7, [800, 100, 100]),
    ],
)
def test_quotas_are_of_rows_over_whole_groups(sizes: list[int], classes: int, expected: list[int], seed: int) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    parts = split_groups(groups, random_labels(len(groups), classes), seed)
    assert [len(rows) for rows in parts] == pytest.approx(expected, abs=1)
    assert len(np.unique(groups)) == sum(len(np.unique(groups[rows])) for rows in parts)


def test_whatever_the_groups_train_is_the_largest_and_has_every_class() -> None:
    draw = np.random.default_rng(3)
    for seed in range(200):
        sizes = np.ceil(draw.pareto(1.2, draw.integers(2, 40)) * 3 + 1).astype(int).clip(max=500)
        groups = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
        labels = (draw.pareto(1.0, len(groups)) * 2).astype(int).clip(max=15)
        parts = split_groups(groups, labels, seed)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
        assert len(np.unique(groups)) == sum(len(np.unique(groups[rows])) for rows in parts)
        assert set(labels[parts[0]]) == set(labels)
        assert len(parts[0]) == max(map(len, parts))


def test_groups_stay_where_they_were_and_new_ones_fill_the_splits() -> None:
    groups = np.repeat(np.arange(100), 5)
    labels = random_labels(500, 4)
    before = split_groups(groups[:250], labels[:250], seed=1)
    earlier = np.full(500, -1, dtype=np.int8)
    for number, rows in enumerate(before):
        earlier[rows] = number
    parts = split_groups(groups, labels, seed=2, earlier=earlier)
    assert all(set(known) <= set(now) for known, now in zip(before, parts, strict=True))
    assert [len(rows) for rows in parts] == [400, 50, 50]
    evaluated = split_groups(groups, labels, seed=2, earlier=earlier, test_share=0.0)
    assert set(before[1]) <= set(evaluated[1])
    assert not set(before[0]) & set(evaluated[1])


@pytest.mark.parametrize("grouped", [False, True])
def test_of_several_earlier_splits_that_of_the_first_row_counts(grouped: bool) -> None:
    """Of rows that have come together since, as duplicates or in a group."""
    rows = np.arange(60)
    joined = np.where(rows < 6, 0, rows)
    texts = [f"text {i}" for i in (rows if grouped else joined)]
    earlier = np.zeros(60, dtype=np.int8)
    earlier[:6] = [2, 1, 0, 0, 1, 0]
    parts = split_rows(texts, rows % 2, seed=0, earlier=earlier, groups=[joined] if grouped else [])
    assert parts.test.tolist() == list(range(6))


def test_earlier_folds_may_be_more_than_there_are_now() -> None:
    """A part of the table of a run with five folds, in three groups."""
    texts, labels = np.arange(12, dtype=np.uint64), np.arange(12) % 2
    earlier, groups = (np.arange(12) // 4 + 2).astype(np.int8), np.arange(12) // 4
    folds = assign_folds(texts, labels, 5, seed=0, groups=[groups], earlier=earlier)
    assert [len(set(folds[groups == group].tolist())) for group in range(3)] == [1, 1, 1]
    assert set(folds.tolist()) == {0, 1, 2}
    halves = assign_folds(texts, labels, 5, seed=0, earlier=np.repeat([0, 4], 6).astype(np.int8))
    assert halves.tolist() == [0] * 6 + [1] * 6, "no fold without rows"

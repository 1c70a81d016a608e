"""Intervals of F1 by resampling texts, each with all its copies (Efron, 1979)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array

from classify.evaluation.metrics import Array, Sampling, divide

Interval = tuple[float, float] | None

_RESAMPLES = 1000
# Numbers of resamples that are held at a time.
_CELLS = 5_000_000
# Classes above which the percentiles of resampled macro F1 are far too low.
_MANY_CLASSES = 20


def f1_of_counts(right: Array, total: Array) -> Array:
    """(n, 2) micro F1, and macro F1 over the labels that occur.

    `right` (n, labels) counts rows whose target and prediction have a label, `total` its targets and predictions.
    """
    macro = divide(2.0 * right, total).sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
    micro = 2.0 * right.sum(axis=1) / np.maximum(total.sum(axis=1), 1)
    return np.stack([micro, macro], axis=1)


def macro_f1_interval(targets: Array, predicted: Array, seed: int, sampling: Sampling) -> Interval:
    """The 95 % interval of macro F1 of classes (rows,); None if all resamples score the same.

    That happens if all rows are right, or all wrong: at the edge of its range a bootstrapped quantity has no valid
    interval (Andrews, 2000, Econometrica 68(2)).

    Texts with the same (target, predicted) pairs are exchangeable, so a resample is one multinomial draw over the kinds
    of texts that occur, and the cost hardly depends on the rows.
    """
    cells, cell_of = np.unique(np.stack([targets, predicted]), axis=1, return_inverse=True)
    pairs, classes = cells.shape[1], np.unique(cells)
    kinds, counts = _kinds_of_texts(cell_of.reshape(-1), sampling.group(len(targets)), pairs)
    # 1 where the target, or the prediction, of a pair is a class.
    of_target, of_predicted = (
        csr_array((np.ones(pairs), (np.arange(pairs), np.searchsorted(classes, row))), shape=(pairs, len(classes)))
        for row in cells
    )
    hit = (cells[0] == cells[1]).astype(np.float64)
    drawn, observed = _resample(
        kinds, counts, seed, lambda rows: f1_of_counts((rows * hit) @ of_target, rows @ (of_target + of_predicted))
    )
    return _interval(drawn[:, 1], observed[1], len(classes), sampling)


def _kinds_of_texts(cells: Array, texts: Array, count: int) -> tuple[Any, Array]:
    """How often each of `count` cells is in each kind of text (kinds, count), and the texts of each kind.

    `cells` (rows,) and `texts` (rows,) are numbers.
    """
    if len(texts) == texts.max() + 1:
        return eye_array(count, format="csr"), np.bincount(cells, minlength=count)
    order = np.lexsort((cells, texts))
    parts = np.split(cells[order], np.flatnonzero(np.diff(texts[order])) + 1)
    kinds = Counter(tuple(part.tolist()) for part in parts)
    sizes = np.array([len(kind) for kind in kinds])
    columns = np.concatenate([np.array(kind) for kind in kinds])
    rows = np.repeat(np.arange(len(kinds)), sizes)
    matrix = csr_array((np.ones(len(columns)), (rows, columns)), shape=(len(kinds), count))
    return matrix, np.array(list(kinds.values()))


def f1_intervals(targets: Array, predicted: Array, seed: int, sampling: Sampling) -> dict[str, Interval]:
    """The 95 % intervals of micro and macro F1 of label sets (rows, labels)."""
    group = sampling.group(len(targets))
    counted = np.zeros((int(group.max()) + 1, 2 * targets.shape[1]), dtype=np.float32)
    np.add.at(counted, group, np.concatenate([predicted & targets, predicted + targets], axis=1))
    drawn, observed = _resample(
        counted, np.ones(len(counted), dtype=np.int64), seed, lambda rows: f1_of_counts(*np.split(rows, 2, axis=1))
    )
    return {
        "micro_f1": _interval(drawn[:, 0], observed[0], 1, sampling),
        "macro_f1": _interval(drawn[:, 1], observed[1], targets.shape[1], sampling),
    }


def _resample(counted: Any, counts: Array, seed: int, score: Callable[[Array], Array]) -> tuple[Array, Array]:
    """The `score`s of resampled texts (resamples, metrics), and of the texts as they are (metrics,).

    `counted` (kinds, columns) is what each kind of text adds to the sums that are scored, `counts` (kinds,) its texts.
    """
    generator, texts, block = np.random.default_rng(seed), int(counts.sum()), max(1, _CELLS // max(counted.shape))
    scores = [
        score(
            generator.multinomial(texts, counts / texts, min(block, _RESAMPLES - start)).astype(counted.dtype) @ counted
        )
        for start in range(0, _RESAMPLES, block)
    ]
    return np.concatenate(scores), score(counts.astype(counted.dtype)[None] @ counted)[0]


def _interval(scores: Array, observed: float, classes: int, sampling: Sampling) -> Interval:
    """The 95 % interval from resampled scores; None if all are the same.

    It is that of percentiles, of many classes the basic one (Davison and Hinkley, 1997, section 5.2): macro F1 of few
    rows a class is too low, and that of resamples once more. That of folds is wider, see `Sampling.variance`.
    """
    low, high = np.percentile(scores, [2.5, 97.5])
    if low == high:
        return None
    if classes > _MANY_CLASSES:
        low, high = 2 * observed - high, 2 * observed - low
    wider = sampling.variance**0.5
    low, high = (observed + wider * (end - observed) if wider > 1 else end for end in (low, high))
    return max(0.0, float(low)), min(1.0, float(high))

"""Baselines: the majority class, and logistic regression on TF-IDF of words and character n-grams."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split_rows import cap_rows

NAME = "tfidf-logreg"
MAX_ROWS = 20_000
MAX_CLASSES = 100
# Classes times features; the solver takes 200 bytes for each.
MAX_WEIGHTS = 10_000_000
# Texts vectorised at once: each has a few hundred features of 12 bytes.
_BLOCK = 10_000


@dataclass(frozen=True)
class Baseline:
    """Metrics on the rows that score the model, the number of training rows, and the seconds for both."""

    metrics: dict[str, float]
    rows: int
    seconds: float
    predicted: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the entry of metrics.json."""
        return {"name": NAME, **self.metrics, "seconds": self.seconds, "rows": self.rows}


@dataclass(frozen=True)
class MajorityBaseline:
    """Metrics of predicting the most frequent label of training for all rows."""

    label: str
    metrics: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the entry of metrics.json."""
        return {"label": self.label, **self.metrics}


def fit_baseline(
    texts: Sequence[str],
    targets: npt.NDArray[np.int64],
    held_out_texts: Sequence[str],
    held_out_targets: npt.NDArray[np.int64],
    seed: int,
    metrics: Callable[[Any, Any], dict[str, float]],
) -> Baseline:
    """Fit on training texts and compute `metrics` of predictions and targets on held-out texts.

    Above 20,000 rows or 100 classes it is fitted on a stratified sample of 20,000 rows. MAX_WEIGHTS caps the number
    of features; the most frequent are kept. Raises ValueError if the texts have no words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    begin = time.perf_counter()
    if len(np.unique(targets)) == 1:  # the others of a fold are all of one class
        predicted = np.full_like(held_out_targets, targets[0])
        return Baseline(metrics(predicted, held_out_targets), len(texts), time.perf_counter() - begin, predicted)
    rows = np.arange(len(texts))
    if len(rows) > MAX_ROWS or len(np.unique(targets)) > MAX_CLASSES:
        rows = cap_rows(targets, rows, MAX_ROWS, seed=seed)
    most = MAX_WEIGHTS // (2 * len(np.unique(targets)))
    features = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, max_features=most),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float32, max_features=most),
    )
    model = make_pipeline(features, LogisticRegression(C=10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged, many classes: not actionable
        model.fit([texts[row] for row in rows.tolist()], targets[rows])
    blocks = [held_out_texts[start : start + _BLOCK] for start in range(0, len(held_out_texts), _BLOCK)]
    predicted = np.concatenate([model.predict(block) for block in blocks])
    return Baseline(metrics(predicted, held_out_targets), len(rows), time.perf_counter() - begin, predicted)


def cross_validate_baseline(
    texts: Sequence[str],
    targets: npt.NDArray[Any],
    folds: npt.NDArray[np.int64],
    fit: Callable[..., Baseline],
    metrics: Callable[[Any, Any], dict[str, float]],
) -> Baseline:
    """Predict each row by a baseline fitted on the other folds; `folds` (rows,) are numbers from 0.

    `fit` takes training texts, their targets, held-out texts and theirs.
    """
    predicted, parts = np.empty_like(targets), []
    for number in range(int(folds.max()) + 1):
        train, held_out = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        chosen = [[texts[row] for row in rows.tolist()] for rows in (train, held_out)]
        parts.append(fit(chosen[0], targets[train], chosen[1], targets[held_out]))
        predicted[held_out] = parts[-1].predicted
    seconds = sum(part.seconds for part in parts)
    return Baseline(metrics(predicted, targets), min(part.rows for part in parts), seconds, predicted)

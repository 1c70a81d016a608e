"""What is worth beating: TF-IDF of words and character n-grams into a logistic regression, and the largest class."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split_rows import cap_rows

NAME = "tfidf-logreg"
MAX_ROWS = 20_000
MAX_CLASSES = 100
# Classes times features; the solver takes 200 bytes for each.
MAX_WEIGHTS = 10_000_000
# Texts whose features are held at once: a text has some hundred, of a dozen bytes each.
_BLOCK = 10_000


@dataclass(frozen=True)
class Baseline:
    """Metrics on the same rows as the model's, the number of rows it was fitted on, and the seconds both took."""

    metrics: dict[str, float]
    rows: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return its form in metrics.json."""
        return {"name": NAME, **self.metrics, "seconds": self.seconds, "rows": self.rows}


@dataclass(frozen=True)
class MajorityBaseline:
    """Metrics of the same answer for all rows: the most frequent one of training."""

    label: str
    metrics: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return its form in metrics.json."""
        return {"label": self.label, **self.metrics}


def fit_baseline(
    texts: Sequence[str],
    targets: npt.NDArray[np.int64],
    held_out_texts: Sequence[str],
    held_out_targets: npt.NDArray[np.int64],
    seed: int,
    metrics: Callable[[Any, Any], dict[str, float]],
) -> Baseline:
    """Fit on training texts, and compute `metrics` of predictions and targets on held-out ones.

    More than 20,000 rows or 100 classes: it is fitted on 20,000 rows, stratified. Of more features than memory should
    hold, the most frequent are taken. Raises ValueError where the texts have no words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    begin = time.perf_counter()
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
        warnings.simplefilter("ignore")  # not converged, many classes: nothing the person can act on
        model.fit([texts[row] for row in rows.tolist()], targets[rows])
    blocks = [held_out_texts[start : start + _BLOCK] for start in range(0, len(held_out_texts), _BLOCK)]
    predicted = np.concatenate([model.predict(block) for block in blocks])
    return Baseline(metrics(predicted, held_out_targets), len(rows), time.perf_counter() - begin)

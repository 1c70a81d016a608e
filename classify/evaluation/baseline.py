"""What is worth beating: TF-IDF of words and character n-grams into a logistic regression, and the largest class."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split import cap_rows
from classify.evaluation.metrics import macro_f1

NAME = "tfidf-logreg"
MAX_ROWS = 20_000
MAX_CLASSES = 100
# Classes times features; the solver takes 200 bytes for each.
MAX_WEIGHTS = 10_000_000
# Texts whose features are held at once: a text has some hundred, of a dozen bytes each.
_BLOCK = 10_000


@dataclass(frozen=True)
class BaselineResult:
    """Scores on the same rows as the model's, and the number of rows it was fitted on."""

    accuracy: float
    macro_f1: float
    seconds: float
    rows: int

    def as_json(self) -> dict[str, Any]:
        """Its form in metrics.json."""
        return {
            "name": NAME,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "seconds": self.seconds,
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Majority:
    """Scores of always giving one class, the largest of the training part."""

    label: str
    accuracy: float
    macro_f1: float

    def as_json(self) -> dict[str, Any]:
        """Its form in metrics.json."""
        return vars(self).copy()


def always_largest(
    train_labels: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], labels: Sequence[str]
) -> Majority:
    """The score of the training part's largest class (of equals the first) on rows of the classes `truth` (n,)."""
    largest = int(np.bincount(train_labels, minlength=len(labels)).argmax())
    predicted = np.full_like(truth, largest)
    return Majority(labels[largest], float(np.mean(truth == largest)), macro_f1(truth, predicted))


def fit_and_score(
    texts: Sequence[str],
    labels: npt.NDArray[np.int64],
    held_out_texts: Sequence[str],
    held_out_labels: npt.NDArray[np.int64],
    seed: int,
) -> BaselineResult:
    """Fit on the training texts and score on held-out ones.

    On more than 20,000 rows or 100 classes it is fitted on a stratified 20,000 rows; `rows` says how many it was. Of
    more features than memory should hold, the most frequent are taken.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    begin = time.perf_counter()
    rows = np.arange(len(texts))
    if len(rows) > MAX_ROWS or len(np.unique(labels)) > MAX_CLASSES:
        rows = cap_rows(labels, rows, MAX_ROWS, seed=seed)
    most = MAX_WEIGHTS // (2 * len(np.unique(labels)))
    features = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, max_features=most),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float32, max_features=most),
    )
    model = make_pipeline(features, LogisticRegression(C=10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged, many classes: nothing the person can act on
        model.fit([texts[row] for row in rows.tolist()], labels[rows])
    blocks = [held_out_texts[start : start + _BLOCK] for start in range(0, len(held_out_texts), _BLOCK)]
    predicted = np.concatenate([model.predict(block) for block in blocks])
    return BaselineResult(
        accuracy=float(np.mean(predicted == held_out_labels)),
        macro_f1=macro_f1(held_out_labels, predicted),
        seconds=time.perf_counter() - begin,
        rows=len(rows),
    )

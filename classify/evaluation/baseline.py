"""Baselines: the most frequent label, and a linear model on TF-IDF of words and character n-grams."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split_rows import cap_rows

LOGREG = "tfidf-logreg"
RIDGE = "tfidf-ridge"
# Rows, and classes, above which it is fitted on a sample of so many rows: more take minutes, and say no more.
MAX_ROWS = 20_000
MAX_CLASSES = 100
# Classes times features; the solver takes 200 bytes for each.
MAX_WEIGHTS = 10_000_000
# Texts vectorized at once: each has a few hundred features of 12 bytes.
_BLOCK = 10_000
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# Texts by which that is decided.
_SCRIPT_TEXTS = 1_000


@dataclass(frozen=True)
class Baseline:
    """Metrics on the rows that score the model, the number of training rows, and the seconds for both."""

    metrics: dict[str, float]
    rows: int
    seconds: float
    name: str = LOGREG
    predicted: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.metrics, "seconds": self.seconds, "rows": self.rows}


@dataclass(frozen=True)
class MajorityBaseline:
    """Metrics of predicting the most frequent label of training for all rows."""

    label: str
    metrics: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        return {"label": self.label, **self.metrics}


@dataclass(frozen=True)
class LinearModel:
    """An unfitted estimator of scikit-learn, its name in metrics.json, and the number of its outputs."""

    name: str
    estimator: Any
    outputs: int


def fit_baseline(
    model: LinearModel,
    texts: Sequence[str],
    targets: npt.NDArray[Any],
    stratify_by: npt.NDArray[np.int64],
    held_out_texts: Sequence[str],
    held_out_targets: npt.NDArray[Any],
    seed: int,
    metrics: Callable[[Any, Any], dict[str, float]],
) -> Baseline:
    """Fit on training texts and compute `metrics` of predictions and targets on held-out texts.

    The features are TF-IDF of words and of characters within them; of characters alone where texts have no spaces.
    Above 20,000 rows or 100 outputs it is fitted on a sample of 20,000 rows, stratified by `stratify_by` (rows,).
    MAX_WEIGHTS caps the number of features; the most frequent are kept. Raises ValueError if the texts have no words.
    """
    begin = time.perf_counter()
    rows = np.arange(len(texts))
    if (targets == targets[0]).all():  # outside of a fold there may be one class
        predicted = np.repeat(targets[:1], len(held_out_targets), axis=0)
    else:
        if len(rows) > MAX_ROWS or model.outputs > MAX_CLASSES:
            rows = cap_rows(stratify_by, MAX_ROWS, seed=seed)
        features, estimator = make_features(texts, MAX_WEIGHTS // (2 * model.outputs)), model.estimator
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, many classes: not actionable
            estimator.fit(features.fit_transform([texts[row] for row in rows.tolist()]), targets[rows])
        blocks = [held_out_texts[start : start + _BLOCK] for start in range(0, len(held_out_texts), _BLOCK)]
        predicted = np.concatenate([estimator.predict(features.transform(block)) for block in blocks])
    seconds = time.perf_counter() - begin
    return Baseline(metrics(predicted, held_out_targets), len(rows), seconds, model.name, predicted)


def make_features(texts: Sequence[str], most: int) -> Any:
    """An unfitted vectorizer of words and characters; each kind of n-gram has at most `most` features.

    Of characters alone where texts have no spaces.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    settings = {"sublinear_tf": True, "dtype": np.float32, "max_features": most}
    if lack_spaces(texts):
        return TfidfVectorizer(analyzer="char", ngram_range=(1, 3), **settings)
    return make_union(
        TfidfVectorizer(ngram_range=(1, 2), **settings),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **settings),
    )


def lack_spaces(texts: Sequence[str]) -> bool:
    """Whether most letters belong to scripts that put no spaces between words."""
    letters = [character for text in texts[:_SCRIPT_TEXTS] for character in text if character.isalpha()]
    return 2 * len(_UNSPACED.findall("".join(letters))) > len(letters)


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
        selected = [[texts[row] for row in rows.tolist()] for rows in (train, held_out)]
        parts.append(fit(selected[0], targets[train], selected[1], targets[held_out]))
        predicted[held_out] = parts[-1].predicted
    seconds = sum(part.seconds for part in parts)
    rows = min(part.rows for part in parts)
    return Baseline(metrics(predicted, targets), rows, seconds, parts[0].name, predicted)

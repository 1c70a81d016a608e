"""The baseline that a model is compared with: a linear model on TF-IDF of words and character n-grams."""

from __future__ import annotations

import functools
import re
import time
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.dummy import DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import ComplementNB
from sklearn.pipeline import make_union

from classify.data.split_rows import cap_rows
from classify.evaluation.calibration import choose_thresholds
from classify.evaluation.metrics import Array, Baseline
from classify.tasks.base import Column, Task
from classify.tasks.heads import one_blas_thread

LOGREG = "tfidf-logreg"
BAYES = "tfidf-bayes"
RIDGE = "tfidf-ridge"
# Rows, and classes, above which it is fitted on a sample of so many rows: more take minutes, and say no more.
MAX_ROWS = 20_000
MAX_CLASSES = 100
# Classes times features; the solver takes 200 bytes for each.
MAX_WEIGHTS = 10_000_000
# Naive Bayes takes about a tenth of that.
_BAYES_WEIGHTS = 10
# Texts vectorized at once: each has a few hundred features of 12 bytes.
_BLOCK = 10_000
# Share of the rows on which thresholds of labels are chosen.
_HELD_OUT = 0.2
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# Texts by which that is decided.
_SCRIPT_TEXTS = 1_000


@one_blas_thread
def fit(
    task: Task, texts: Sequence[str], targets: Array, held_out_texts: Sequence[str], held_out_targets: Array, seed: int
) -> Baseline:
    """Fit the task's linear model on training texts, and score it on others.

    Above 20,000 rows, or 100 classes, it is fitted on a stratified sample. 10 million weights, times two solvers, limit
    the number of features; the most frequent are kept. Raises ValueError if the texts have no words.
    """
    begin, rows = time.perf_counter(), np.arange(len(texts))
    name, estimator, outputs = task.scores.linear_model(targets, seed)
    if (targets == targets[0]).all():  # outside of a fold there may be one class
        predicted = np.repeat(targets[:1], len(held_out_targets), axis=0)
    else:
        if len(rows) > MAX_ROWS or outputs > MAX_CLASSES:
            rows = cap_rows(task.targets.stratify_by(targets), MAX_ROWS, seed=seed)
        weights = MAX_WEIGHTS * (_BAYES_WEIGHTS if name == BAYES else 1)
        features = make_features(texts, weights // (2 * outputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, many classes: not actionable
            estimator.fit(features.fit_transform([texts[row] for row in rows.tolist()]), targets[rows])
        blocks = [held_out_texts[start : start + _BLOCK] for start in range(0, len(held_out_texts), _BLOCK)]
        predicted = np.concatenate([estimator.predict(features.transform(block)) for block in blocks])
    seconds = time.perf_counter() - begin
    return Baseline(task.scores.metrics(predicted, held_out_targets), len(rows), seconds, name, predicted)


def cross_validate(
    task: Task, texts: Sequence[str], targets: Array, folds: npt.NDArray[np.int64], seed: int
) -> Baseline:
    """Predict each row by a baseline fitted on the other folds; `folds` (rows,) are numbers from 0."""
    predicted, parts = np.empty_like(targets), []
    for number in range(int(folds.max()) + 1):
        train, held_out = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        selected = [[texts[row] for row in rows.tolist()] for rows in (train, held_out)]
        parts.append(fit(task, selected[0], targets[train], selected[1], targets[held_out], seed))
        predicted[held_out] = parts[-1].predicted
    rows, seconds = min(part.rows for part in parts), sum(part.seconds for part in parts)
    return Baseline(task.scores.metrics(predicted, targets), rows, seconds, parts[0].name, predicted)


def make_features(texts: Sequence[str], most: int) -> Any:
    """An unfitted vectorizer of words and characters; each kind of n-gram has at most `most` features.

    Of characters alone where texts have no spaces.
    """
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


logistic_regression = functools.partial(LogisticRegression, C=10)
ridge_regression = functools.partial(Ridge, alpha=1.0, solver="sag")
# One pass over the rows, for very many classes (Rennie et al., 2003, "Tackling the Poor Assumptions").
naive_bayes = ComplementNB


class ThresholdedRegression:
    """One logistic regression per label, each with a threshold chosen by F1 on a fifth of the rows."""

    def __init__(self, seed: int):
        self.seed = seed

    def fit(self, features: Any, targets: Array) -> Self:
        """Fit on sparse features (rows, width) and 0 or 1 for each label (rows, labels)."""
        order = np.random.default_rng(self.seed).permutation(len(targets))
        held_out, fit_rows = np.split(order, [max(1, round(_HELD_OUT * len(order)))])
        model = OneVsRestClassifier(LogisticRegression(C=10, solver="liblinear", random_state=self.seed))
        probabilities = model.fit(features[fit_rows], targets[fit_rows]).predict_proba(features[held_out])
        self._thresholds = choose_thresholds(probabilities, targets[held_out])
        self._model = model.fit(features, targets)
        return self

    def predict(self, features: Any) -> npt.NDArray[np.uint8]:
        return (self._model.predict_proba(features) >= self._thresholds).astype(np.uint8)


class ColumnModels:
    """A model for each of several label columns, fitted on the rows that have it."""

    def __init__(self, columns: Sequence[Column], models: Sequence[Any]):
        self._columns, self._models = columns, list(models)

    def fit(self, features: Any, targets: Array) -> Self:
        """Fit on sparse features (rows, width) and the targets (rows, cells) of all columns."""
        for place, column in enumerate(self._columns):
            rows = column.rows(targets)
            own = column.unpack(targets[rows])
            if not len(rows):  # outside of a fold
                rows, own = np.arange(1), np.zeros_like(column.unpack(np.abs(targets[:1])))
            if (own == own[0]).all():
                self._models[place] = DummyRegressor(strategy="constant", constant=own[0])
            self._models[place].fit(features[rows], own)
        return self

    def predict(self, features: Any) -> npt.NDArray[np.float32]:
        parts = [np.asarray(model.predict(features)) for model in self._models]
        return np.concatenate([part.reshape(features.shape[0], -1) for part in parts], axis=1).astype(np.float32)

"""Output layers fitted on standardized features."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, RidgeCV
from threadpoolctl import threadpool_limits

from classify.evaluation.metrics import Array

# A decorator. Solvers multiply matrices too small for several threads, which cost more than they save: on two cores
# shared with other work, ten times as long.
one_blas_thread = threadpool_limits.wrap(limits=1, user_api="blas")
# C of logistic regression on features of an encoder that was trained on the same labels; see docs/recipe.md.
TRAINED_ENCODER_C = 0.003
# C that cross-validation chooses from: noisy labels need small values, many classes large ones.
C_VALUES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
# Strengths of the ridge that leave-one-out cross-validation chooses from.
_ALPHAS = np.logspace(0, 5, 11).tolist()
# Classes above which a linear discriminant takes the place of the regression, each of whose steps is a product of rows
# and classes: one fit of 1,000 classes takes seconds, of 10,000 an hour.
MOST_CLASSES = 1_000
# How much of its covariance is that of a sphere.
_SHRINKAGE = 0.1
_FOLDS = 3
# Smallest probability whose logarithm counts in the choice of C.
_LEAST_PROBABILITY = 1e-9


def standardize(features: Array) -> tuple[npt.NDArray[np.float32], Array, Array]:
    """Features (rows, width) with mean 0 and deviation 1, and the mean and deviation (width,) that they had."""
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    return ((features - mean) / scale).astype(np.float32), mean, scale


@one_blas_thread
def fit_logistic(standard: Array, targets: Array, c: float, row_weights: Array | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged, many classes: not actionable
        return LogisticRegression(C=c, max_iter=200, tol=1e-3).fit(standard, targets, sample_weight=row_weights)


@one_blas_thread
def fit_discriminant(standard: Array, numbers: Array, classes: int, row_weights: Array | None) -> tuple[Array, Array]:
    """Weight (classes, width) and bias (classes,) of a linear discriminant, whose covariance all classes share.

    One pass over the rows and one system of equations, whatever the number of classes; on 77 classes it is two points
    less accurate than a logistic regression. Hastie et al., 2009, "The Elements of Statistical Learning", section 4.3.
    """
    weights = np.ones(len(numbers)) if row_weights is None else row_weights.astype(np.float64)
    totals = np.bincount(numbers, weights, minlength=classes)
    middles = csr_array((weights, (numbers, np.arange(len(numbers)))), shape=(classes, len(numbers))) @ standard
    middles /= np.maximum(totals, 1e-9)[:, None]
    rest = (standard - middles[numbers]) * np.sqrt(weights)[:, None]
    within = rest.T @ rest / weights.sum()
    size = np.trace(within) / len(within)
    within = (1 - _SHRINKAGE) * within + _SHRINKAGE * max(size, _LEAST_PROBABILITY) * np.eye(len(within))
    weight = np.linalg.solve(within, middles.T).T
    return weight, np.log(np.maximum(totals, 1e-9) / totals.sum()) - (weight * middles).sum(axis=1) / 2


@one_blas_thread
def fit_ridge(standard: Array, targets: Array, alpha: float | None, row_weights: Array | None) -> Any:
    model = RidgeCV(alphas=_ALPHAS if alpha is None else [alpha])
    return model.fit(standard.astype(np.float64), targets, sample_weight=row_weights)


def average_one(*weights: Array | None) -> Array | None:
    """The product of those weights (rows,) that are given, 1 on average, so that C regularizes as without them."""
    given = [factor for factor in weights if factor is not None]
    product = functools.reduce(np.multiply, given) if given else None
    return None if product is None else product / product.mean()


@one_blas_thread
def choose_c(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], row_weights: Array | None = None
) -> float:
    """The C with the lowest log loss in cross-validation on standardized features (rows, width).

    Each fold goes from strong to weak regularization with a warm start, so the search costs little more than one fit.
    """
    weights = np.ones(len(labels), dtype=np.float32) if row_weights is None else row_weights
    fold = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels, kind="stable")  # deal out each class in turn: stratified folds
    fold[by_class] = np.arange(len(labels)) % _FOLDS
    losses = np.zeros(len(C_VALUES))
    for number in range(_FOLDS):
        held_out = fold == number
        if not held_out.any() or len(np.unique(labels[~held_out])) < 2:
            continue
        solver = LogisticRegression(max_iter=100, tol=1e-2, warm_start=True)
        for place, c in enumerate(C_VALUES):
            solver.C = c
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solver.fit(features[~held_out], labels[~held_out], sample_weight=weights[~held_out])
            probabilities = solver.predict_proba(features[held_out])
            column = np.searchsorted(solver.classes_, labels[held_out]).clip(max=len(solver.classes_) - 1)
            of_label = probabilities[np.arange(len(column)), column]
            of_label[solver.classes_[column] != labels[held_out]] = 0.0  # class without rows outside this fold
            losses[place] -= np.log(of_label.clip(min=_LEAST_PROBABILITY)) @ weights[held_out]
    return C_VALUES[int(losses.argmin())]

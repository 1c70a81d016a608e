"""An output layer from a logistic regression on what it reads."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

_FOLDS = 3
# Inverse regularisation on standardised features: noisy labels want the first ones, many classes the last.
_STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_LEAST_PROBABILITY = 1e-9


def fit(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Weights (classes, width) and biases (classes,) of a logistic regression on (rows, width) features.

    Features are standardised for the solver, and the scaling is folded back into the weights. Two classes have one
    direction w: it becomes -w/2 and +w/2, whose softmax is the same sigmoid. A class without a row in `labels`
    (all of it lies in the evaluation part) keeps weight zero and the bias of the rarest class less one.
    """
    from sklearn.linear_model import LogisticRegression

    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    standard = ((features - mean) / scale).astype(np.float32)
    weight = np.zeros((classes, features.shape[1]))
    bias = np.zeros(classes)
    present = np.unique(labels)
    if len(present) > 1:
        solver = LogisticRegression(C=strength_for(standard, labels), max_iter=200, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, many classes: nothing the person can act on
            solver.fit(standard, labels)
        if len(present) == 2:
            half, offset = solver.coef_[0] / 2, float(solver.intercept_[0]) / 2
            weight[present], bias[present] = np.stack([-half, half]), [-offset, offset]
        else:
            weight[present], bias[present] = solver.coef_, solver.intercept_
    absent = np.setdiff1d(np.arange(classes), present)
    bias[absent] = bias[present].min() - 1.0
    weight = weight / scale
    bias = bias - weight @ mean
    return weight.astype(np.float32), bias.astype(np.float32)


def strength_for(features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    """The C with the lowest log loss in cross-validation, on standardised features (rows, width).

    Each fold goes from strong to weak regularisation and starts where it ended before, so all of it costs little more
    than one fit from zero.
    """
    from sklearn.linear_model import LogisticRegression

    fold = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels, kind="stable")  # rows of a class go to the folds in turn, so each has its share
    fold[by_class] = np.arange(len(labels)) % _FOLDS
    losses = np.zeros(len(_STRENGTHS))
    for number in range(_FOLDS):
        held_out = fold == number
        if not held_out.any() or len(np.unique(labels[~held_out])) < 2:
            continue
        solver = LogisticRegression(max_iter=100, tol=1e-2, warm_start=True)
        for place, strength in enumerate(_STRENGTHS):
            solver.C = strength
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solver.fit(features[~held_out], labels[~held_out])
            probabilities = solver.predict_proba(features[held_out])
            column = np.searchsorted(solver.classes_, labels[held_out]).clip(max=len(solver.classes_) - 1)
            of_label = probabilities[np.arange(len(column)), column]
            of_label[solver.classes_[column] != labels[held_out]] = 0.0  # a class with no row outside this fold
            losses[place] -= np.log(of_label.clip(min=_LEAST_PROBABILITY)).sum()
    return _STRENGTHS[int(losses.argmin())]

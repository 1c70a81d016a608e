"""Weights of classes, and output layers fitted on standardized features."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from classify.errors import InputError

if TYPE_CHECKING:
    import torch

# Values of --class-weights that name no file.
NONE = "none"
BALANCED = "balanced"
# Exponent of the focal loss, the best in its paper (table 1b).
FOCAL_GAMMA = 2.0
# C of logistic regression on features of an encoder that was trained on the same labels; see docs/recipe.md.
TRAINED_ENCODER_C = 0.003
# C that cross-validation chooses from: noisy labels need small values, many classes large ones.
C_VALUES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_FOLDS = 3
# Smallest probability whose logarithm counts in the choice of C.
_LEAST_PROBABILITY = 1e-9

Array = npt.NDArray[Any]
Weights = npt.NDArray[np.float32] | None
# Weights (outputs, width) and biases (outputs,).
Layer = tuple[Array, Array]


def standardize(features: Array) -> tuple[npt.NDArray[np.float32], Array, Array]:
    """Features (rows, width) with mean 0 and deviation 1, and the mean and deviation (width,) that they had."""
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    return ((features - mean) / scale).astype(np.float32), mean, scale


def fold_back(weight: Array, bias: Array, mean: Array, scale: Array) -> Layer:
    """The output layer on features as they are, from one on standardized features."""
    weight = weight / scale
    bias = bias - weight @ mean
    return weight.astype(np.float32), bias.astype(np.float32)


def mean_one(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale row weights to 1 on average, so that C regularizes as without them."""
    return weights / weights.mean()


def fit_logistic(standard: Array, targets: Array, c: float, row_weights: Weights) -> Any:
    """A fitted logistic regression on standardized features (rows, width)."""
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged, many classes: not actionable
        return LogisticRegression(C=c, max_iter=200, tol=1e-3).fit(standard, targets, sample_weight=row_weights)


def choose_c(features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], row_weights: Weights = None) -> float:
    """The C with the lowest log loss in cross-validation on standardized features (rows, width).

    Each fold goes from strong to weak regularization with a warm start, so the search costs little more than one fit.
    """
    from sklearn.linear_model import LogisticRegression

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


def send_weights(weights: Weights, device: torch.device) -> torch.Tensor | None:
    """Weights (labels,), if there are any, on a device."""
    import torch

    from classify.modeling.packing import send

    return None if weights is None else send(torch.from_numpy(weights), device)


def read_class_weights(setting: str, labels: Sequence[str]) -> Weights:
    """The weight of each label by its name in JSON, or in a file of it; None where the setting is neither.

    Raises InputError where it is not an object with a positive number for each label and no others.
    """
    if setting in (NONE, BALANCED):
        return None
    flag = f"--class-weights {setting}"
    expected = "expected balanced, or a JSON file such as " + json.dumps(dict.fromkeys(labels[:2], 1.0))
    try:
        weights = json.loads(setting if setting.startswith("{") else Path(setting).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{flag}: {expected}. It cannot be read: {error}.") from None
    if not isinstance(weights, dict):
        raise InputError(f"{flag}: {expected}. Got a {type(weights).__name__} instead.")
    wrong = [*sorted(set(weights) - set(labels)), *sorted(set(labels) - set(weights))]
    if wrong:
        which = "no weight for" if wrong[0] in labels else "no label of --data is"
        raise InputError(f"{flag}: {which} {wrong[0]!r}; {expected}, with a number for each label.")
    for label, weight in weights.items():
        number = weight if isinstance(weight, int | float) and not isinstance(weight, bool) else math.nan
        if not 0 < number < math.inf:
            raise InputError(f"{flag}: the weight of {label!r} must be a number above 0. Got {weight!r} instead.")
    return np.array([weights[label] for label in labels], dtype=np.float32)

"""Fit output layers on standardized features, and fold the standardization into their weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# C of logistic regression on features of an encoder that was trained on the same labels; see docs/recipe.md.
TRAINED_ENCODER_C = 0.003

# Weights and biases, of features with mean 0 and deviation 1.
_Solution = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
Weights = npt.NDArray[np.float32] | None


def mean_one(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale row weights to 1 on average, so that C regularizes as without them."""
    return weights / weights.mean()


def fit_standardized(
    features: npt.NDArray[np.float32], solve: Callable[[npt.NDArray[np.float32]], _Solution]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the weights (outputs, width) and biases (outputs,) that `solve` finds for standardized features.

    `features` are (rows, width).
    """
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    weight, bias = solve(((features - mean) / scale).astype(np.float32))
    weight = weight / scale
    bias = bias - weight @ mean
    return weight.astype(np.float32), bias.astype(np.float32)

"""Weights of classes, and output layers fitted on standardized features."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from classify.errors import InputError

if TYPE_CHECKING:
    import torch

# C of logistic regression on features of an encoder that was trained on the same labels; see docs/recipe.md.
TRAINED_ENCODER_C = 0.003

# Weights and biases, of features with mean 0 and deviation 1.
_Solution = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
Weights = npt.NDArray[np.float32] | None


def mean_one(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale row weights to 1 on average, so that C regularizes as without them."""
    return weights / weights.mean()


def standardize(
    features: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return features (rows, width) with mean 0 and deviation 1, and what mean and deviation (width,) were."""
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    return ((features - mean) / scale).astype(np.float32), mean, scale


def fit_standardized(
    features: npt.NDArray[np.float32], solve: Callable[[npt.NDArray[np.float32]], _Solution]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The weights (outputs, width) and biases (outputs,) that `solve` finds for standardized features.

    `features` are (rows, width).
    """
    standard, mean, scale = standardize(features)
    weight, bias = solve(standard)
    weight = weight / scale
    bias = bias - weight @ mean
    return weight.astype(np.float32), bias.astype(np.float32)


# Values of --class-weights that name no file.
NONE, BALANCED = "none", "balanced"


def send_weights(weights: npt.NDArray[np.float32] | None, device: torch.device) -> torch.Tensor | None:
    """Return weights (labels,) on a device; None without any."""
    import torch

    from classify.modeling.layout import send

    return None if weights is None else send(torch.from_numpy(weights), device)


def read_class_weights(setting: str, labels: Sequence[str]) -> npt.NDArray[np.float32] | None:
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

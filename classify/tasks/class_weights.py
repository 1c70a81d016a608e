"""Weights of classes: from a file, or by their frequency."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from classify.errors import InputError

if TYPE_CHECKING:
    import torch

# Values of --class-weights that name no file.
NONE, BALANCED = "none", "balanced"


def send_weights(weights: npt.NDArray[np.float32] | None, device: torch.device) -> torch.Tensor | None:
    """Return weights (labels,) on a device; None without any."""
    import torch

    from classify.modeling.layout import send

    return None if weights is None else send(torch.from_numpy(weights), device)


def read_class_weights(setting: str, labels: Sequence[str]) -> npt.NDArray[np.float32] | None:
    """Return the weight of each label by its name in a JSON file; None where the setting names no file.

    Raises InputError where it is not an object with a positive number for each label and no others.
    """
    if setting in (NONE, BALANCED):
        return None
    flag = f"--class-weights {setting}"
    expected = "expected balanced, or a JSON file such as " + json.dumps(dict.fromkeys(labels[:2], 1.0))
    try:
        weights = json.loads(Path(setting).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{flag}: {expected}. It cannot be read: {error}.") from None
    if not isinstance(weights, dict):
        raise InputError(f"{flag}: {expected}. Got a {type(weights).__name__} instead.")
    wrong = sorted(set(labels) ^ set(weights))
    if wrong:
        which = "no weight for" if wrong[0] in labels else "no label of --data is"
        raise InputError(f"{flag}: {which} {wrong[0]!r}; {expected}, with a number for each label.")
    for label, weight in weights.items():
        number = weight if isinstance(weight, int | float) and not isinstance(weight, bool) else math.nan
        if not 0 < number < math.inf:
            raise InputError(f"{flag}: the weight of {label!r} must be a number above 0. Got {weight!r} instead.")
    return np.array([weights[label] for label in labels], dtype=np.float32)

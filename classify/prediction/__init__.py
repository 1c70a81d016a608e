"""Prediction with a result folder; imports no training code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.prediction import (
        drift as drift,
        evaluate as evaluate,
        explanations as explanations,
        inputs as inputs,
        labelling as labelling,
        labels_file as labels_file,
        predictor as predictor,
        pytorch as pytorch,
        suggest as suggest,
        zero_shot as zero_shot,
    )

__getattr__ = submodules(__name__)

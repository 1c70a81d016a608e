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
        onnx as onnx,
        predictor as predictor,
        pytorch as pytorch,
        suggest as suggest,
    )

__getattr__ = submodules(__name__)

"""Evaluation: logits, metrics, and what scores and predictions show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.evaluation import (
        bootstrap as bootstrap,
        calibration as calibration,
        metrics as metrics,
        scope as scope,
        suspects_file as suspects_file,
    )

__getattr__ = submodules(__name__)

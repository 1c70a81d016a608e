"""Evaluation: logits, metrics, and what scores and predictions show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.evaluation import (
        advice as advice,
        bootstrap as bootstrap,
        calibration as calibration,
        inference as inference,
        learning_curve as learning_curve,
        metrics as metrics,
        scope as scope,
        scored_rows as scored_rows,
        slices as slices,
        suspects_file as suspects_file,
    )

__getattr__ = submodules(__name__)

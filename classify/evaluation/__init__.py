"""Evaluation: logits, metrics, baselines and predictions.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.evaluation import (
        advice as advice,
        automation as automation,
        baseline as baseline,
        calibration as calibration,
        inference as inference,
        label_noise as label_noise,
        learning_curve as learning_curve,
        metrics as metrics,
        multi_label_metrics as multi_label_metrics,
        predictions_file as predictions_file,
        scope as scope,
        scored_rows as scored_rows,
        slices as slices,
        suspects_file as suspects_file,
    )

__getattr__ = submodules(__name__)

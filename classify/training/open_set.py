"""Fit and score the rejection of texts that belong to none of the classes, when a run ends (see `evaluation.scope`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.split_rows import cap_rows
from classify.data.splits import Split
from classify.distributed import sharding
from classify.evaluation.scope import EXAMPLES, Held, Scope
from classify.training.setup import TrainingContext


@dataclass(frozen=True)
class OpenSet:
    """A fitted scope: its probabilities of the scored rows, and of those of none of the classes with their logits."""

    scope: Scope
    in_scope: npt.NDArray[np.float32]
    outside: npt.NDArray[np.float32]
    outside_logits: npt.NDArray[np.float32]
    metrics: dict[str, Any]


def fit_scope(context: TrainingContext) -> OpenSet | None:
    """Fit the scope on held-out rows and score it; None without --out-of-scope-label. A collective."""
    label, splits = context.config.data.out_of_scope_label, context.splits
    if label is None:
        return None
    head = sharding.gather_full(context.strategy.output_layer(), keep=True)
    weight, bias = (head[name].float().cpu().numpy() for name in ("weight", "bias"))

    def compute(split: Split) -> Held:
        features = context.compute_features(split)
        return Held(features, features @ weight.T + bias)

    train, task = splits.train, context.inputs.task
    rows = cap_rows(task.stratify_by(train.targets), np.arange(len(train)), EXAMPLES, seed=context.config.training.seed)
    examples = context.compute_features(Split(train.table, train.rows[rows], train.targets[rows]))
    inside = compute(splits.validation)
    scored = inside if splits.test is None else compute(splits.test)
    fitted = [compute(split) for split in splits.outside]
    outside = None
    if fitted:
        outside = Held(*(np.concatenate(parts) for parts in zip(*map(Held.arrays, fitted), strict=True)))
    scope = Scope.fit(label, examples, train.targets[rows], inside, splits.validation.targets, outside)
    in_scope = scope.probabilities(scored.features, scored.logits)
    rejected = np.empty((0, len(bias)), dtype=np.float32)
    outside_in_scope = np.empty(0, dtype=np.float32)
    if splits.outside_scored is not None:
        rest = compute(splits.outside_scored)
        rejected, outside_in_scope = rest.logits, scope.probabilities(rest.features, rest.logits)
    right = scored.logits.argmax(axis=1) == splits.scored.targets
    metrics = scope.describe(in_scope, right, outside_in_scope)
    return OpenSet(scope, in_scope, outside_in_scope, rejected, metrics)

"""Fit and score the rejection of texts that belong to none of the classes, when a run ends (see `evaluation.scope`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from classify.data.split_rows import cap_rows
from classify.data.splits import Split
from classify.distributed import sharding
from classify.evaluation.metrics import Array
from classify.evaluation.scope import SMALLEST, Held, Scope, measure, normalize
from classify.training.setup import TrainingContext

# Training texts to compare with.
EXAMPLES = 10_000
# Share of held-out texts of the classes that are above the default threshold.
_KEPT = 0.95
# Classes below which the confidence counts nothing: of two, one alone is left where the other is left out.
_FEWEST = 3
# Classes from which on the confidence counts as much as the similarity.
_MANY = 50


@dataclass(frozen=True)
class OpenSet:
    """A fitted scope, its probabilities (rows,) of the scored rows, and the entry of metrics.json.

    `outside` (rows, labels + 1) are the logits of scored rows of none of the classes, and their probabilities.
    """

    scope: Scope
    in_scope: npt.NDArray[np.float32]
    outside: npt.NDArray[np.float32]
    metrics: dict[str, Any]


def fit(
    label: str, examples: Array, targets: Array, inside: Held, inside_targets: Array, outside: Held | None
) -> Scope:
    """Fit a scope on held-out rows of the classes and on rows `outside` of them.

    Without such rows each class is left out in turn: its rows are outside of the others. How much the confidence is
    worth follows from the number of classes. The threshold keeps 95 % of the rows `inside`.
    """
    examples = normalize(examples)
    own, others = measure(examples, inside), []
    if outside is not None:
        others.append(measure(examples, outside))
    else:
        for number in np.unique(inside_targets).tolist():
            left_out, rest = inside.take(np.flatnonzero(inside_targets == number)), targets != number
            if rest.any():
                left_out.logits[:, number] = -np.inf
                others.append(measure(examples[rest], left_out))
    measures = np.concatenate([own, *others])
    classes = inside.logits.shape[1]
    mixture = np.array([[1.0], [0.0 if classes < _FEWEST else min(1.0, classes / _MANY)]])
    middle, scale = own.mean(axis=0), own.std(axis=0) + SMALLEST
    is_inside = np.arange(len(measures)) < len(own)
    model = LogisticRegression(class_weight="balanced").fit((measures - middle) / scale @ mixture, is_inside)
    # Where the rows do not show it, more similar is more probable all the same.
    slope = np.where(model.coef_[0] > 0, model.coef_[0], 1.0)
    weights = mixture @ slope / scale
    scope = Scope(label, 0.0, examples.astype(np.float16), weights, float(model.intercept_[0] - weights @ middle))
    kept = np.quantile(scope.probabilities(*inside), 1 - _KEPT, method="lower")
    return replace(scope, threshold=float(kept))


def fit_scope(context: TrainingContext) -> OpenSet | None:
    """Fit the scope on held-out rows and score it; None without --out-of-scope-label. A collective."""
    label, splits = context.config.data.out_of_scope_label, context.splits
    if label is None:
        return None
    head = sharding.gather_full(context.strategy.weights.output_layer(), keep=True)
    weight, bias = (head[name].float().cpu().numpy() for name in ("weight", "bias"))

    def compute(split: Split) -> Held:
        features = context.compute_features(split)
        return Held(features, features @ weight.T + bias)

    train, task = splits.train, context.inputs.task
    rows = cap_rows(task.targets.stratify_by(train.targets), EXAMPLES, seed=context.config.training.seed)
    examples, targets = context.compute_features(train.take(rows)), train.targets[rows]
    if (kept := context.inputs.kept) is not None:  # else texts of its classes would be unlike all examples
        examples = np.concatenate([examples, kept.features.astype(np.float32)])
        targets = np.concatenate([targets, kept.targets])
    validation = compute(splits.validation)
    scored = validation if splits.test is None else compute(splits.test)
    # Duplicates, and copies of training texts, would fit the score and count in it several times.
    held_out = _independent(context, splits.validation, "validation")
    outside = [compute(split).take(_independent(context, split)) for split in splits.outside]
    scope = fit(
        label,
        examples,
        targets,
        validation.take(held_out),
        splits.validation.targets[held_out],
        Held(*map(np.concatenate, zip(*outside, strict=True))) if outside else None,
    )
    in_scope = scope.probabilities(scored.features, scored.logits)
    rejected, counted = np.empty((0, len(bias) + 1), dtype=np.float32), np.empty(0, dtype=np.int64)
    if (rest := splits.outside_scored) is not None:
        held = compute(rest)
        rejected = np.column_stack([held.logits, scope.probabilities(held.features, held.logits)])
        counted = _independent(context, rest)
    new = held_out if splits.test is None else _independent(context, splits.test, "test")
    right = (scored.logits.argmax(axis=1) == splits.scored.targets)[new]
    metrics = scope.describe(in_scope[new], right, rejected[counted, -1], fitted=splits.test is None)
    return OpenSet(scope, in_scope, rejected, metrics)


def _independent(context: TrainingContext, split: Split, name: str = "") -> npt.NDArray[np.int64]:
    """The first row of each text of a split that is not in the training split, in order.

    `name` is that of a split which may share texts with it; where it shares all, they count all the same.
    """
    hashes = split.table.text_hashes(context.splits.columns.text)[split.rows]
    first = np.sort(np.unique(hashes, return_index=True)[1])
    new = first[~np.isin(first, context.splits.in_training.get(name, ()))]
    return new if len(new) else first

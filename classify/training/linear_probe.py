"""Start the head from a linear probe: a logistic regression on the frozen encoder's features, set as output layer.

Fine-tuning from a random head distorts pretrained features; a linear probe avoids that (LP-FT: Kumar et al., 2022,
"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", section 4).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from classify.data.split_rows import cap_rows
from classify.data.tokenize import TokenizedSplit
from classify.evaluation.inference import compute_logits
from classify.modeling.kept_features import KeptFeatures
from classify.tasks import heads
from classify.tasks.base import FitRows, Task, Weights
from classify.training.strategies.base import Strategy

# Rows to learn from. More rows improve the probe, but not the fine-tuned model, and each costs
# a forward pass; benchmarks/recipe.md has what was tried.
FEWEST_ROWS = 1_000
ROWS_PER_CLASS = 50
MOST_ROWS = 20_000
# Of very many classes, whose probe is one pass over the rows.
FINAL_ROWS_PER_CLASS = 20
# Deviation of features relative to their size below which dropout drowns them: 0.004 of a random encoder, 0.38 to 0.92
# of pretrained ones.
_NEARLY_CONSTANT = 0.05


class Learned(NamedTuple):
    """Features (n, width) of rows that the output layer has learned from, and the places (n,) of these in the data."""

    places: npt.NDArray[np.int64]
    features: npt.NDArray[np.float32]


class Probe(NamedTuple):
    """The number of rows that a probe has learned from, the seconds, and the features if they are the final ones."""

    rows: int
    seconds: float
    learned: Learned | None


def init_head_from_probe(
    strategy: Strategy,
    data: TokenizedSplit,
    task: Task,
    kept: KeptFeatures | None = None,
    *,
    is_final: bool = False,
    encoder_trained: bool = False,
) -> Probe | None:
    """Fit the probe on some of the training rows (50 per class, at least 1,000) and set the output layer to it.

    With `is_final`, when nothing is fine-tuned from it, it learns from up to 20,000. `encoder_trained`: the encoder was
    trained on these rows. Features `kept` by an earlier run join the rows. With None the head stays as it was: in
    training, with dropout, it would start worse than chance.

    The features come from all ranks; the main process fits, and its weights go to every rank, so that all start from
    the same bits. A collective.
    """
    begin = time.perf_counter()
    classifier, world = strategy.classifier, strategy.world
    limit = row_limit(len(task.labels), is_final=is_final)
    selected = cap_rows(task.targets.stratify_by(data.targets), limit, seed=strategy.config.seed)
    # In the precision of training, not of scores: rounding is negligible next to fine-tuning.
    with contextlib.nullcontext() if is_final else classifier.precision.autocast(training=True):
        features = compute_logits(classifier, data.tokens, data.rows[selected], world, features=True)
    # Features (rows, width) of a random encoder hardly differ between rows.
    if not is_final and features.std(axis=0).mean() < _NEARLY_CONSTANT * np.abs(features).mean():
        return None
    computed, fitted = features, None
    if world.is_main:
        class_weights = _class_weights(strategy, data, task, kept)
        penalty = task.head.trained_penalty(is_final=is_final) if encoder_trained else None
        rows = _join(features, data.take(selected), class_weights, task, kept)
        if kept is not None:
            penalty = _choose_penalty(rows, task)
        weight, bias = task.head.fit(rows, penalty)
        fitted = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    fitted = world.broadcast_tensors(fitted)
    strategy.weights.set_output_layer(fitted["weight"], fitted["bias"])
    learned = Learned(selected, computed) if is_final else None
    return Probe(len(selected), time.perf_counter() - begin, learned)


def refit_head(
    strategy: Strategy,
    data: TokenizedSplit,
    held_out: TokenizedSplit,
    task: Task,
    kept: KeptFeatures | None = None,
    *,
    learns_held_out: bool,
) -> tuple[npt.NDArray[np.float32], Learned]:
    """Fit the output layer again, to features of the encoder that the epochs have trained.

    Few rows a class train the layer little, where a regression finds its optimum (benchmarks/recipe.md). Features
    `kept` by an earlier run, before these epochs, join the rows: their classes may have no other. Returns the logits
    (rows, outputs) of the `held_out` rows by a layer that has not learned from them, and the features of the others.
    With `learns_held_out` the layer that is set has, under the same penalty, so a temperature of these logits fits it.
    A collective.
    """
    classifier, world, fitted = strategy.classifier, strategy.world, None
    features, held_features = (
        compute_logits(classifier, split.tokens, split.rows, world, features=True) for split in (data, held_out)
    )
    learned = Learned(np.arange(len(features)), features)
    if world.is_main:
        class_weights = _class_weights(strategy, data, task, kept)
        penalty = task.head.trained_penalty(is_final=False)
        weight, bias = task.head.fit(_join(features, data, class_weights, task, kept), penalty)
        logits = held_features @ weight.T + bias
        if learns_held_out:
            targets = task.targets.in_form_of(held_out.targets, data.targets)
            everyone = data.join(dataclasses.replace(held_out, targets=targets))
            features = np.concatenate([features, held_features])
            weight, bias = task.head.fit(_join(features, everyone, class_weights, task, kept), penalty)
        named = {"weight": weight, "bias": bias, "logits": logits}
        fitted = {name: torch.from_numpy(value) for name, value in named.items()}
    fitted = world.broadcast_tensors(fitted)
    strategy.weights.set_output_layer(fitted["weight"], fitted["bias"])
    return fitted["logits"].cpu().numpy(), learned


def probe_folds(
    strategy: Strategy, data: TokenizedSplit, task: Task, folds: npt.NDArray[np.int64], kept: KeptFeatures | None = None
) -> npt.NDArray[np.float32]:
    """Compute the logits (rows, outputs) of each fold by a probe on the other folds. A collective.

    No step trains the encoder, so its features are computed once. All probes share the penalty that is chosen on all
    rows, as the final one has; otherwise their logits differ in scale and the fitted temperature would not transfer.
    `data` may have more rows than `folds`: all probes learn from them, and from features `kept` by an earlier run.
    """
    classifier, world = strategy.classifier, strategy.world
    features = compute_logits(classifier, data.tokens, data.rows, world, features=True)
    number_of = np.concatenate([folds, np.full(len(data.rows) - len(folds), -1)])
    outputs = np.zeros((len(folds), classifier.output_layer.out_features), dtype=np.float32)
    if world.is_main:
        class_weights = _class_weights(strategy, data, task, kept)
        everyone = _join(features, data, class_weights, task, kept)
        penalty = task.head.choose_penalty(everyone) if kept is None else _choose_penalty(everyone, task)
        for number in range(int(folds.max()) + 1):
            learned, held_out = np.flatnonzero(number_of != number), np.flatnonzero(folds == number)
            rows = _join(features[learned], data.take(learned), class_weights, task, kept)
            weight, bias = task.head.fit(rows, penalty)
            outputs[held_out] = features[held_out] @ weight.T + bias
    shared = world.broadcast_tensors({"outputs": torch.from_numpy(outputs)} if world.is_main else None)
    return shared["outputs"].cpu().numpy()


def _class_weights(strategy: Strategy, data: TokenizedSplit, task: Task, kept: KeptFeatures | None) -> Weights:
    """The weights of --class-weights; beside features that are `kept`, all classes are balanced as it is."""
    if kept is not None:
        return task.head.file_weights(strategy.config)
    return task.head.class_weights(strategy.config, data.targets)


def _choose_penalty(rows: FitRows, task: Task) -> float:
    """The penalty of cross-validation, but no stronger than that of an encoder that was trained on as many classes.

    Some classes are those that it was trained on, and the log loss of the others is high: among many classes
    cross-validation would choose too strong a penalty (banking77 in seven steps: 0.857 for 0.871).
    """
    return max(task.head.choose_penalty(rows), task.head.trained_penalty(is_final=True))


def _join(
    features: npt.NDArray[np.float32],
    data: TokenizedSplit,
    class_weights: Weights,
    task: Task,
    kept: KeptFeatures | None,
) -> FitRows:
    """Rows with their features, and those `kept`; then all classes weigh the same.

    A new class has as many rows as its table, the others as many as were kept of them; neither says how frequent each
    is. Balanced weights gain 1 to 3 points where these numbers differ.
    """
    if kept is None:
        return FitRows(features, data.targets, class_weights, data.weights)
    targets = np.concatenate([data.targets, task.targets.in_form_of(kept.targets, data.targets)])
    by_class = task.head.balance(targets)
    assert by_class is not None
    weights = by_class[task.targets.stratify_by(targets)]
    if data.weights is not None:
        weights[: len(data.weights)] *= data.weights
    return FitRows(np.concatenate([features, kept.features.astype(np.float32)]), targets, class_weights, weights)


def row_limit(classes: int, *, is_final: bool) -> int:
    """The number of rows that the probe learns from at most; more where nothing is fine-tuned from it."""
    if is_final and classes > heads.MOST_CLASSES:
        return FINAL_ROWS_PER_CLASS * classes
    return MOST_ROWS if is_final else min(MOST_ROWS, max(FEWEST_ROWS, ROWS_PER_CLASS * classes))

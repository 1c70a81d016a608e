"""The head's start: a logistic regression on the frozen model's own output, folded into the classifier layer.

Fine-tuning from a random head spends its first hundreds of steps on finding the classes while it shakes the
encoder. A linear probe finds them in one pass, and fine-tuning begins where it ends (Kumar et al., 2022,
"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", section 4: LP-FT).
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from classify.data.split import cap_rows
from classify.data.tokenize import TrainingSet
from classify.distributed.world import World
from classify.evaluation.inference import features_of
from classify.modeling.classifier import LoadedModel, output_layer

# Rows to learn from. On more of them the probe itself gets better, but not what is fine-tuned from it, and each costs
# a forward pass; benchmarks/RESULTS.md has what was tried.
FEWEST_ROWS, ROWS_PER_CLASS, MOST_ROWS = 1_000, 50, 20_000


@dataclass(frozen=True)
class ProbeResult:
    """Rows the probe learned from, and the seconds it took."""

    rows: int
    seconds: float


def start_head(
    model: LoadedModel, data: TrainingSet, world: World, seed: int, *, is_final: bool = False
) -> ProbeResult:
    """Fit the probe on some of the training rows (50 a class, at least 1,000) and set the output layer to it.

    With `is_final`, when nothing is fine-tuned from it, it learns from up to 20,000.

    The features come from all ranks; the main process fits, and its weights go to every rank, so that all start from
    the same bits. A collective.
    """
    begin = time.perf_counter()
    layer = output_layer(model.stock)
    limit = MOST_ROWS if is_final else min(MOST_ROWS, max(FEWEST_ROWS, ROWS_PER_CLASS * layer.out_features))
    chosen = cap_rows(data.labels, data.rows, limit, seed=seed)
    # In the precision of training, not of scores: what a rounded feature moves, fine-tuning moves a thousandfold.
    with contextlib.nullcontext() if is_final else model.classifier.precision.autocast(training=True):
        features = features_of(model, data.tokens, chosen, world)
    if world.is_main:
        weight, bias = fit(features, data.labels[chosen], layer.out_features)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    world.broadcast_parameters(layer)
    return ProbeResult(len(chosen), time.perf_counter() - begin)


def fit(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Weights (classes, width) and biases (classes,) of a logistic regression on (rows, width) features.

    Features are standardised for the solver, and the scaling is folded back into the weights. Two classes have one
    direction w: it becomes -w/2 and +w/2, whose softmax is the same sigmoid. A class without a row in `labels`
    (all of it lies in the evaluation part) keeps weight zero and the bias of the rarest class less one.
    """
    from sklearn.linear_model import LogisticRegression

    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64) + 1e-6
    standard = ((features - mean) / scale).astype(np.float32)
    weight = np.zeros((classes, features.shape[1]))
    bias = np.zeros(classes)
    present = np.unique(labels)
    if len(present) > 1:
        solver = LogisticRegression(C=strength_for(standard, labels), max_iter=200, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, many classes: nothing the person can act on
            solver.fit(standard, labels)
        if len(present) == 2:
            half, offset = solver.coef_[0] / 2, float(solver.intercept_[0]) / 2
            weight[present], bias[present] = np.stack([-half, half]), [-offset, offset]
        else:
            weight[present], bias[present] = solver.coef_, solver.intercept_
    absent = np.setdiff1d(np.arange(classes), present)
    bias[absent] = bias[present].min() - 1.0
    weight = weight / scale
    bias = bias - weight @ mean
    return weight.astype(np.float32), bias.astype(np.float32)


def strength_for(features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    """The C with the lowest log loss in cross-validation, on standardised features (rows, width).

    Each fold goes from strong to weak regularisation and starts where it ended before, so all of it costs little more
    than one fit from zero.
    """
    from sklearn.linear_model import LogisticRegression

    fold = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels, kind="stable")  # rows of a class go to the folds in turn, so each has its share
    fold[by_class] = np.arange(len(labels)) % _FOLDS
    losses = np.zeros(len(_STRENGTHS))
    for number in range(_FOLDS):
        held_out = fold == number
        if not held_out.any() or len(np.unique(labels[~held_out])) < 2:
            continue
        solver = LogisticRegression(max_iter=100, tol=1e-2, warm_start=True)
        for place, strength in enumerate(_STRENGTHS):
            solver.C = strength
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solver.fit(features[~held_out], labels[~held_out])
            probabilities = solver.predict_proba(features[held_out])
            column = np.searchsorted(solver.classes_, labels[held_out]).clip(max=len(solver.classes_) - 1)
            of_label = probabilities[np.arange(len(column)), column]
            of_label[solver.classes_[column] != labels[held_out]] = 0.0  # a class with no row outside this fold
            losses[place] -= np.log(of_label.clip(min=_LEAST_PROBABILITY)).sum()
    return _STRENGTHS[int(losses.argmin())]


_FOLDS = 3
# Inverse regularisation on standardised features: noisy labels want the first ones, many classes the last.
_STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_LEAST_PROBABILITY = 1e-9

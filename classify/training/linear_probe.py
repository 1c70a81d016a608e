"""The head's start: a logistic regression on the frozen model's own output, folded into the classifier layer.

Fine-tuning from a random head spends its first hundreds of steps on finding the classes while it shakes the
encoder. A linear probe finds them in one pass, and fine-tuning begins where it ends (Kumar et al., 2022,
"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", section 4: LP-FT).
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
import torch

from classify.data.split_rows import cap_rows
from classify.data.tokenize import TrainingSet
from classify.distributed.world import World
from classify.evaluation.inference import features_of
from classify.modeling.classifier import LoadedModel, output_layer
from classify.tasks.base import Task

# Rows to learn from. On more of them the probe itself gets better, but not what is fine-tuned from it, and each costs
# a forward pass; benchmarks/RESULTS.md has what was tried.
FEWEST_ROWS, ROWS_PER_CLASS, MOST_ROWS = 1_000, 50, 20_000


@dataclass(frozen=True)
class ProbeResult:
    """Rows the probe learned from, and the seconds it took."""

    rows: int
    seconds: float


def init_head_from_probe(
    model: LoadedModel, data: TrainingSet, task: Task, world: World, seed: int, *, is_final: bool = False
) -> ProbeResult:
    """Fit the probe on some of the training rows (50 a class, at least 1,000) and set the output layer to it.

    With `is_final`, when nothing is fine-tuned from it, it learns from up to 20,000.

    The features come from all ranks; the main process fits, and its weights go to every rank, so that all start from
    the same bits. A collective.
    """
    begin = time.perf_counter()
    layer = output_layer(model.stock)
    every = np.arange(len(data.rows))
    chosen = cap_rows(task.stratify_by(data.targets), every, row_limit(model, is_final=is_final), seed=seed)
    # In the precision of training, not of scores: what a rounded feature moves, fine-tuning moves a thousandfold.
    with contextlib.nullcontext() if is_final else model.classifier.precision.autocast(training=True):
        features = features_of(model, data.tokens, data.rows[chosen], world)
    if world.is_main:
        weight, bias = task.fit_head(features, data.targets[chosen])
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    world.broadcast_parameters(layer)
    return ProbeResult(len(chosen), time.perf_counter() - begin)


def row_limit(model: LoadedModel, *, is_final: bool) -> int:
    """Return the number of rows that the probe learns from at most; more where nothing is fine-tuned from it."""
    classes = output_layer(model.stock).out_features
    return MOST_ROWS if is_final else min(MOST_ROWS, max(FEWEST_ROWS, ROWS_PER_CLASS * classes))

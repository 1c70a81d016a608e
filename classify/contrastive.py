"""With few rows: texts of a class are pulled together, and classes apart, before the head starts.

A handful of texts a class say little by themselves, but every two of them say whether they belong together. So SetFit
(Tunstall et al., 2022, "Efficient Few-Shot Learning Without Prompts", section 3) first trains an encoder on pairs. Here
all pairs of a batch count in one pass, so some dozens of steps do what a pass over single pairs takes hundreds for.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from classify.config import TrainingConfig
from classify.data.tokens import TrainingSet
from classify.model import LoadedModel, output_layer
from classify.optimization import learning_rate_factor, make_optimizer, set_learning_rate
from classify.runtime import Runtime

# Rows of a step; of long texts as many as hold so many tokens.
_ROWS, _FEWEST_ROWS, _TOKENS = 32, 8, 8_192
_WARMUP, _CLIP = 0.1, 1.0


def pull_together(model: LoadedModel, data: TrainingSet, runtime: Runtime, config: TrainingConfig, steps: int) -> float:
    """Train all but the output layer on pairs of rows for some steps; returns the seconds it took.

    The main process computes, and its weights go to every rank, so the result does not depend on how many there are.
    A collective.
    """
    begin = time.perf_counter()
    if runtime.is_main:
        _train(model, data, runtime.device, config, steps)
    runtime.broadcast_parameters(model.stock)
    return time.perf_counter() - begin


def _train(model: LoadedModel, data: TrainingSet, device: torch.device, config: TrainingConfig, steps: int) -> None:
    optimizer = make_optimizer(model.classifier, config, device)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    draw = np.random.default_rng(config.seed)
    rows = int(np.clip(_TOKENS / data.tokens.lengths_of(data.rows).mean(), _FEWEST_ROWS, _ROWS))
    features: list[torch.Tensor] = []
    hook = output_layer(model.stock).register_forward_pre_hook(lambda _, args: features.append(args[0]))
    # Without a gradient scaler fp16 would lose small gradients; what this costs on a few rows is little.
    is_fp16 = model.classifier.precision.half is torch.float16
    forward = model.classifier.logits if is_fp16 else model.classifier
    was_training = model.classifier.training
    model.classifier.train()
    torch.manual_seed(config.seed)
    try:
        for step in range(steps):
            set_learning_rate(optimizer, config.peak_learning_rate * learning_rate_factor(step, steps, _WARMUP))
            chosen = draw_rows(data.labels[data.rows], rows, draw)
            features.clear()
            forward(model.batch(data.tokens, data.rows[chosen]).to(device))
            labels = torch.from_numpy(data.labels[data.rows[chosen]]).to(features[0].device)
            pair_loss(features[0][: len(chosen)].float(), labels).backward()
            torch.nn.utils.clip_grad_norm_(trained, _CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    finally:
        hook.remove()
        model.classifier.train(was_training)


def draw_rows(labels: npt.NDArray[np.int64], count: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    """About `count` places in `labels`, each class as often as the others, at least twice where it can be.

    Of more classes than half the count some are left out.
    """
    classes = np.unique(labels)
    if 2 * len(classes) > count:
        classes = draw.choice(classes, count // 2, replace=False)
    each = max(2, count // len(classes))
    places = [np.flatnonzero(labels == one) for one in classes]
    return np.concatenate([draw.choice(of, min(each, len(of)), replace=False) for of in places])


def pair_loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the cosine of each two rows, whose aim is 1 within a class and 0 between two.

    features (n, width), labels (n,). Both kinds of pairs weigh the same; a kind that does not occur counts for nothing.
    """
    unit = normalize(features, dim=1)
    same = labels[:, None] == labels[None, :]
    pairs = torch.triu(torch.ones_like(same), diagonal=1)
    errors = (unit @ unit.T - same.float()) ** 2
    kinds = [errors[pairs & kind].mean() for kind in (same, ~same) if bool((pairs & kind).any())]
    return torch.stack(kinds).mean()

"""The optimizer's parameter groups, and the learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.launch.devices import accelerator_of
from classify.modeling.layers import parameter_depths

# Steps over which "inverse_sqrt" falls by the root of 2 where there is no warmup, as in transformers.
_TIMESCALE = 10_000


def make_optimizer(
    model: nn.Module, weights: Mapping[str, torch.Tensor], config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Create AdamW (Loshchilov and Hutter, 2019) with no weight decay on biases and norms, i.e. on vectors.

    With a layer-wise decay below 1 each layer's learning rate is that of the layer above times the decay; the
    embeddings are below the first layer (Sun et al., 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.4).

    `weights` are the tensors that it updates, by parameter name; see `Strategy.named_weights`.
    """
    depth = parameter_depths(model)
    top = max(depth.values(), default=0)
    groups: dict[tuple[bool, int], list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            below_top = top - depth[name] if config.layerwise_lr_decay < 1 else 0
            groups.setdefault((parameter.ndim >= 2, below_top), []).append(weights[name])
    parameter_groups = [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decayed else 0.0,
            "scale": config.layerwise_lr_decay**below_top,
            "lr": config.peak_learning_rate,
        }
        for (decayed, below_top), parameters in groups.items()
    ]
    return torch.optim.AdamW(
        parameter_groups,
        lr=config.peak_learning_rate,  # each step sets its own
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=accelerator_of(device.type).fused_adamw,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set each group's learning rate to `rate` times its `scale`, which is 1 for the head."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def learning_rate_factor(step: float, total: int, warmup: float, schedule: str = "linear") -> float:
    """The share of the peak learning rate in step `step` (from 0) of `total`: a linear rise, then the schedule.

    `warmup` below 1 is a share of all steps, else a number of steps. The factor is above 0 in the first and the last
    step. Schedules: "linear" falls to 0, "cosine" along half a cosine, "inverse_sqrt" with the root of the steps
    (Vaswani et al., 2017, section 5.3; without warmup over 10,000, as in transformers), "constant_with_warmup" stays,
    "constant" does so from the first step.
    """
    if schedule == "constant":
        return 1.0
    rise = math.ceil(warmup * total) if warmup < 1 else int(warmup)
    if step < rise:
        return (step + 1) / rise
    if schedule == "constant_with_warmup":
        return 1.0
    if schedule == "inverse_sqrt":
        scale = rise or _TIMESCALE
        return math.sqrt(scale / (step + 1 - rise + scale))
    left = max(0.0, (total - step) / max(1, total - rise))
    return 0.5 * (1 - math.cos(math.pi * left)) if schedule == "cosine" else left

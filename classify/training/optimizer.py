"""The optimizer: its parameter groups, the learning rate of a step, and its state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed import sharding
from classify.errors import CheckpointError
from classify.launch.devices import accelerator_of
from classify.modeling.layers import parameter_depths
from classify.training.weights import RENAMED, Tensors

# Steps over which "inverse_sqrt" falls by the root of 2 where there is no warmup, as in transformers.
_TIMESCALE = 10_000
# Entries of a parameter group that a resumed run sets by its own flags and device.
_SETTINGS = ("params", "weight_decay", "scale", "lr", "betas", "eps", "fused")


def make_optimizer(
    model: nn.Module, weights: Mapping[str, torch.Tensor], config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Create AdamW (Loshchilov and Hutter, 2019) with no weight decay on biases and norms, i.e. on vectors.

    With a layer-wise decay below 1 each layer's learning rate is that of the layer above times the decay; the
    embeddings are below the first layer (Sun et al., 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.4).

    `weights` are the tensors that it updates, by parameter name; see `Weights.named`.
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


def trained_params(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def collect_state(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor], keep: bool
) -> tuple[Tensors, dict[str, Any]]:
    """Split torch's state_dict of an optimizer of these weights, by parameter name in place of torch's numbers.

    Returns its tensors by "<parameter name>/<key>", in main memory on ranks that `keep` them, and the rest for JSON:
    `values` under such names, too, and `groups`. A collective if sharded.
    """
    names = {id(weight): name for name, weight in weights.items()}
    states = {name: optimizer.state.get(weight, {}) for name, weight in weights.items()}
    state = {f"{name}/{key}": value for name, own in states.items() for key, value in own.items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in state.items() if name not in tensors}
    groups = [{**group, "params": [names[id(own)] for own in group["params"]]} for group in optimizer.param_groups]
    return sharding.gather_full(tensors, keep), {"values": values, "groups": groups}


def load_state(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor], tensors: Tensors, rest: dict[str, Any]
) -> None:
    """Load what `collect_state` returned, where the optimizer may have its parameters in another order.

    Raises CheckpointError where no parameter of a name is trained.
    """
    state: dict[str, dict[str, Any]] = {}
    for path, value in {**tensors, **rest["values"]}.items():
        name, _, key = path.rpartition("/")
        sharded = isinstance(value, torch.Tensor) and name in weights
        state.setdefault(name, {})[key] = sharding.shard_like(value, weights[name]) if sharded else value
    names = {id(weight): name for name, weight in weights.items()}
    trained = [names[id(weight)] for weight in trained_params(optimizer)]
    unknown = sorted(set(state) - set(trained))
    if unknown:
        raise CheckpointError(
            f"the checkpoint has optimizer state of {unknown[0]!r}, a parameter that is not trained here: {RENAMED}"
        )
    before = {name: group for group in rest["groups"] for name in group["params"]}
    groups = []
    for group in optimizer.state_dict()["param_groups"]:
        settings = {key: value for key, value in group.items() if key in _SETTINGS}
        groups.append({**group, **before.get(trained[group["params"][0]], {}), **settings})
    # torch's own loading knows on which device and in which type an optimizer wants each value.
    numbered = {number: state[name] for number, name in enumerate(trained) if name in state}
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})


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
        return min(1.0, (step + 1) / rise)  # a time limit moves between steps
    if schedule == "constant_with_warmup":
        return 1.0
    if schedule == "inverse_sqrt":
        scale = rise or _TIMESCALE
        return math.sqrt(scale / (step + 1 - rise + scale))
    left = max(0.0, (total - step) / max(1, total - rise))
    return 0.5 * (1 - math.cos(math.pi * left)) if schedule == "cosine" else left

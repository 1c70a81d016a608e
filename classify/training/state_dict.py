"""Weights and optimizer state by parameter name, the same for every strategy: what a checkpoint holds.

Tied weights are saved once. Where each rank holds a part of a tensor it is gathered, one tensor at a time; loading cuts
it again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from classify.distributed import sharding
from classify.modeling.precision import Masters

Tensors = dict[str, torch.Tensor]


def weights_of(model: nn.Module, masters: Masters, keep: bool, elsewhere: Mapping[str, torch.Tensor]) -> Tensors:
    """The weights by name, in main memory on ranks that `keep` them, empty on others. A collective if sharded.

    Weights in half precision are given as their `masters`, where they have some; those that are on no device come from
    `elsewhere`.
    """
    keys = set(_shared_keys(model).values())
    own = {name: masters[p] for name, p in model.named_parameters() if p in masters} | dict(elsewhere)
    weights = {name: own.get(name, tensor) for name, tensor in model.state_dict().items() if name in keys}
    return sharding.gathered(weights, keep)


def moments_of(model: nn.Module, optimizer: torch.optim.Optimizer, masters: Masters, keep: bool) -> Tensors:
    """The optimizer's state as "<parameter name>/<key>", where `keep` says so. A collective if sharded."""
    moments = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(masters.get(parameter, parameter), {}).items()
    }
    return sharding.gathered(moments, keep)


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy what `weights_of` gave into a model, sharded or not; names and shapes must fit exactly."""
    own = model.state_dict()
    model.load_state_dict(
        {
            # What is on no device (see `classify.training.strategies.device_map`) is frozen: it is as it was.
            name: own[name] if own[name].is_meta else sharding.cut_like(tensors[key], own[name])
            for name, key in _shared_keys(model).items()
        },
        strict=True,
    )


def load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, masters: Masters, tensors: Tensors) -> None:
    """Restore each parameter's optimizer state by the parameter's name, wherever the optimizer counts it.

    `masters` are what the optimizer moves in the place of weights in half precision.
    """
    by_name: dict[str, Tensors] = {}
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        by_name.setdefault(name, {})[part] = value
    places = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state = {
        places[id(masters.get(p, p))]: {key: sharding.cut_like(value, p) for key, value in by_name[name].items()}
        for name, p in model.named_parameters()
        if name in by_name
    }
    # torch's own loading knows on which device and in which type an optimizer wants each value.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _shared_keys(model: nn.Module) -> dict[str, str]:
    """For each name of the state dict, the name its storage is saved under: tied tensors are saved once."""
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)  # the parameters themselves, so that tied ones are one object
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}

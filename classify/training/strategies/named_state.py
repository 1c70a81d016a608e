"""Weights and optimizer state by parameter name, the same for every strategy: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from classify.distributed import sharding
from classify.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
# The reason why a checkpoint's parameter names may differ from the model's, and what to do.
_RENAMED = (
    "another version of transformers may have other names. Resume with the versions in run.json, or start over with "
    "--overwrite-output-dir."
)


def collect_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], keep: bool) -> Tensors:
    """Return weights and buffers by name, in main memory on ranks that `keep` them. A collective if sharded.

    `weights` are the tensors that hold the parameters exactly, by name; see `Strategy.named_weights`.
    """
    keys = set(_shared_keys(model).values())
    found = {name: weights.get(name, tensor) for name, tensor in model.state_dict().items() if name in keys}
    return sharding.gather_full(found, keep)


def collect_optimizer_state(
    weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, keep: bool
) -> Tensors:
    """The optimizer's state as "<parameter name>/<key>", where `keep` says so. A collective if sharded."""
    state: Mapping[torch.Tensor, Tensors] = optimizer.state
    found = {f"{name}/{key}": value for name, weight in weights.items() for key, value in state.get(weight, {}).items()}
    return sharding.gather_full(found, keep)


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy what `collect_weights` returned into a model, sharded or not; names and shapes must fit exactly.

    Raises CheckpointError where a weight is missing.
    """
    local = model.state_dict()
    missing = sorted(set(_shared_keys(model).values()) - set(tensors))
    if missing:
        raise CheckpointError(f"the checkpoint has no weight {missing[0]!r} ({len(missing)} missing): {_RENAMED}")
    model.load_state_dict(
        {name: sharding.shard_like(tensors[key], local[name]) for name, key in _shared_keys(model).items()}, strict=True
    )


def load_optimizer_state(
    weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, tensors: Tensors
) -> None:
    """Restore each weight's optimizer state by the parameter's name, at any index in the optimizer.

    Raises CheckpointError where no parameter of a name is trained.
    """
    by_name: dict[str, Tensors] = {}
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        by_name.setdefault(name, {})[part] = value
    places = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    trained = {name: weight for name, weight in weights.items() if id(weight) in places}
    unknown = sorted(set(by_name) - set(trained))
    if unknown:
        raise CheckpointError(
            f"the checkpoint has optimizer state of {unknown[0]!r}, a parameter that is not trained here: {_RENAMED}"
        )
    state = {
        places[id(weight)]: {key: sharding.shard_like(value, weight) for key, value in by_name[name].items()}
        for name, weight in trained.items()
        if name in by_name
    }
    # torch's own loading knows on which device and in which type an optimizer wants each value.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _shared_keys(model: nn.Module) -> dict[str, str]:
    """Map each name of the state dict to the name its storage is saved under: tied tensors are saved once."""
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)  # the parameters themselves, so that tied ones are one object
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}

"""What every strategy does, and all that one device in one process needs.

A strategy owns how a model is trained: the module that forward passes go through, the optimizer and the fp32 masters it
moves, the gradient scaler, and the state of all of these by parameter name. `classify.launch.strategies` lists them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.data.columns import Decision
from classify.distributed import batch_norm, sharding
from classify.distributed.world import World
from classify.modeling.classifier import LoadedModel
from classify.modeling.packing import Batch
from classify.modeling.precision import Masters, copy_from_masters, copy_grads_to_masters
from classify.training.optimizer import make_optimizer


class Strategy:
    """One device in one process. Subclasses say what they do otherwise.

    First the model is placed (`check_room`, `place`); it can be evaluated then. `begin` makes it ready for training.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    masters: Masters

    def __init__(self, model: LoadedModel, config: TrainingConfig, world: World):
        self.model, self.config, self.world = model, config, world
        self._synchronised_norms = 0

    def check_room(self, length: float) -> None:
        """Raise InputError where the model cannot be placed for texts of `length` tokens on the mean."""

    def place(self, folder: Path) -> Decision | None:
        """Move the model to where it is computed; what a person should know of that. `folder` may take files."""
        self.model.classifier.to(self.world.device)
        return None

    def begin(self) -> None:
        """Make the model ready for training: precision, wrapping, then the optimizer on what wrapping left."""
        self.masters = self.model.classifier.cast_to_half()
        if self.config.sync_batch_norm and self.world.distributed:
            self._synchronised_norms = batch_norm.synchronise(self.model.classifier)
        self.module = self.wrap(self.model.classifier)
        self.optimizer = make_optimizer(self.module, self.config, self.world.device, self.masters)
        self.scaler = self.model.classifier.precision.scaler()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module that forward passes of training go through."""
        return model

    @property
    def trained(self) -> list[nn.Parameter]:
        """What the optimizer moves."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def forward_is_collective(self) -> bool:
        """Whether a forward pass in training waits for the other ranks."""
        return self._synchronised_norms > 0

    def passes(self, own: int) -> int:
        """How many forward passes this rank takes part in when it has `own` micro-batches.

        As many as the busiest rank has where passes wait for each other; a collective then.
        """
        return self.world.all_reduce_max(own) if self.forward_is_collective else own

    @property
    def tokens_at_once(self) -> int | None:
        """Tokens that a micro-batch holds at most; None: as many as there are.

        Where a pass waits for other ranks, or for weights from afar, more micro-batches would cost more than they save.
        """
        alone = self.model.tokens_at_once
        if alone is None or not self.world.plan.spec.cuts_steps or self.forward_is_collective:
            return None
        return alone // self.world.cache_sharers

    def forward(self, batches: list[Batch]) -> torch.Tensor:
        """Logits of a micro-batch, one batch a replica, concatenated in order."""
        return self.module(batches[0].to(self.world.device))

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around the passes of a micro-batch; gradients are exchanged in the `last` one of a step."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch's loss."""
        self.scaler.scale(loss).backward()
        copy_grads_to_masters(self.masters)

    def without_exchange(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, passes of this rank alone are possible: nothing is exchanged. Not where `forward_is_collective`."""
        return contextlib.nullcontext()

    def optimizer_step(self) -> torch.Tensor:
        """Unscale, clip, step, clear. Returns the gradient's norm before clipping, the same on every rank."""
        self.scaler.unscale_(self.optimizer)
        norm = sharding.whole(nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm or math.inf))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        copy_from_masters(self.masters)
        self.clear_gradients()
        return norm

    @contextlib.contextmanager
    def dry_updates(self) -> Iterator[None]:
        """Inside, `optimizer_step` changes nothing: learning rates are 0, and the optimizer's state is restored."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        scale = self.scaler.state_dict()
        state = {
            parameter: {key: value.clone() for key, value in values.items()}
            for parameter, values in self.optimizer.state.items()
        }
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.optimizer.state.clear()
            self.optimizer.state.update(state)
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(scale)

    def clear_gradients(self) -> None:
        """Forget the gradients of the optimizer's weights, and of the half ones whose masters they are."""
        self.optimizer.zero_grad(set_to_none=True)
        for weight in self.masters:
            weight.grad = None

    def weights(self, keep: bool) -> Tensors:
        """The weights by name, in main memory on ranks that `keep` them; empty elsewhere. A collective."""
        return weights_of(self.model.stock, self.masters, keep, self._elsewhere())

    def moments(self, keep: bool) -> Tensors:
        """The optimizer's state as "<parameter name>/<key>", where `keep` says so. A collective."""
        return moments_of(self.model.stock, self.optimizer, self.masters, keep)

    def load_weights(self, tensors: Tensors) -> None:
        """Take weights by name, the same on every rank. Before `begin`, which rounds them where training does."""
        load_weights(self.model.stock, tensors)

    def load_optimizer(self, moments: Tensors, scaler: dict[str, Any]) -> None:
        """Take what `moments` and the scaler's state_dict gave."""
        load_moments(self.model.stock, self.optimizer, self.masters, moments)
        if scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)

    def end_training(self) -> None:
        """Leave the model with the weights that are saved, in full precision; it can still be evaluated."""
        self.model.classifier.restore_fp32(self.masters)

    def stock_weights(self, keep: bool) -> Tensors:
        """What the output folder holds, on ranks that `keep` it. The model is not used any more. A collective."""
        return sharding.gathered(self.model.stock.state_dict(), keep)

    def _elsewhere(self) -> Tensors:
        """Weights that are on no device, by name."""
        return {}


def make_strategy(model: LoadedModel, config: TrainingConfig, world: World) -> Strategy:
    """The strategy that the device plan names."""
    module, _, name = world.plan.spec.implementation.partition(":")
    implementation: type[Strategy] = getattr(importlib.import_module(f"classify.training.strategies.{module}"), name)
    return implementation(model, config, world)


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

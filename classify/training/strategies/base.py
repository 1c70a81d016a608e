"""Training on one device in one process, and the protocol that all strategies follow.

A strategy owns how a classifier is trained: the module that forward passes go through, the optimizer and the fp32
masters it updates, the gradient scaler, and the state of all of these by parameter name. `classify.launch.strategies`
lists them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed import batch_norm, sharding
from classify.distributed.world import World
from classify.findings import Finding
from classify.modeling.classifier import Classifier
from classify.modeling.half_weights import MasterWeights
from classify.modeling.packing import Batch
from classify.training.optimizer import make_optimizer
from classify.training.strategies import named_state
from classify.training.strategies.cuda_graphs import TrainingGraphs, graphs_apply
from classify.training.strategies.named_state import Tensors


class Strategy:
    """One device in one process. Subclasses override what they do differently.

    First the model is placed (`check_room`, `place`); it can be evaluated then. `setup` makes it ready for training.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    masters: MasterWeights
    norms: Sequence[nn.Module]
    graphs: TrainingGraphs | None

    def __init__(self, classifier: Classifier, config: TrainingConfig, world: World):
        self.classifier, self.config, self.world = classifier, config, world
        self._synchronized_norms = 0
        self._is_set_up = False

    def check_room(self, length: float) -> None:
        """Raise InputError where the model cannot be placed for texts of `length` tokens on average."""

    def place(self, folder: Path) -> Finding | None:
        """Move the model to its devices; return a decision to print, if any. Files may be written into `folder`."""
        self.classifier.to(self.world.device)
        return None

    def setup(self, weights: Tensors | None = None) -> None:
        """Make the model ready for training: precision, wrapping, then the optimizer of the wrapped parameters.

        It starts from `weights` by name, the same on every rank, or from those it has. Called again, it starts anew.
        """
        if weights is not None:
            self.load_weights(weights)
        if not self._is_set_up:
            self.masters = self.classifier.cast_to_half()
            if self.config.sync_batch_norm and self.world.distributed:
                self._synchronized_norms = batch_norm.synchronize(self.classifier)
            self.module = self.wrap(self.classifier)
            self.norms = batch_norm.layers(self.module)
            self._is_set_up = True
        elif weights is not None:
            self._load_masters(weights)
        self.reset_optimizer()

    @torch.no_grad()
    def _load_masters(self, weights: Tensors) -> None:
        """Load weights by name into the masters of the model's half weights."""
        for name, parameter in self.classifier.model.named_parameters():
            if (master := self.masters.get(parameter)) is not None:
                master.copy_(sharding.shard_like(weights[name].to(master.device, master.dtype), master))

    def reset_optimizer(self) -> None:
        """Make a new optimizer and gradient scaler, without the state of earlier steps."""
        self.optimizer = make_optimizer(self.module, self.config, self.world.device, self.masters)
        self.scaler = self.classifier.precision.scaler()
        self.graphs = None
        self.clear_gradients()
        if self.world.plan.spec.records_graphs and graphs_apply(self.classifier, self.config, self.world.device):
            self.graphs = TrainingGraphs(self.classifier)
        self.classifier.rounds_tokens = self.graphs is not None

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Return the module that forward passes of training go through."""
        return classifier

    @property
    def trained_params(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def forward_is_collective(self) -> bool:
        """Return whether a forward pass in training waits for the other ranks."""
        return self._synchronized_norms > 0

    @property
    def max_tokens(self) -> int | None:
        """Return the maximum number of tokens of a micro-batch; None for no limit.

        None where each pass is a collective or moves weights between devices: more micro-batches cost too much there.
        """
        alone = self.classifier.max_tokens
        if alone is None or not self.world.plan.spec.limits_micro_batch_tokens or self.forward_is_collective:
            return None
        return alone // self.world.cache_sharers

    def forward(self, batches: list[Batch], *, features: bool = False) -> torch.Tensor:
        """Compute a micro-batch, one batch per replica, concatenated in order: logits, or `features` (n, width)."""
        batch = batches[0].to(self.world.device)
        if self.graphs is not None:
            return self.graphs.forward(batch, features=features)
        return self.module(batch, features=features)

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Wrap the passes of a micro-batch; gradients are exchanged in the `last` one of a step."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch's loss; in the `last` one they are averaged over the ranks."""
        self.scaler.scale(loss).backward()
        self.masters.add_gradients()

    def contrastive_backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss of features, which does not reach the head.

        `sum_contrastive_gradients` then sums them over the ranks, unless the backward pass already has.
        """
        Strategy.backward(self, loss, last=True)

    def sum_contrastive_gradients(self) -> None:
        """Sum the gradients of `contrastive_backward` over the ranks, of all weights but the head's. A collective."""
        head = {id(self.masters.of(parameter)) for parameter in self.classifier.output_layer.parameters()}
        self.world.all_reduce_gradients([parameter for parameter in self.trained_params if id(parameter) not in head])

    def without_exchange(self) -> contextlib.AbstractContextManager[Any]:
        """Allow passes of this rank alone inside: nothing is exchanged, unless `forward_is_collective`."""
        return contextlib.nullcontext()

    def optimizer_step(self) -> torch.Tensor:
        """Unscale, clip, step, clear. Returns the gradient's norm before clipping, the same on every rank."""
        self.scaler.unscale_(self.optimizer)
        norm = sharding.full_tensor(
            nn.utils.clip_grad_norm_(self.trained_params, self.config.max_grad_norm or math.inf)
        )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.masters.round_into_weights()
        self.clear_gradients()
        return norm

    @contextlib.contextmanager
    def dry_updates(self) -> Iterator[None]:
        """Have `optimizer_step` change nothing inside: learning rates are 0, the optimizer's state is restored."""
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
        """Clear the gradients of the optimizer's weights, and of the half weights if these are masters.

        Graphs add to the same tensors in each step.
        """
        self.optimizer.zero_grad(set_to_none=self.graphs is None)
        self.masters.clear_gradients()

    def reshard(self) -> None:
        """Reshard parameters that a forward pass left gathered; nothing to do unless they are sharded."""

    @torch.no_grad()
    def round_weights(self, dtype: torch.dtype) -> None:
        """Round the weights to `dtype`, after `end_training`; they stay in fp32."""
        self.reshard()
        for tensor in (*self.classifier.model.parameters(), *self.classifier.model.buffers()):
            if tensor.is_floating_point() and not tensor.is_meta:
                tensor.copy_(tensor.to(dtype))

    @torch.no_grad()
    def scale_output_layer(self, scale: torch.Tensor, shift: torch.Tensor) -> None:
        """Multiply each output's logits by `scale` (outputs,) and add `shift` (outputs,), after `end_training`."""
        self.reshard()
        layer = self.classifier.output_layer
        for parameter, factor in ((layer.weight, scale[:, None].expand_as(layer.weight)), (layer.bias, scale)):
            parameter.mul_(sharding.shard_like(factor.to(parameter.device, parameter.dtype), parameter))
        layer.bias.add_(sharding.shard_like(shift.to(layer.bias.device, layer.bias.dtype), layer.bias))

    def output_layer_weights(self, *, keep: bool) -> Tensors:
        """Return the head's `weight` (classes, width) and `bias` (classes,) on ranks that `keep` them. A collective."""
        self.reshard()
        parameters = self.classifier.output_layer.named_parameters()
        return sharding.gather_full({name: self.masters.of(p) for name, p in parameters}, keep)

    @torch.no_grad()
    def set_output_layer(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Set the head's weights (classes, width) and biases (classes,), the same on every rank."""
        self.reshard()
        layer = self.classifier.output_layer
        assert isinstance(layer.weight, nn.Parameter)
        for parameter, value in ((layer.weight, weight), (layer.bias, bias)):
            target = self.masters.of(parameter)
            target.copy_(sharding.shard_like(value.to(target.device, target.dtype), target))
        self.masters.round_into_weights()

    def state_dict(self, *, keep: bool) -> tuple[Tensors, Tensors]:
        """Return weights by name, and optimizer state by "<parameter name>/<key>", in main memory.

        Both are empty on ranks that do not `keep` them. A collective.
        """
        model = self.classifier.model
        weights = named_state.collect_weights(model, self.masters, keep, self._offloaded_params())
        return weights, named_state.collect_optimizer_state(model, self.optimizer, self.masters, keep)

    def load_weights(self, tensors: Tensors) -> None:
        """Load weights by name, the same on every rank, into the model; `setup` loads them for training."""
        named_state.load_weights(self.classifier.model, tensors)

    def load_optimizer(self, state: Tensors, scaler: dict[str, Any]) -> None:
        """Load the optimizer state of `state_dict`, and the scaler's."""
        named_state.load_optimizer_state(self.classifier.model, self.optimizer, self.masters, state)
        if scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)

    def end_training(self) -> None:
        """Restore fp32 weights, as they are saved; the model can still be evaluated."""
        self.classifier.restore_fp32(self.masters)

    def stock_weights(self, *, keep: bool) -> Tensors:
        """Return the weights to save, on ranks that `keep` them. The model is not used any more. A collective."""
        weights = sharding.gather_full(self.classifier.model.state_dict(), keep)
        vocabulary = self.classifier.vocabulary
        return weights if vocabulary is None or not keep else vocabulary.expand(weights)

    def _offloaded_params(self) -> Tensors:
        """Return the weights that are on no device, by name."""
        return {}


def make_strategy(classifier: Classifier, config: TrainingConfig, world: World) -> Strategy:
    """Make the strategy that the device plan names."""
    module, _, name = world.plan.spec.implementation.partition(":")
    implementation: type[Strategy] = getattr(importlib.import_module(f"classify.training.strategies.{module}"), name)
    return implementation(classifier, config, world)

"""Training on one device in one process, and the protocol that all strategies follow.

A strategy owns how a classifier is trained: the module that forward passes go through, the optimizer and the weights it
updates, the gradient scaler, and the state of all of these by parameter name. `classify.training.strategies.registry`
makes the one that the device plan names. Half weights, CUDA graphs and lazy devices are each a class mixed into it;
`end_training` is there for half weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed import sharding
from classify.distributed.memory import release_cache
from classify.distributed.world import World
from classify.findings import Finding
from classify.modeling.classifier import Classifier
from classify.modeling.packing import Batch
from classify.training.optimizer import make_optimizer
from classify.training.strategies import named_state
from classify.training.strategies.named_state import Tensors


class Strategy:
    """One device in one process. Subclasses override what they do differently."""

    # A forward pass in training waits for the other ranks.
    forward_is_collective = False
    # Each backward pass averages its gradients over the ranks, not only the last one of a step.
    averages_each_pass: ClassVar[bool] = False

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def __init__(self, classifier: Classifier, config: TrainingConfig, world: World):
        self.classifier, self.config, self.world = classifier, config, world
        self._is_set_up = False

    @classmethod
    def place(cls, classifier: Classifier, world: World) -> Finding | None:
        """Move a model to the devices of this process; return a decision to print, if any."""
        classifier.to(world.device)
        return None

    def setup(self, weights: Tensors | None = None) -> None:
        """Make the placed model ready for training: wrap it, then make the optimizer of the wrapped parameters.

        It starts from `weights` by name, the same on every rank, or from those it has. Called again, it starts anew.
        """
        if weights is not None:
            self.load_weights(weights)
        if not self._is_set_up:
            self.module = self.wrap(self.classifier)
            self._is_set_up = True
        self.reset_optimizer()

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """The module that forward passes of training go through."""
        return classifier

    def reset_optimizer(self) -> None:
        """Make a new optimizer and gradient scaler, without the state of earlier steps."""
        self.optimizer = make_optimizer(self.classifier.model, self.named_weights(), self.config, self.world.device)
        self.scaler = self.classifier.precision.scaler()
        self.clear_gradients()

    def forward(self, batches: list[Batch], *, features: bool = False) -> torch.Tensor:
        """Compute a micro-batch, one batch per replica, concatenated in order: logits, or `features` (n, width)."""
        output: torch.Tensor = self.module(batches[0].to(self.world.device), features=features)
        return output

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Wrap the passes of a micro-batch; gradients are averaged over the ranks in the `last` one of a step."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch's loss."""
        self.scaler.scale(loss).backward()

    def optimizer_step(self) -> torch.Tensor:
        """Unscale, clip, step, clear. Returns the gradient's norm before clipping, the same on every rank.

        Where `refuses` it the weights stay as they are.
        """
        self.scaler.unscale_(self.optimizer)
        norm = sharding.full_tensor(
            nn.utils.clip_grad_norm_(trained_params(self.optimizer), self.config.max_grad_norm or math.inf)
        )
        if not self.refuses(norm):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.clear_gradients()
        return norm

    def refuses(self, norm: torch.Tensor) -> bool:
        """Whether a step of this gradient norm would spoil the weights.

        A gradient scaler notices by itself. A device would wait for the answer in each step; there the loss shows it.
        """
        return self.world.accelerator.is_host and not self.scaler.is_enabled() and not math.isfinite(norm)

    def clear_gradients(self) -> None:
        """Forget the passes since the last optimizer step, so that they can be repeated."""
        self.optimizer.zero_grad()

    def release_memory(self) -> None:
        """Forget the passes since the last optimizer step, and free what they allocated: they are repeated in parts."""
        self.clear_gradients()
        release_cache(self.world.device)

    def named_weights(self) -> Mapping[str, torch.Tensor]:
        """The tensors that hold the model's weights exactly, by parameter name."""
        return dict(self.classifier.model.named_parameters())

    @torch.no_grad()
    def set_output_layer(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Set the head's weights (classes, width) and biases (classes,), the same on every rank."""
        for target, value in zip(self.output_layer().values(), (weight, bias), strict=True):
            target.copy_(sharding.shard_like(value.to(target.device, target.dtype), target))

    def output_layer(self) -> Tensors:
        """The tensors that hold the head's `weight` (classes, width) and `bias` (classes,), maybe sharded."""
        weights = self.named_weights()
        names = {id(parameter): name for name, parameter in self.classifier.model.named_parameters()}
        parts = self.classifier.output_layer.named_parameters()
        return {part: weights[names[id(parameter)]] for part, parameter in parts}

    def state_dict(self, *, keep: bool) -> tuple[Tensors, Tensors]:
        """Return weights by name, and optimizer state by "<parameter name>/<key>", in main memory.

        Both are empty on ranks that do not `keep` them. A collective.
        """
        weights = self.named_weights()
        return (
            named_state.collect_weights(self.classifier.model, weights, keep),
            named_state.collect_optimizer_state(weights, self.optimizer, keep),
        )

    def load_weights(self, tensors: Tensors) -> None:
        """Load weights by name, the same on every rank."""
        named_state.load_weights(self.classifier.model, tensors)

    def load_optimizer(self, state: Tensors, scaler: dict[str, Any]) -> None:
        """Load the optimizer state of `state_dict`, and the scaler's."""
        named_state.load_optimizer_state(self.named_weights(), self.optimizer, state)
        if scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)

    def end_training(self) -> None:
        """Make the model's weights those that are saved; it can still be evaluated."""

    def stock_weights(self, *, keep: bool) -> Tensors:
        """The weights to save, on ranks that `keep` them. The model is not used any more. A collective."""
        weights = sharding.gather_full(self.classifier.model.state_dict(), keep)
        vocabulary = self.classifier.vocabulary
        return weights if vocabulary is None or not keep else vocabulary.expand(weights)


def trained_params(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that an optimizer updates, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]

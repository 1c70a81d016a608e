"""Training on one device in one process, and the protocol that all strategies follow.

A strategy owns how a classifier is trained: the module that forward passes go through, the optimizer and the weights it
updates, the gradient scaler, and the state of all of these by parameter name. `classify.training.strategies.registry`
makes the one that the device plan names. Which tensors hold the weights is the business of its `weights`.
"""

from __future__ import annotations

import contextlib
import math
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
from classify.training.optimizer import collect_state, load_state, make_optimizer, trained_params
from classify.training.strategies.half_weights import MasterWeights
from classify.training.weights import Tensors, Weights


class Strategy:
    """One device in one process. Subclasses override what they do differently."""

    # A forward pass in training waits for the other ranks.
    forward_is_collective = False
    # Gradients lie in buckets, which the last backward pass of a step averages over the ranks.
    buckets_gradients = False
    # Each backward pass averages its gradients over the ranks, not only the last one of a step.
    averages_each_pass: ClassVar[bool] = False

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def __init__(self, classifier: Classifier, config: TrainingConfig, world: World):
        """`make_strategy` calls it once the model is placed and has its precision; `setup` comes next."""
        self.classifier, self.config, self.world = classifier, config, world
        self.weights = Weights(classifier)
        self._is_set_up = False

    @classmethod
    def place(cls, classifier: Classifier, world: World) -> Finding | None:
        """Move a model to the devices of this process; return a decision to print, if any.

        A run calls it once, before the precision is set. Parameters keep their identity.
        """
        classifier.to(world.device)
        return None

    def setup(self, weights: Tensors | None = None) -> None:
        """Make the placed model ready for training: wrap it, then make the optimizer of the wrapped parameters.

        A run calls it before the first pass, and each fold to start anew. Training starts from `weights` by name, the
        same on every rank, or from those that the model has. Later calls change weights and optimizer, not the module.
        """
        if weights is not None:
            self.weights.load(weights)
        if not self._is_set_up:
            if self.classifier.precision.rounds_weights:
                self.weights = MasterWeights(self.classifier)
            self.module = self.wrap(self.classifier)
            self._is_set_up = True
        self.reset_optimizer()

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Make the module that forward passes of training go through. `setup` calls it once.

        It may replace the parameters, as long as `weights` knows them.
        """
        return classifier

    def reset_optimizer(self) -> None:
        """Make a new optimizer and gradient scaler. `setup` calls it, and contrastive steps at their end.

        The state of earlier steps is gone; the weights stay.
        """
        self.optimizer = make_optimizer(self.classifier.model, self.weights.named(), self.config, self.world.device)
        self.scaler = self.classifier.precision.scaler()
        self.clear_gradients()

    def forward(self, batches: list[Batch], *, features: bool = False) -> torch.Tensor:
        """Compute a micro-batch, one batch per replica, concatenated in order: logits, or `features` (n, width).

        The trainer calls it inside `accumulate`; nothing changes but statistics of BatchNorm.
        """
        output: torch.Tensor = self.module(batches[0].to(self.world.device), features=features)
        return output

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Wrap the passes of a micro-batch; gradients are averaged over the ranks in the `last` one of a step."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch's loss, which `forward` has computed."""
        self.scaler.scale(loss).backward()
        if last or not self.buckets_gradients:  # they have to stay on the parameters until then
            self.weights.take_gradients()
        self.world.accelerator.flush()

    def optimizer_step(self, learning_rate: float) -> torch.Tensor:
        """Unscale, clip, step, clear. Returns the gradient's norm before clipping, the same on every rank.

        The learning rate is that of the head; other groups of parameters may have a smaller `scale` of it.

        The trainer calls it after the last backward pass of a step; weights, optimizer and scaler change. Raises
        FloatingPointError, with the weights as they were, where the norm is not finite. A gradient scaler notices that
        by itself. A device would make the host wait for the answer in each step; there the loss shows it.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("scale", 1.0)
        self.scaler.unscale_(self.optimizer)
        norm = sharding.full_tensor(
            nn.utils.clip_grad_norm_(trained_params(self.optimizer), self.config.max_grad_norm or math.inf)
        )
        if self.world.accelerator.is_host and not self.scaler.is_enabled() and not math.isfinite(norm):
            self.clear_gradients()
            raise FloatingPointError(f"the gradient's norm is {float(norm)}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.clear_gradients()
        self.weights.round()
        self.world.accelerator.flush()
        return norm

    def clear_gradients(self) -> None:
        """Forget the passes since the last optimizer step. The trainer calls it before it repeats them."""
        self.optimizer.zero_grad()
        self.classifier.zero_grad()  # half weights have gradients of their own where a pass was broken off

    def release_memory(self) -> None:
        """Forget the passes since the last optimizer step, and free what they allocated: they are repeated in parts."""
        self.clear_gradients()
        release_cache(self.world.device)

    def state_dict(self, *, keep: bool) -> tuple[Tensors, Tensors, dict[str, Any]]:
        """Collect weights by name, tensors of the optimizer by "<parameter name>/<key>", and JSON values for the rest.

        Tensors are in main memory, on ranks that `keep` them. The trainer calls it for a checkpoint, folds for their
        start; nothing changes. A collective.
        """
        weights = self.weights.state_dict(keep=keep)
        tensors, rest = collect_state(self.optimizer, self.weights.named(), keep)
        return weights, tensors, {"optimizer": rest, "scaler": self.scaler.state_dict()}

    def load_optimizer(self, tensors: Tensors, values: dict[str, Any]) -> None:
        """Load the optimizer's tensors, the same on every rank, and the values that `state_dict` returned with them.

        A resumed run calls it after `setup` with the checkpoint's weights. It keeps its own settings.
        """
        load_state(self.optimizer, self.weights.named(), tensors, values["optimizer"])
        if values["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(values["scaler"])

    def end_training(self) -> None:
        """Make the model's parameters the weights that are saved; they can be scored, but not trained any more."""
        self.weights = self.weights.restore()

    def stock_weights(self, *, keep: bool) -> Tensors:
        """Collect the weights to save, on ranks that `keep` them. The model is not used any more. A collective."""
        weights = sharding.gather_full(self.classifier.model.state_dict(), keep)
        vocabulary = self.classifier.vocabulary
        return weights if vocabulary is None or not keep else vocabulary.expand(weights)

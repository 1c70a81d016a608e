"""The weights of a model by parameter name, the same for every strategy: a checkpoint holds them under these names."""

from __future__ import annotations

import torch
from torch import nn

from classify.distributed import sharding
from classify.errors import CheckpointError
from classify.modeling.classifier import Classifier

Tensors = dict[str, torch.Tensor]
# The reason why a checkpoint's parameter names may differ from the model's, and what to do.
RENAMED = (
    "another version of transformers may have other names. Resume with the versions in run.json, or start over with "
    "--overwrite-output-dir."
)


class Weights:
    """The tensors that hold a model's weights exactly: its parameters, unless a subclass puts others in their place.

    The optimizer updates these tensors, and checkpoints hold them. After a strategy has changed them, the model's
    parameters follow in `round`.
    """

    def __init__(self, classifier: Classifier):
        self.classifier, self.model = classifier, classifier.model

    def named(self) -> Tensors:
        """The tensors by parameter name. Ask for them before each use: they may have to be sharded again."""
        return dict(self.model.named_parameters())

    def output_layer(self) -> Tensors:
        """The head's `weight` (classes, width) and `bias` (classes,), maybe sharded."""
        weights = self.named()
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {part: weights[names[id(own)]] for part, own in self.classifier.output_layer.named_parameters()}

    @torch.no_grad()
    def set_output_layer(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Set the head's weights (classes, width) and biases (classes,), the same on every rank."""
        for target, value in zip(self.output_layer().values(), (weight, bias), strict=True):
            target.copy_(sharding.shard_like(value.to(target.device, target.dtype), target))
        self.round()

    def state_dict(self, *, keep: bool) -> Tensors:
        """Collect weights and buffers by name in main memory; empty on ranks that do not `keep` them. A collective."""
        weights, keys = self.named(), set(_shared_keys(self.model).values())
        found = {name: weights.get(name, tensor) for name, tensor in self.model.state_dict().items() if name in keys}
        return sharding.gather_full(found, keep)

    def load(self, tensors: Tensors) -> None:
        """Copy the tensors of `state_dict`, the same on every rank, into the model; names and shapes must fit exactly.

        Raises CheckpointError where a weight is missing.
        """
        local, keys = self.model.state_dict(), _shared_keys(self.model)
        missing = sorted(set(keys.values()) - set(tensors))
        if missing:
            raise CheckpointError(f"the checkpoint has no weight {missing[0]!r} ({len(missing)} missing): {RENAMED}")
        shards = {name: sharding.shard_like(tensors[key], local[name]) for name, key in keys.items()}
        self.model.load_state_dict(shards, strict=True)

    def take_gradients(self) -> None:
        """Move the gradients of the model's parameters to the tensors that the optimizer updates."""

    def round(self) -> None:
        """Let the model's parameters follow the tensors that hold the weights."""

    def restore(self) -> Weights:
        """Make the parameters hold the weights exactly; return what stands for them from then on."""
        return self


def _shared_keys(model: nn.Module) -> dict[str, str]:
    """Map each name of the state dict to the name its storage is saved under: tied tensors are saved once."""
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)  # the parameters themselves, so that tied ones are one object
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}

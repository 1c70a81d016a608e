"""Model parallelism in one process: layers spread over devices, frozen ones in main memory or on disk.

Accelerate moves the tensors (`dispatch_model` and its hooks); which layer goes where is decided in
`classify.modeling.memory_estimate`.
A batch goes through the devices one after the other, so they take turns: this saves memory, not time.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from classify.config.schema import TrainingConfig
from classify.distributed.memory import main_memory
from classify.distributed.world import World
from classify.errors import InputError
from classify.files import TEMPORARY
from classify.findings import Finding, decided
from classify.modeling.classifier import Classifier
from classify.modeling.layers import repeated_layers
from classify.modeling.memory_estimate import FROZEN, KEPT_INPUT, MIB, TRAINED, Piece, layer_activations, spread
from classify.training.strategies import named_state
from classify.training.strategies.base import Placement, Strategy
from classify.training.strategies.named_state import Tensors

# Of the memory that is free, the share to plan with; fragments and libraries take the rest.
_USED = 0.85


class SpreadLayers(Placement):
    """Layers on several devices, in main memory and on disk."""

    def __init__(self, classifier: Classifier, config: TrainingConfig, world: World, length: float):
        super().__init__(classifier, config, world, length)
        rows = config.train_batch_size / config.gradient_accumulation_steps
        tokens = (KEPT_INPUT if config.gradient_checkpointing else 1.0) * rows * length
        self._places = choose_places(classifier.model, world.devices, tokens, length, config.device_memory)

    def place(self, folder: Path) -> Finding:
        """Move the layers to their places; weights that fit nowhere else are written to a file in `folder`."""
        self.layers = DispatchedLayers(self.classifier.model, self._places, folder)
        why = "the devices take turns" if len(self.world.devices) > 1 else "as many layers as fit in its memory"
        return decided("layers", self.layers.describe(), why, "--device-memory", True)


class DeviceMapStrategy(Strategy):
    """One process spreads the layers of one model over its devices, main memory and disk."""

    placement = SpreadLayers
    placed: SpreadLayers

    def state_dict(self, *, keep: bool) -> tuple[Tensors, Tensors]:
        """Return weights and optimizer state; weights in main memory or on disk, which are frozen, are read there."""
        weights = {**self.named_weights(), **self.placed.layers.offloaded_params()}
        optimizer = named_state.collect_optimizer_state(weights, self.optimizer, keep)
        return named_state.collect_weights(self.classifier.model, weights, keep), optimizer

    def stock_weights(self, *, keep: bool) -> Tensors:
        """Return the weights to save; the model is in main memory then."""
        self.placed.layers.undo()
        return super().stock_weights(keep=keep)


class DispatchedLayers:
    """The places of a model's pieces; `undo` brings it back into main memory as it was."""

    def __init__(self, model: nn.Module, places: dict[str, str], folder: Path):
        self.places = places
        self._model = model
        self._disk: tempfile.TemporaryDirectory[str] | None = None
        if "disk" in places.values():
            self._disk = tempfile.TemporaryDirectory(dir=folder, prefix=f"{TEMPORARY}offload-")
        from accelerate import dispatch_model

        main = next((place for place in places.values() if place not in ("cpu", "disk")), "cpu")
        logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)
        dispatch_model(model, places, main_device=main, offload_dir=self._disk and self._disk.name)

    def describe(self) -> str:
        """Count the pieces on each device, in order."""
        places = list(self.places.values())
        counts = [f"{places.count(place)} on {place}" for place in dict.fromkeys(places)]
        return f"{len(places)} pieces: {', '.join(counts)}"

    def offloaded_params(self) -> dict[str, torch.Tensor]:
        """Return the weights that are on no device, by name."""
        params: dict[str, torch.Tensor] = {}
        for name, module in self._model.named_modules():
            outer = getattr(module, "_hf_hook", None)
            for hook in getattr(outer, "hooks", [outer]):
                kept = getattr(hook, "weights_map", None)
                for part, tensor in module.named_parameters(recurse=False):
                    if tensor.is_meta and kept is not None:
                        params[f"{name}.{part}"] = torch.as_tensor(kept[part])
        return params

    def undo(self) -> None:
        """Bring all weights back into main memory, without hooks; the model can be used and saved like any other."""
        from accelerate.hooks import remove_hook_from_submodules
        from accelerate.utils import set_module_tensor_to_device

        left = {name: tensor.clone() for name, tensor in self.offloaded_params().items()}
        remove_hook_from_submodules(self._model)
        for name, tensor in left.items():
            set_module_tensor_to_device(self._model, name, "cpu", value=tensor)
        for attribute in ("hf_device_map", "to", "cuda", "npu", "mlu", "xpu"):
            self._model.__dict__.pop(attribute, None)
        self._model.to("cpu")
        if self._disk is not None:
            self._disk.cleanup()


def choose_places(model: Any, devices: list[str], tokens: float, length: float, gib: float | None) -> dict[str, str]:
    """Return {piece of a stock classifier: device}, frozen ones in main memory ("cpu") or on "disk" where need be.

    `devices` are "cpu", or "cuda:0", "cuda:1"; `tokens` a step of texts of `length` tokens; `gib` is what each device
    may use, all that is free if None. Raises InputError where what is trained does not fit.
    """
    kept = layer_activations(model.config.to_dict(), tokens, length, half=False)
    pieces = _pieces(model, int(kept))
    budgets = {device: int(gib * 1024 * MIB) if gib is not None else int(_USED * _free(device)) for device in devices}
    division = spread(pieces, budgets)
    if division is None:
        needs, room = sum(piece.needs for piece in pieces if not piece.frozen), sum(budgets.values())
        raise InputError(
            f"--strategy model: the trained layers need about {needs / MIB:,.0f} MiB, but {', '.join(devices)} may use "
            f"only {room / MIB:,.0f} MiB in total; use a smaller --batch-size, --gradient-checkpointing, "
            "--freeze-layers, or --strategy fsdp with several processes."
        )
    placed, left = division
    on_cpu = devices == ["cpu"]
    fits = sum(piece.bytes for piece in pieces if piece.name in left) < _USED * _free("cpu")
    spare = "disk" if on_cpu or not fits else "cpu"
    return {**dict.fromkeys(left, spare), **placed}


def _free(device: str) -> int:
    """Return the free bytes of a device."""
    if device == "cpu":
        return min(int(psutil.virtual_memory().available), main_memory())
    look = getattr(torch.get_device_module(torch.device(device)), "mem_get_info", None)
    if look is None:
        raise InputError(f"--strategy model: {device} does not report its free memory; give --device-memory.")
    return int(look(torch.device(device).index)[0])


def _pieces(model: Any, activations: int) -> list[Piece]:
    """List embeddings, layers and head in forward order; each repeated layer keeps `activations` bytes."""
    layers = {id(layer) for layer in repeated_layers(model)}
    pieces: list[Piece] = []
    below = True

    def visit(module: nn.Module, prefix: str) -> None:
        nonlocal below
        for name, child in module.named_children():
            if id(child) not in layers and any(id(part) in layers for part in child.modules()):
                visit(child, f"{prefix}{name}.")
                continue
            weights = list(child.parameters())
            frozen = below and not any(weight.requires_grad for weight in weights)
            below = frozen
            needs = sum(w.numel() * (TRAINED if w.requires_grad else FROZEN) for w in weights)
            # Below the first trained weight nothing is kept for a backward pass.
            needs += activations if id(child) in layers and not frozen else 0
            pieces.append(Piece(f"{prefix}{name}", needs, sum(w.numel() * FROZEN for w in weights), frozen))

    visit(model, "")
    return pieces

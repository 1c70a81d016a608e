"""Model parallelism in one process: Accelerate spreads the layers of one model over the devices.

A batch goes through the devices one after the other, so they take turns: this saves memory, not time.
"""

from __future__ import annotations

import logging

from accelerate import dispatch_model, infer_auto_device_map
from accelerate.hooks import remove_hook_from_submodules
from accelerate.utils import get_balanced_memory

from classify.distributed.world import World
from classify.errors import InputError
from classify.findings import Finding, decided
from classify.modeling.classifier import Classifier
from classify.modeling.layers import repeated_layers
from classify.training.strategies.base import Strategy
from classify.training.weights import Tensors


class ModelStrategy(Strategy):
    """One process, whose devices each hold some layers."""

    @classmethod
    def place(cls, classifier: Classifier, world: World) -> Finding | None:
        """Divide the layers evenly by their weights. Raises InputError where the devices cannot hold them."""
        devices = [world.accelerator.device(index) for index in range(max(1, world.plan.n_gpu))]
        if len(devices) == 1:
            return super().place(classifier, world)
        model = classifier.model
        whole = sorted({type(layer).__name__ for layer in repeated_layers(model)})
        budgets = get_balanced_memory(model, no_split_module_classes=whole)
        places = infer_auto_device_map(model, budgets, no_split_module_classes=whole)
        if {"cpu", "disk"} & set(places.values()):
            raise InputError(
                f"--strategy model: the model does not fit {', '.join(devices)}; use a smaller --model, or "
                "--strategy fsdp with several processes."
            )
        logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)
        dispatch_model(model, places)
        used = list(places.values())
        counts = [f"{used.count(device)} on {world.accelerator.device(device)}" for device in dict.fromkeys(used)]
        value = f"{len(used)} pieces: {', '.join(counts)}"
        return decided("layers", value, "the devices take turns", "--strategy", True)

    def stock_weights(self, *, keep: bool) -> Tensors:
        """Move the model to main memory, without Accelerate's hooks, and collect its weights."""
        model = self.classifier.model
        remove_hook_from_submodules(model)
        for attribute in ("hf_device_map", "to", "cuda", "npu", "mlu", "xpu"):
            model.__dict__.pop(attribute, None)
        model.to("cpu")
        return super().stock_weights(keep=keep)

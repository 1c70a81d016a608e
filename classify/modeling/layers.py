"""List a model's layers, tell how deep its parameters are, and add LoRA matrices to them.

LoRA (Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models"): a layer's weight W becomes W + s B A with
A and B of rank r, which are trained and merged before saving. PEFT adds and merges the matrices.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from classify.errors import InputError


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost module lists that repeat one class: a transformer's layers."""
    layers: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList) and len(child) > 1 and len({type(part) for part in child}) == 1:
            layers.extend(child)
        else:
            layers.extend(repeated_layers(child))
    return layers


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model has BatchNorm, whose statistics depend on how a step's rows are divided."""
    return any(isinstance(layer, _BatchNorm) for layer in model.modules())


def parameter_depths(model: nn.Module) -> dict[str, int]:
    """Each parameter's depth: 0 for embeddings, n for layer n, one more for the head."""
    encoder = getattr(model, "base_model", model)  # a head may have layers, or norms of embeddings, too
    layers = repeated_layers(encoder)
    depth = {id(parameter): 0 for name, parameter in encoder.named_parameters() if "embedding" in name}
    depth |= {id(p): number for number, layer in enumerate(layers, start=1) for p in layer.parameters()}
    return {name: depth.get(id(parameter), len(layers) + 1) for name, parameter in model.named_parameters()}


def output_layer(model: Any) -> nn.Linear:
    """The last linear layer of a stock classifier, which computes the logits."""
    classes = model.config.num_labels
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    assert layers, f"{type(model).__name__} ends in no linear layer with {classes} outputs"
    return layers[-1]


def add_adapters(model: Any, rank: int, alpha: int) -> Any:
    """Freeze a stock model except its head, and add LoRA matrices to each linear layer of the encoder.

    Scaling is alpha / rank. Returns PEFT's model, which merges them. Raises InputError if no layers are repeated.
    """
    import peft

    names = {id(module): name for name, module in model.named_modules()}
    targets = [
        names[id(module)]
        for layer in repeated_layers(model.base_model)
        for module in layer.modules()
        if isinstance(module, nn.Linear)
    ]
    if not targets:
        raise InputError(f"--lora: {model.config.model_type} has no repeated linear layers; drop the flag.")
    depth = parameter_depths(model)
    top = max(depth.values())
    head = [parameter for name, parameter in model.named_parameters() if depth[name] == top and parameter.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT uses deprecated names of transformers
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets))
    for parameter in head:
        parameter.requires_grad_(True)
    return wrapped

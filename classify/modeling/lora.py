"""LoRA: small trained matrices beside frozen layers, merged into them before anything is written.

Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models": a layer's weight W becomes W + s B A with A and
B of rank r. The matrices and their merging are PEFT's; which layers get them is decided here.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from classify.distributed.sharding import repeated_layers
from classify.errors import InputError
from classify.modeling.classifier import LoadedModel, depths


def add_adapters(model: LoadedModel, rank: int, alpha: int) -> Any:
    """Freeze the model but for its head, and put a LoRA pair beside each linear layer of the encoder, in place.

    What comes back is for `merge_adapters`. Scaling is alpha / rank. Raises InputError for a model without repeated
    layers.
    """
    import peft

    stock = model.stock
    names = {id(module): name for name, module in stock.named_modules()}
    targets = [
        names[id(module)]
        for layer in repeated_layers(stock)
        for module in layer.modules()
        if isinstance(module, nn.Linear)
    ]
    if not targets:
        raise InputError(f"--lora: {stock.config.model_type} has no repeated linear layers to put LoRA beside.")
    depth = depths(stock)
    top = max(depth.values())
    head = [parameter for name, parameter in stock.named_parameters() if depth[name] == top and parameter.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT uses names that transformers is about to drop
        wrapped = peft.get_peft_model(stock, peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets))
    for parameter in head:
        parameter.requires_grad_(True)
    return wrapped


def merge_adapters(adapted: Any) -> None:
    """Add each pair's product to its layer and take the pair away: the model's architecture is stock again."""
    adapted.merge_and_unload()

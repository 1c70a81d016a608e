"""LoRA: trained low-rank matrices on frozen layers, merged into them before saving.

Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models": a layer's weight W becomes W + s B A with A and
B of rank r. PEFT adds and merges the matrices; this module selects the layers.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from classify.errors import InputError
from classify.modeling.layers import parameter_depths, repeated_layers


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

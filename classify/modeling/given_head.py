"""A head that a caller gives from Python: a module in place of a stock classifier's output layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from classify.distributed import batch_norm
from classify.errors import InputError
from classify.modeling.classifier import output_layer

# Makes a head from the width of its input and the number of logits.
HeadFactory = Callable[[int, int], nn.Module]


def load_with_head(path: Path, head: HeadFactory) -> Any:
    """Load a saved model whose output layer was replaced by what `head` makes.

    Raises InputError for the weights of another head.
    """
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, dtype=torch.float32)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    name = replace_output_layer(model, head)
    weights = load_file(path / "model.safetensors")
    weights.pop(f"{name}.weight", None)  # see `save_model`
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    stored = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    wrong = [f"{key} {stored.get(key)}, here {expected.get(key)}" for key, _ in stored.items() ^ expected.items()]
    if wrong:
        raise InputError(f"{path}: its weights do not fit this head ({min(wrong)}); give the one of its training.")
    model.load_state_dict(weights)
    return model


def replace_output_layer(model: Any, make_head: HeadFactory) -> str:
    """Replace the output layer by a caller's module on the same input, and return its name.

    Raises TypeError unless the module ends in a linear layer that computes the logits, which calibration rescales, and
    for BatchNorm: its statistics would depend on how a step is divided, and some divisions have one row.
    """
    stock = output_layer(model)
    name = next(name for name, module in model.named_modules() if module is stock)
    if isinstance(make_head, nn.Module) or not callable(make_head):
        raise TypeError(f"head: expected a function of width and outputs that makes one. Got {make_head!r} instead.")
    head = make_head(stock.in_features, stock.out_features)
    if isinstance(head, nn.Module) and batch_norm.layers(head):
        raise TypeError("head: BatchNorm needs many rows at once; give one with LayerNorm.")
    if not isinstance(head, nn.Module) or not _ends_in_logits(head.eval(), stock.in_features, stock.out_features):
        raise TypeError(
            "head: expected a function that makes a torch.nn.Module of which the last layer, torch.nn.Linear(..., "
            f"{stock.out_features}) with a bias, computes the logits. Got {head!r} instead."
        )
    # In a container, so that no weight of the head has the name of a stock one.
    model.set_submodule(name, nn.Sequential(head))
    return name


def _ends_in_logits(head: nn.Module, width: int, outputs: int) -> bool:
    """Return whether a head's last layer is a linear one with a bias whose output is the head's."""
    last = list(head.modules())[-1]
    if not isinstance(last, nn.Linear) or last.bias is None or last.out_features != outputs:
        return False
    computed: list[torch.Tensor] = []
    with torch.no_grad(), last.register_forward_hook(lambda module, args, output: computed.append(output)):
        logits = head(torch.randn(2, width))
    return any(output.shape == logits.shape and torch.allclose(output, logits, atol=1e-5) for output in computed)

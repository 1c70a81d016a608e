"""Enable packing if packed and padded texts have the same logits and gradients on real rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from classify.data.sampler import Rows
from classify.data.tokenize import Tokens
from classify.distributed.memory import attempt, out_of_memory
from classify.distributed.world import World
from classify.errors import InputError
from classify.modeling.classifier import Classifier
from classify.modeling.cls_hooks import find_encoder
from classify.modeling.fixed_shapes import FixedShapes
from classify.modeling.layers import repeated_layers
from classify.modeling.precision import fp32_products

# In fp32 packed and padded texts differ by rounding only, below 1e-5 of the difference between texts.
_ROUNDING = 1e-3
# Below fp32: the most that packed texts may differ from fp32, relative to padded ones. With MiniLM in bf16 they differ
# 0.7 to 1.7 times as much; with a boundary one token off 30 to 130 times; with attention between two texts, or a
# doubled gradient of the queries, at least 19 times.
_TIMES_ROUNDING = 5.0


def choose_packing(
    classifier: Classifier, tokens: Tokens, rows: Rows, world: World, requested: str = "auto", *, training: bool = True
) -> str:
    """Enable packing if packed and padded texts agree on a few real rows; return the reason.

    Device and precision of the model must be set, so that the kernels of the run are compared: forward and backward
    pass of training, and scoring. Dropout is off. A collective. Raises InputError if packing is `requested` but not
    possible.
    """
    if world.accelerator.static_shapes and requested != "packed":
        classifier.use_packing(False)
        classifier.padding = FixedShapes(world.accelerator)
        return "to powers of two, to avoid recompilation"
    if requested == "padded":
        classifier.use_packing(False)
        return "as requested"
    kind = classifier.model.config.model_type
    reason, fault = "outputs match padded batches", None
    if find_encoder(classifier.model) is None or not getattr(classifier.model, "_supports_attention_backend", False):
        fault = f"{kind} does not support custom attention"
    else:
        longest_first = rows[np.argsort(-tokens.lengths(rows), kind="stable")]
        sample = longest_first[np.unique(np.linspace(0, len(rows) - 1, num=min(8, len(rows))).astype(np.int64))]
        differences = _differences_in_memory(classifier, tokens, sample, world.device, training)
        shares = {what: share for what, (share, bound) in differences.items() if not share <= bound}
        if shares:
            words = " and ".join(f"{what} differ by {share:.1e}" for what, share in shares.items())
            fault = f"packed and padded {words} for {kind}"
        if world.all_reduce_any(fault is not None) and fault is None:
            fault = "packed and padded outputs differ on another rank"
    if requested == "packed" and fault is not None:
        raise InputError(f"--packing packed is not possible: {fault}; leave it at auto.")
    classifier.use_packing(fault is None)
    return fault or reason


def _differences_in_memory(
    classifier: Classifier, tokens: Tokens, rows: Rows, device: torch.device, training: bool
) -> dict[str, tuple[float, float]]:
    """Compare the rows, longest first; if memory runs out, the shorter half of them."""
    while True:
        differences, _ = attempt(
            partial(_packed_differences, classifier, tokens, rows, device, training), device, reraise=len(rows) == 1
        )
        if differences is not None:
            return differences
        rows = rows[(len(rows) + 1) // 2 :]


def _packed_differences(
    classifier: Classifier, tokens: Tokens, rows: Rows, device: torch.device, training: bool
) -> dict[str, tuple[float, float]]:
    """Compare packed texts with single texts in fp32: {output: (difference, threshold)}.

    Logits are relative to the largest difference between texts, since those of a random head are nearly equal;
    gradients to the largest. Infinite if the packed pass fails.
    """
    precision, was_training = classifier.precision, classifier.training

    def outputs(batches: list[Rows]) -> dict[str, torch.Tensor]:
        with precision.autocast(training):
            return _outputs(classifier, tokens, batches, device, training)

    alone = [np.array([row]) for row in rows]
    classifier.eval()
    try:
        classifier.use_packing(False)
        with fp32_products("ieee"):
            exact = _outputs(classifier, tokens, alone, device, training)
        rounded = outputs(alone) if precision.rounds else exact
        classifier.use_packing(True)
        packed = outputs([rows])
        if training:
            with precision.autocast(training=False):
                packed["scored logits"] = _outputs(classifier, tokens, [rows], device, gradients=False)["logits"]
            exact["scored logits"], rounded["scored logits"] = exact["logits"], rounded["logits"]
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, LookupError) as error:
        if out_of_memory(error):
            raise
        return {"logits": (float("inf"), 0.0)}
    finally:
        classifier.train(was_training)
    differences = {}
    for what, expected in exact.items():
        # A single text has no difference between texts.
        zero = expected.mean(dim=0) if what != "gradients" and len(rows) > 1 else 0.0
        scale = max(float((expected - zero).abs().max()), 1e-6 if what != "gradients" else 1e-30)
        shares = [float((actual[what] - expected).abs().max()) / scale for actual in (packed, rounded)]
        differences[what] = (shares[0], max(_ROUNDING, _TIMES_ROUNDING * shares[1]))
    return differences


def _outputs(
    classifier: Classifier, tokens: Tokens, batches: list[Rows], device: torch.device, gradients: bool
) -> dict[str, torch.Tensor]:
    """Compute logits (N, classes) of the rows of some batches and, if layers are trained, gradients (T, H).

    These are of the sum of first logits with respect to the input of the lowest trained layer, so they pass through
    every attention of the backward pass.
    """
    logits: list[torch.Tensor] = []
    collected: list[torch.Tensor] = []
    states: list[torch.Tensor] = []

    def require_gradient(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append((args[0] if args else kwargs["hidden_states"]).requires_grad_())

    layers = repeated_layers(classifier.model) or [classifier.model.base_model.encoder]  # ALBERT repeats one
    trained = [layer for layer in layers if any(parameter.requires_grad for parameter in layer.parameters())]
    hooks = [layer.register_forward_pre_hook(require_gradient, with_kwargs=True) for layer in trained[:1] if gradients]
    try:
        with torch.set_grad_enabled(gradients):
            for rows in batches:
                states.clear()
                output = classifier.logits(classifier.batch(tokens, rows).to(device)).float()
                logits.append(output.detach().cpu())
                if states:
                    # Times 1,024 against underflow in fp16, as a gradient scaler does in training.
                    (gradient,) = torch.autograd.grad(1024 * output[:, 0].sum(), states)
                    collected.append(gradient.flatten(0, 1)[: int(tokens.lengths(rows).sum())].float().cpu())
    finally:
        for hook in hooks:
            hook.remove()
    outputs = {"logits": torch.cat(logits)}
    return {**outputs, "gradients": torch.cat(collected)} if collected else outputs

"""What only each text's first token needs: the pooler, the head, and most of the last layer.

The classifier reads one token a text. Behind the last layer's attention nothing mixes tokens any more, so its queries,
its output projection and its feed-forward part, an eighth of MiniLM's arithmetic, are computed for those tokens alone.
The result is the same; `classify.modeling.classifier.verify_packing` checks it on real rows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from classify.distributed.sharding import repeated_layers
from classify.modeling.layout import Boundaries

# In a layer: the module that first sees the attention's output, with the residual beside it or already added.
_BEHIND_ATTENTION = ("attention.output", "sa_layer_norm")
# And the projection that makes its queries.
_QUERIES = ("attention.self.query", "attention.q_lin")


class _ForwardPass(threading.local):
    """Boundaries of the forward pass that this thread is in: those of its batch, and where its last layer has them.

    Hooks have no other way to them, and a module's attribute would be shared by the threads of a web service.
    """

    batch: Boundaries | None = None
    last_layer: Boundaries | None = None


_forward_pass = _ForwardPass()


@contextlib.contextmanager
def packed_batch(boundaries: Boundaries) -> Iterator[None]:
    """Have the hooks of a model that is called inside take its input for a packed row."""
    _forward_pass.batch = boundaries
    try:
        yield
    finally:
        _forward_pass.batch = _forward_pass.last_layer = None


def encoder_of(model: Any) -> nn.Module | None:
    """The module whose output is the last hidden state of a stock classifier, or None where none is known."""
    base = model.base_model
    for name in ("final_norm", "encoder", "transformer"):
        module = getattr(base, name, None)
        if isinstance(module, nn.Module):
            return module
    return None


def install_cls_hooks(model: Any) -> None:
    """Hook a stock classifier so that, of a packed row, its encoder gives one row a text, and computes little more."""
    encoder: Any = encoder_of(model)
    if encoder is None:
        return
    encoder.pool_mean = getattr(model.config, "classifier_pooling", "cls") == "mean"
    encoder.register_forward_hook(select_cls)
    layers = repeated_layers(encoder)
    query, point = (_found(layers[-1], names) if layers else None for names in (_QUERIES, _BEHIND_ATTENTION))
    if query is not None and point is not None and not encoder.pool_mean:
        for module in layers[-1].modules():
            module.cls_only = True  # type: ignore[assignment]
        # Not on the layer: where it is computed again in the backward pass, only hooks inside it run again.
        layers[-1].get_submodule("attention").register_forward_pre_hook(_remember_boundaries, with_kwargs=True)
        point.register_forward_pre_hook(select_first_tokens)
        query.register_forward_pre_hook(select_first_tokens)
        query.register_forward_hook(scatter_queries)


def cls_only(module: nn.Module) -> bool:
    """Whether the output of this attention module is needed at each text's first token only."""
    return bool(getattr(module, "cls_only", False))


def _found(layer: nn.Module, names: tuple[str, ...]) -> Any:
    modules = dict(layer.named_modules())
    return next((modules[name] for name in names if name in modules), None)


def _remember_boundaries(attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Hook before the last layer's attention: remember the boundaries, which are among its keywords."""
    boundaries = kwargs.get("boundaries")
    weight = next(attention.parameters(), None)  # DataParallel's replicas have none
    if boundaries is not None and weight is not None and not weight.is_meta:
        boundaries = boundaries.to(weight.device)  # of a layer on another device they come from the one before
    _forward_pass.last_layer = boundaries


def select_first_tokens(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
    """Hook: (1, T, H) inputs become (1, N, H)."""
    boundaries = _forward_pass.last_layer
    return None if boundaries is None else tuple(one.index_select(1, boundaries.starts) for one in args)


def scatter_queries(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    """Hook: queries (1, N, H) at their tokens' places in (1, T, H); nobody looks from the others."""
    boundaries = _forward_pass.last_layer
    if boundaries is None:
        return output
    whole = output.new_zeros((1, boundaries.tokens, output.shape[2]))
    return whole.index_copy(1, boundaries.starts, output)


def select_cls(module: Any, args: Any, output: Any) -> Any:
    """Hook behind the encoder: hidden states of a packed row, (1, T, H) or (1, N, H), become (N, 1, H)."""
    boundaries = _forward_pass.batch
    if boundaries is None:
        return output
    hidden = (output if isinstance(output, torch.Tensor) else output[0]).squeeze(0)
    boundaries = boundaries.to(hidden.device)
    if module.pool_mean:
        hidden = _text_means(hidden, boundaries)
    elif len(hidden) != len(boundaries.starts):
        hidden = hidden.index_select(0, boundaries.starts)
    kept = hidden[:, None]
    if isinstance(output, torch.Tensor):
        return kept
    if isinstance(output, tuple):
        return (kept, *output[1:])
    output["last_hidden_state"] = kept
    return output


def _text_means(hidden: torch.Tensor, boundaries: Boundaries) -> torch.Tensor:
    """(T, H) to (N, H): each text's mean over its tokens."""
    means = [
        hidden[start : start + count * length].unflatten(0, (count, length)).mean(dim=1)
        for start, count, length in boundaries.groups
    ]
    return torch.cat(means)[: len(boundaries.starts)]  # without the filling's

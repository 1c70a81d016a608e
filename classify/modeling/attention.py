"""Attention within each text of a packed row.

Token-wise layers see one row of T tokens, without padding. Only attention needs the boundaries of texts: a function
registered with transformers' `AttentionInterface` receives them as a keyword. It computes attention in the way of the
device, where there is one (`cpu_attention`, `gpu_attention`), else by torch.

The classifier reads one token per text, and nothing after the last layer's attention mixes tokens. So hooks restrict
the last layer's queries, output projection and feed-forward part, an eighth of MiniLM's arithmetic, the pooler and the
head to each text's first token. The result is the same; tests/modeling/test_architectures.py shows it.

The boundaries of texts arrive in three ways: attention gets them as a keyword, the hooks of the last layer remember
that keyword, and the encoder's own hook, which gets no keywords, reads what `mark_packed` has set for this thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from classify.modeling import cpu_attention, gpu_attention
from classify.modeling.layers import repeated_layers
from classify.modeling.packing import Boundaries

# Names of attention over packed texts for transformers: in the way of the device, and by torch only.
BY_DEVICE = "classify_packed"
BY_TORCH = "classify_packed_torch"
# The first module of a layer after attention; its input has the residual as second argument or added.
_AFTER_ATTENTION = ("attention.output", "sa_layer_norm")
# The query projection of a layer.
_QUERIES = ("attention.self.query", "attention.q_lin")
# By type of device: the name in run.json, and the function, which returns None for what it does not support.
KERNELS = {"cpu": ("attention", cpu_attention.attend), "cuda": ("ragged attention", gpu_attention.attend)}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    boundaries: Boundaries,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    by_device: bool,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention within each text of a packed row.

    query, key, value: (1, heads, T, d). Returns (1, T, heads, d). With a `sliding_window` w a token attends to those at
    a distance of at most w - 1, as in transformers' masks for ModernBERT.
    """
    assert attention_mask is None, "packed texts carry boundaries instead of a mask"
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    window = -1 if sliding_window is None or sliding_window > boundaries.longest else sliding_window - 1
    # `install_hooks` sets cls_only where the output is needed at each text's first token only.
    cls_only = getattr(module, "cls_only", False)
    if by_device and q.device.type in KERNELS:
        _name, attend = KERNELS[q.device.type]
        attended = attend(q, k, v, boundaries, scale=scale, dropout=dropout, window=window, cls_only=cls_only)
        if attended is not None:
            return attended[None], None
    return _attend_by_length(q, k, v, boundaries, scale, dropout, window, cls_only)[None], None


def _attend_by_length(
    q: Tensor, k: Tensor, v: Tensor, bounds: Boundaries, scale: float, dropout: float, window: int, cls_only: bool
) -> Tensor:
    """Call torch's attention once for neighbouring texts of equal length: (T, heads, d) each."""
    outputs = []
    for start, count, length in bounds.groups:
        stop = start + count * length
        queries, keys, values = (t[start:stop].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v))
        mask = None
        if 0 <= window < length - 1:
            places = torch.arange(length, device=q.device)
            mask = (places[:, None] - places[None, :]).abs() <= window
        if cls_only:
            queries, mask = queries[:, :, :1], None if mask is None else mask[:1]
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if not cls_only:
        return joined
    starts = bounds.starts  # excludes the padding
    return joined.new_zeros(q.shape).index_copy(0, starts, joined[: len(starts)])


AttentionInterface.register(BY_DEVICE, partial(packed_attention, by_device=True))
AttentionInterface.register(BY_TORCH, partial(packed_attention, by_device=False))


class _ForwardPass(threading.local):
    """State of this thread's forward pass, for hooks.

    Module attributes would be shared by the threads of a web service and of DataParallel. `batch` are the boundaries of
    the packed batch, `last_layer` the same on the device of the last layer. `features` receives the input of the output
    layer.
    """

    batch: Boundaries | None = None
    last_layer: Boundaries | None = None
    features: list[Tensor] | None = None


_forward_pass = _ForwardPass()


@contextlib.contextmanager
def mark_packed(boundaries: Boundaries | None) -> Iterator[None]:
    """Mark the input of models called inside as a packed row with these boundaries, for hooks; None: as padded."""
    _forward_pass.batch = boundaries
    try:
        yield
    finally:
        _forward_pass.batch = _forward_pass.last_layer = None


@contextlib.contextmanager
def collect_features() -> Iterator[list[Tensor]]:
    """Collect the input of the output layer, (n, width), of each forward pass inside."""
    _forward_pass.features = []
    try:
        yield _forward_pass.features
    finally:
        _forward_pass.features = None


def find_encoder(model: Any) -> nn.Module | None:
    modules = (getattr(model.base_model, name, None) for name in ("final_norm", "encoder", "transformer"))
    return next((module for module in modules if isinstance(module, nn.Module)), None)


def install_hooks(model: Any, output_layer: nn.Module) -> None:
    """Hook a stock classifier: for a packed row its encoder returns one state per text."""
    output_layer.register_forward_pre_hook(_remember_features)
    encoder: Any = find_encoder(model)
    if encoder is None:
        return
    encoder.pool_mean = getattr(model.config, "classifier_pooling", "cls") == "mean"
    encoder.register_forward_hook(_select_cls)
    layers = repeated_layers(encoder)
    modules = dict(layers[-1].named_modules()) if layers else {}
    query, after = (next((modules[n] for n in names if n in modules), None) for names in (_QUERIES, _AFTER_ATTENTION))
    if query is not None and after is not None and not encoder.pool_mean:
        for module in modules.values():
            module.cls_only = True
        # Not on the layer: with checkpointing, only hooks inside it run again in the backward pass.
        modules["attention"].register_forward_pre_hook(_remember_boundaries, with_kwargs=True)
        after.register_forward_pre_hook(_select_first_tokens)
        query.register_forward_pre_hook(_select_first_tokens)
        query.register_forward_hook(_scatter_queries)


def _remember_features(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    if _forward_pass.features is not None:
        _forward_pass.features.append(args[0])


def _remember_boundaries(attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Remember the boundaries, a keyword of the last layer's attention, on that layer's device."""
    boundaries = kwargs.get("boundaries")
    weight = next(attention.parameters(), None)  # DataParallel's replicas have none
    if boundaries is not None and weight is not None and not weight.is_meta:
        boundaries = boundaries.to(weight.device)  # the layer may be on another device
    _forward_pass.last_layer = boundaries


def _select_first_tokens(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    boundaries = _forward_pass.last_layer
    return None if boundaries is None else tuple(arg.index_select(1, boundaries.starts) for arg in args)


def _scatter_queries(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Scatter queries (1, N, H) to their tokens' positions in (1, T, H); the others stay zero."""
    boundaries = _forward_pass.last_layer
    if boundaries is None:
        return output
    queries = output.new_zeros((1, boundaries.tokens, output.shape[2]))
    return queries.index_copy(1, boundaries.starts, output)


def _select_cls(module: Any, args: Any, output: Any) -> Any:
    """Turn the hidden states of a packed row, (1, T, H) or (1, N, H), into (N, 1, H)."""
    boundaries = _forward_pass.batch
    if boundaries is None:
        return output
    hidden = (output if isinstance(output, Tensor) else output[0]).squeeze(0)
    boundaries = boundaries.to(hidden.device)
    if module.pool_mean:
        hidden = _text_means(hidden, boundaries)
    elif len(hidden) != len(boundaries.starts):
        hidden = hidden.index_select(0, boundaries.starts)
    selected = hidden[:, None]
    if isinstance(output, Tensor):
        return selected
    output["last_hidden_state"] = selected
    return output


def _text_means(hidden: Tensor, boundaries: Boundaries) -> Tensor:
    """Average each text's tokens: (T, H) to (N, H).

    Only the tensors of the boundaries say where texts end. A recorded pass is replayed with other texts in them, but
    Python's numbers stay as they were when it was recorded.
    """
    ends = boundaries.cumulative[1:]
    text = torch.searchsorted(ends, torch.arange(boundaries.tokens, device=ends.device, dtype=ends.dtype), right=True)
    sums = hidden.new_zeros((len(ends), hidden.shape[1]), dtype=torch.float32).index_add(0, text, hidden.float())
    means = sums / boundaries.cumulative.diff()[:, None]
    return means[: len(boundaries.starts)].to(hidden.dtype)  # excludes the padding

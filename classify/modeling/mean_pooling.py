"""Mean pooling in a stock architecture: one more encoder layer with uniform attention.

Sentence encoders are trained on the mean of the last hidden states, not on the first token or the pooler (Reimers and
Gurevych, 2019, "Sentence-BERT", section 3), but a classifier reads the first token. With zero query weights the added
layer's attention is uniform. Value and output projection are sqrt(s) times the identity and its feed-forward output is
zero, so the first token becomes LayerNorm(s * mean + first token). The layer before the classifier is 0.3 times the
identity: its tanh is nearly linear there. The architecture stays stock, and all of it is trained.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

# Weight of the mean relative to the first token. For s from 10 to 30 features are alike: their cosine to the centred
# mean is at least 0.995. Larger values lose digits in half precision.
_STRENGTH = 10.0
_HEAD_SCALE = 0.3
# Keeps 0.3 times a normalized state positive, so that DistilBERT's ReLU is the identity.
_RELU_BIAS = 3.0


@torch.no_grad()
def append_layer(stock: Any) -> None:
    """Add the layer, in place, to a sequence classifier with `ModelFolder.added_layers` of 1."""
    if stock.config.model_type == "distilbert":
        _append_to_distilbert(stock)
    else:
        _append_to_bert(stock)


def _append_to_bert(stock: Any) -> None:
    """Append to BERT, whose encoder has the pooler, or to RoBERTa-like models, whose head has it."""
    layers = stock.base_model.encoder.layer
    layer = type(layers[-1])(stock.config, layer_idx=len(layers))
    layer.load_state_dict(layers[-1].state_dict())
    attention, output = layer.attention.self, layer.attention.output
    _set_average(attention.query, attention.value, output.dense)
    _disable(layer.output.dense, output.LayerNorm, layer.output.LayerNorm)
    output.dropout.p = 0.0  # it would drop whole features of the mean
    layers.append(layer)
    stock.config.num_hidden_layers = len(layers)
    pooler = getattr(stock.base_model, "pooler", None)
    _scale_identity(stock.classifier.dense if pooler is None else pooler.dense, _HEAD_SCALE)


def _append_to_distilbert(stock: Any) -> None:
    layers = stock.distilbert.transformer.layer
    layer = type(layers[-1])(stock.config)
    layer.load_state_dict(layers[-1].state_dict())
    _set_average(layer.attention.q_lin, layer.attention.v_lin, layer.attention.out_lin)
    _disable(layer.ffn.lin2, layer.sa_layer_norm, layer.output_layer_norm)
    layers.append(layer)
    stock.config.n_layers = len(layers)
    _scale_identity(stock.pre_classifier, _HEAD_SCALE, _RELU_BIAS)


def _set_average(query: nn.Linear, value: nn.Linear, output: nn.Linear) -> None:
    """Make attention uniform with output `_STRENGTH` times the mean; the keys are unchanged."""
    _scale_identity(query, 0.0)
    _scale_identity(value, math.sqrt(_STRENGTH))
    _scale_identity(output, math.sqrt(_STRENGTH))


def _scale_identity(linear: nn.Linear, scale: float, bias: float = 0.0) -> None:
    nn.init.eye_(linear.weight).mul_(scale)
    nn.init.constant_(linear.bias, bias)


def _disable(feed_forward: nn.Linear, *norms: nn.LayerNorm) -> None:
    _scale_identity(feed_forward, 0.0)
    for norm in norms:
        norm.reset_parameters()

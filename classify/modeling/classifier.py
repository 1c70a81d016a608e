"""The classifier: a stock sequence classifier with its collation, precision and kernels."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from classify.data.tokenize import Tokens
from classify.findings import Finding
from classify.launch.devices import accelerator_of
from classify.modeling import lora, sizes
from classify.modeling.cls_hooks import collect_features, install_hooks, mark_packed
from classify.modeling.hub import first_position
from classify.modeling.kernels.base import AttentionKernel, Kernel
from classify.modeling.kernels.linear import uses_onednn_linear
from classify.modeling.kernels.registry import install
from classify.modeling.layers import has_batch_norm
from classify.modeling.packing import BY_KERNELS, BY_TORCH, Batch, Padding, pack, pad_packed, round_tokens
from classify.modeling.precision import FP32, Precision
from classify.modeling.vocabulary import Vocabulary, make_vocabulary

# Packed batches for oneDNN on a CPU are padded to a multiple of this: oneDNN compiles code for each new shape, and the
# C library reuses memory of repeated sizes. In a step of 32 short texts padding costs 2 % of the time, but repeated
# shapes save 10 % of it in bf16, 8 to 12 % in fp32.
_MULTIPLE = 16


class Classifier(nn.Module):
    """A stock `...ForSequenceClassification` (`model`) that takes packed or padded batches of texts."""

    def __init__(self, model: Any, pad_token_id: int, findings: Sequence[Finding] = ()):
        super().__init__()
        self.model = model
        self.precision = FP32
        self.packed = False
        self.vocabulary: Vocabulary | None = None
        self._adapters: list[Any] = []  # PEFT's wrapper; in a list, so that it is not a submodule
        self.kernels: tuple[Kernel, ...] = ()
        self.findings = tuple(findings)  # for the user, on loading
        self._pad_token_id = pad_token_id
        self._first_position = first_position(model.config.to_dict())
        self._autocasts = True
        self._attention = BY_TORCH
        self.padding = Padding()  # shapes of padded batches, and of targets
        self._token_multiple = 1
        self.rounds_tokens = False  # packed batches of training have few sizes
        self._limits_tokens = False
        install_hooks(model, output_layer(model))

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def output_layer(self) -> nn.Linear:
        return output_layer(self.model)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a micro-batch, with padding; None for no limit."""
        return sizes.tokens_at_once(self.hidden_size, packed=self.packed) if self._limits_tokens else None

    def batch(self, tokens: Tokens, rows: npt.NDArray[np.int64]) -> Batch:
        """Collate one or more rows into a packed or padded batch."""
        assert len(rows), "a batch holds at least one row"
        collated, padding = tokens.collate(rows), self._pad_token_id
        if self.vocabulary is not None:
            collated = dataclasses.replace(collated, ids=self.vocabulary.map_ids(collated.ids))
            padding = int(self.vocabulary.map_ids(np.array([padding]))[0])
        if self.packed:
            packed = pack(collated, self._first_position)
            bounds = packed.boundaries
            assert bounds is not None
            if self.rounds_tokens and self.training:
                return pad_packed(packed, round_tokens(bounds.tokens))
            return pad_packed(packed, -(-bounds.tokens // self._token_multiple) * self._token_multiple)
        return self.padding.batch(collated, padding, len(rows))

    def use_packing(self, packed: bool) -> None:
        """Switch between packed and padded batches; the weights are unchanged."""
        self.packed = packed
        # A name: transformers calls the function registered under it, `packing.packed_attention`.
        stock = "sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager"
        self.model.set_attn_implementation(self._attention if packed else stock)

    def set_precision(self, precision: Precision) -> None:
        """Set the precision, and pad packed batches and split steps where that is faster.

        Packed batches are not padded with BatchNorm, whose statistics would include padding.
        """
        self.precision = precision
        accelerator, has_norms = accelerator_of(precision.device_type), has_batch_norm(self.model)
        by_onednn = precision.half_dtype is not None or uses_onednn_linear(self.model)
        pads = accelerator.is_host and by_onednn and not has_norms
        self._token_multiple = _MULTIPLE if pads else 1
        self._limits_tokens = sizes.limits_tokens(
            accelerator, half_weights=precision.rounds_weights, batch_norm=has_norms
        )

    def install_kernels(self, device: torch.device, off: Container[str] = ()) -> None:
        """Install the kernels that apply on a device, except those named in `off`."""
        self.kernels = install(self.model, device, off)
        if any(isinstance(kernel, AttentionKernel) for kernel in self.kernels):
            self._attention = BY_KERNELS

    def loses_attention_dropout(self, device: torch.device) -> bool:
        """Whether a kernel for packed texts has no dropout."""
        half, config = self.precision.half_dtype, self.model.config
        return self.packed and any(
            kernel.loses_dropout(device, half, self.hidden_size // int(config.num_attention_heads))
            for kernel in self.kernels
        )

    def stock_config(self) -> str | None:
        """Return config.json of the weights as they are; None if they fit no stock model."""
        compacted = self.vocabulary is not None and self.vocabulary.compacted
        is_stock = not compacted and not self.has_adapters
        return str(self.model.config.to_json_string()) if is_stock else None

    def compact_vocabulary(self, tables: Sequence[Tokens], special_ids: Iterable[int], *, compact: bool) -> None:
        """Cut the word embeddings to the tokens that occur in `tables`; see `make_vocabulary`."""
        # RoBERTa-like models count positions from the id of padding, which must not change.
        before_padding = range(self._pad_token_id + 1 if self._first_position else 0)
        kept = [*special_ids, self._pad_token_id, *before_padding]
        self.vocabulary = make_vocabulary(self.model, tables, kept, compact=compact)

    def drop_unused_embeddings(self) -> None:
        """Free the embeddings before training, on processes that never save the model."""
        if self.vocabulary is not None:
            self.vocabulary = dataclasses.replace(self.vocabulary, full=self.vocabulary.full.new_empty(0))

    @property
    def has_adapters(self) -> bool:
        return bool(self._adapters)

    def add_adapters(self, rank: int, alpha: int) -> None:
        """Freeze all but the head and add LoRA matrices; see `lora.add_adapters`."""
        self._adapters.append(lora.add_adapters(self.model, rank, alpha))

    def merge_adapters(self) -> None:
        """Merge the LoRA matrices into their layers; the architecture is stock again."""
        while self._adapters:
            self._adapters.pop().merge_and_unload()

    def forward(self, batch: Batch, *, features: bool = False) -> torch.Tensor:
        """Compute logits (N, classes) of the batch's N rows, in order, or `features`: the output layer's input (N, H).

        Rows of several sequences have their mean.

        Autocast is entered here, since DataParallel's threads would not inherit its dtype from the caller.
        """
        # The output layer of a regression holds the mean of the scores; in half precision all scores would round to it.
        head_in_fp32 = self.precision.rounds_scores and not self.training and not features
        with self.precision.autocast(self.training) if self._autocasts else contextlib.nullcontext():
            outputs = self.features(batch) if features or head_in_fp32 else self.logits(batch)
        if head_in_fp32:
            outputs = self.output_layer(outputs.float())
        return outputs if batch.rows is None else batch.rows.mean(outputs.float())

    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute logits in the current autocast state; `precision` is ignored.

        transformers passes `boundaries` on to `packing.packed_attention`, which takes the first kernel that supports
        the device and dtype.
        """
        with mark_packed(batch.boundaries):
            boundaries = {} if batch.boundaries is None else {"boundaries": batch.boundaries}
            return self.model(**batch.tensors, **boundaries, return_dict=True).logits

    def features(self, batch: Batch) -> torch.Tensor:
        """Compute the input of the output layer in the current autocast state."""
        with collect_features() as collected:
            self.logits(batch)
        return collected[0]

    def use_autocast(self, used: bool) -> None:
        """Whether forward passes enter autocast; weights in half precision need none."""
        self._autocasts = used


def output_layer(model: Any) -> nn.Linear:
    """The last linear layer of a stock classifier, which computes the logits."""
    classes = model.config.num_labels
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    assert layers, f"{type(model).__name__} ends in no linear layer with {classes} outputs"
    return layers[-1]

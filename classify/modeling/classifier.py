"""The classifier: a stock sequence classifier with its collation, precision and kernels."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from classify.data.tokenize import Tokens
from classify.distributed.world import World
from classify.errors import InputError
from classify.launch.devices import Accelerator, accelerator_of
from classify.modeling.attention import (
    BY_DEVICE,
    BY_TORCH,
    KERNELS,
    collect_features,
    find_encoder,
    install_hooks,
    mark_packed,
)
from classify.modeling.cpu_layers import replace_layers
from classify.modeling.find import first_position
from classify.modeling.gpu_attention import flash_applies
from classify.modeling.layers import add_adapters, has_batch_norm, output_layer
from classify.modeling.packing import PACKABLE, Batch, pack, pad, pad_packed, round_tokens
from classify.modeling.precision import FP32, Precision
from classify.modeling.vocabulary import Vocabulary, make_vocabulary

# Packed batches for oneDNN on a CPU are padded to a multiple of this: oneDNN compiles code for each new shape, and the
# C library reuses memory of repeated sizes. In a step of 32 short texts padding costs 2 % of the time, but repeated
# shapes save 10 % of it in bf16, 8 to 12 % in fp32.
_MULTIPLE = 16
# Elements of a packed micro-batch's hidden state on a CPU. Steps with eight to sixteen times as many took up to 1.7
# times as long: the backward pass then outgrows the memory that the C library reuses between steps. Twice as many take
# as long (384 wide), and more memory.
_STATE = 3 << 18
# But no fewer tokens than these: half of them cost 5 to 10 % (768 wide).
_LEAST_TOKENS = 2048
# Tokens of a padded micro-batch on a CPU, with padding; texts of similar length share one. Relative to micro-batches of
# 8 rows, a DeBERTa step of 32 texts took 0.8 (long) to 1.06 (short) of the time, with half as many tokens 0.85 to 1.0,
# and with all texts at once 1.2 to 1.6, most of it for padding.
_PADDED_TOKENS = 1024


class Classifier(nn.Module):
    """A stock `...ForSequenceClassification` (`model`) that takes packed or padded batches of texts.

    `kernels` are the names in run.json.
    """

    def __init__(self, model: Any, pad_token_id: int):
        super().__init__()
        self.model = model
        self.precision = FP32
        self.packed = False
        self.vocabulary: Vocabulary | None = None
        self.kernels: tuple[str, ...] = ()
        self.hidden_size = int(model.config.hidden_size)
        self.shapes: Accelerator | None = None  # names the sizes of padded batches, where a device has few
        self.rounds_tokens = False  # packed batches of training have few sizes
        self.eval_parts = 1  # each evaluation batch is computed in so many; more once memory ran out
        self._adapters: list[Any] = []  # PEFT's wrapper; in a list, so that it is not a submodule
        self._pad_token_id = pad_token_id
        self._first_position = first_position(model.config.to_dict())
        self._autocasts = True
        self._attention = BY_TORCH
        self._token_multiple = 1
        self._limits_tokens = False
        install_hooks(model, output_layer(model))

    @property
    def output_layer(self) -> nn.Linear:
        return output_layer(self.model)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a micro-batch, with padding; None for no limit."""
        return tokens_at_once(self.hidden_size, packed=self.packed) if self._limits_tokens else None

    def check_ids(self, tokens: Tokens, tokenizer: Any, name: str) -> None:
        """Raise InputError where a text holds an id or a token type that the model's embeddings have no row for."""
        wanted = f"--model {name}: expected a tokenizer with"
        instead = "instead; put the tokenizer of these weights into the model folder."
        types, largest_type = getattr(self.model.config, "type_vocab_size", 0), max(tokens.template.types)
        if 0 < types <= largest_type:  # 0: the model ignores them
            raise InputError(
                f"{wanted} token types below {types}, the type_vocab_size in config.json. Got {largest_type} {instead}"
            )
        size = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        largest = max(*(int(segment.ids.max(initial=0)) for segment in tokens.segments), *tokens.template.tokens, 0)
        if size is not None and largest >= size:
            raise InputError(
                f"{wanted} ids below {size}, the rows of its embedding table. Got the id {largest} for the token "
                f"{tokenizer.convert_ids_to_tokens(largest)!r} {instead}"
            )

    def batch(self, tokens: Tokens, rows: npt.NDArray[np.int64]) -> Batch:
        """Collate one or more rows into a packed or padded batch."""
        assert len(rows), "a batch holds at least one row"
        collated, padding = tokens.collate(rows), self._pad_token_id
        if self.vocabulary is not None and self.vocabulary.renumber is not None:
            renumber = self.vocabulary.renumber
            collated = dataclasses.replace(collated, ids=renumber[collated.ids].astype(np.int64))
            padding = int(renumber[padding])
        if not self.packed:
            return pad(collated, padding, len(rows), self.shapes)
        count = len(collated.ids)
        if self.rounds_tokens and self.training:
            size = round_tokens(count)
        else:
            size = -(-count // self._token_multiple) * self._token_multiple
        return pad_packed(pack(collated, self._first_position), size)

    def use_packing(self, packed: bool, shapes: Accelerator | None = None) -> None:
        self.packed, self.shapes = packed, shapes
        # A name: transformers calls the function registered under it, `attention.packed_attention`.
        stock = "sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager"
        self.model.set_attn_implementation(self._attention if packed else stock)

    def set_precision(self, precision: Precision) -> None:
        """Set the precision, and pad packed batches and split steps where that is faster.

        Packed batches are not padded with BatchNorm, whose statistics would include padding, nor are steps split, since
        they would depend on micro-batches. With half weights steps are not split either: each sum of gradients rounds.
        """
        self.precision = precision
        in_caches = accelerator_of(precision.device_type).is_host and not has_batch_norm(self.model)
        by_onednn = precision.half_dtype is not None or "linear" in self.kernels
        self._token_multiple = _MULTIPLE if in_caches and by_onednn else 1
        self._limits_tokens = in_caches and not precision.rounds_weights

    def install_kernels(self, device: torch.device, off: Container[str] = ()) -> None:
        """Compute attention of packed texts, and layers, by the kernels for this device, except those in `off`."""
        layers = replace_layers(self.model, off) if device.type == "cpu" else []
        attention = [name for kind, (name, _) in KERNELS.items() if kind == device.type and name not in off]
        self.kernels = (*attention, *layers)
        self._attention = BY_DEVICE if attention else BY_TORCH

    def loses_attention_dropout(self, device: torch.device) -> bool:
        """Whether packed texts go through flash attention, which has no dropout."""
        if not self.packed or self._attention != BY_DEVICE:
            return False
        head_size = self.hidden_size // int(self.model.config.num_attention_heads)
        return flash_applies(device, self.precision.half_dtype, head_size)

    def stock_config(self) -> str | None:
        """config.json of the weights as they are; None if they fit no stock model."""
        is_stock = not self.has_adapters and not (self.vocabulary is not None and self.vocabulary.compacted)
        return str(self.model.config.to_json_string()) if is_stock else None

    def compact_vocabulary(self, tables: Sequence[Tokens], special_ids: Iterable[int], *, compact: bool) -> None:
        """Cut the word embeddings to the tokens that occur in `tables`; see `make_vocabulary`."""
        # RoBERTa-like models count positions from the id of padding, which must not change.
        before_padding = range(self._pad_token_id + 1 if self._first_position else 0)
        kept = [*special_ids, self._pad_token_id, *before_padding]
        self.vocabulary = make_vocabulary(self.model, tables, kept, compact=compact)

    def drop_unused_embeddings(self) -> None:
        if self.vocabulary is not None:
            self.vocabulary = dataclasses.replace(self.vocabulary, full=self.vocabulary.full.new_empty(0))

    @property
    def has_adapters(self) -> bool:
        return bool(self._adapters)

    def add_adapters(self, rank: int, alpha: int) -> None:
        self._adapters.append(add_adapters(self.model, rank, alpha))

    def merge_adapters(self) -> None:
        while self._adapters:
            self._adapters.pop().merge_and_unload()

    def use_autocast(self, used: bool) -> None:
        self._autocasts = used

    def forward(self, batch: Batch, *, features: bool = False) -> Tensor:
        """Compute logits (N, classes) of the batch's N rows, in order, or `features`: the output layer's input (N, H).

        Rows of several sequences have their mean.
        """
        # The output layer of a regression holds the mean of the scores; in half precision all scores would round to it.
        head_in_fp32 = self.precision.rounds_scores and not self.training and not features
        # transformers passes `boundaries` on to `attention.packed_attention`.
        boundaries = {} if batch.boundaries is None else {"boundaries": batch.boundaries}
        # Autocast is entered here, since DataParallel's threads would not inherit its dtype from the caller.
        autocast = self.precision.autocast(self.training) if self._autocasts else contextlib.nullcontext()
        with autocast, mark_packed(batch.boundaries), collect_features() as collected:
            outputs = self.model(**batch.tensors, **boundaries, return_dict=True).logits
        if features or head_in_fp32:
            outputs = collected[0]
        if head_in_fp32:
            outputs = self.output_layer(outputs.float())
        return outputs if batch.rows is None else batch.rows.mean(outputs.float())


def tokens_at_once(width: int, *, packed: bool) -> int:
    """The most tokens of a micro-batch, with padding; packed ones by hidden size: 2,048 from 384 on."""
    return max(_LEAST_TOKENS, _STATE // width) if packed else _PADDED_TOKENS


def choose_packing(classifier: Classifier, world: World, requested: str = "auto") -> str:
    """Pack or pad from here on; return the reason.

    `requested` is --packing: "packed" packs other architectures, too, if transformers lets their attention be replaced.
    Raises InputError where it does not.
    """
    kind = classifier.model.config.model_type
    if world.accelerator.compiles and requested != "packed":
        classifier.use_packing(False, world.accelerator)
        return "to powers of two, to avoid recompilation"
    if requested == "auto":
        classifier.use_packing(kind in PACKABLE)
        return f"{kind} {'can be' if kind in PACKABLE else 'is not known to be'} packed"
    if requested == "packed":
        replaceable = getattr(classifier.model, "_supports_attention_backend", False)
        if find_encoder(classifier.model) is None or not replaceable:
            raise InputError(
                f"--packing packed is not possible: {kind} does not support custom attention; leave it at auto."
            )
    classifier.use_packing(requested == "packed")
    return "as requested"

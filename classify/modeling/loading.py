"""Load stock models: pretrained with a new head, or trained by this program."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
import transformers
from torch import nn

from classify.data import tokenize
from classify.data.tokenize import Tokens
from classify.errors import InputError, list_some
from classify.findings import note
from classify.modeling.classifier import Classifier, output_layer
from classify.modeling.hub import FIRST_TOKEN_OPTION, WRAPPER_PREFIX, ModelFolder
from classify.modeling.layers import parameter_depths
from classify.modeling.mean_pooling import append_layer
from classify.modeling.result_folder import read_labels
from classify.modeling.sizes import check_frozen

# Weights of an encoder's repeated layers.
_LAYER = re.compile(r"(^|\.)layers?\.\d+\.")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Disable transformers' progress bars and warnings in this block."""
    settings = transformers.utils.logging
    verbosity, has_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if has_bars:
            settings.enable_progress_bar()


@contextlib.contextmanager
def _load_quietly() -> Iterator[None]:
    """Disable transformers' output, which fails where standard output was replaced by an object without `isatty`."""
    replaced = sys.stdout is not None and not hasattr(sys.stdout, "isatty")
    with quiet_libraries(), contextlib.redirect_stdout(io.StringIO()) if replaced else contextlib.nullcontext():
        yield


@_load_quietly()
def load_pretrained(
    folder: ModelFolder,
    labels: Sequence[str],
    *,
    seed: int,
    pad_token_id: int,
    dropout: float | None = None,
    problem_type: str = "single_label_classification",
    keep_head: bool = False,
) -> Classifier:
    """Load the model of a folder in float32 with a new head for `labels`, initialized from `seed`.

    With `keep_head` the output layer's rows are those of the same labels in the folder. `problem_type`
    is that of transformers. Raises InputError if transformers has no sequence classifier for the architecture, or the
    weights do not fit it.
    """
    torch.manual_seed(seed)
    try:
        config = _load_config(
            folder,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={name: number for number, name in enumerate(labels)},
            problem_type=problem_type,
        )
        if dropout is not None:
            _set_dropout(config, dropout)
        if folder.config["model_type"] in FIRST_TOKEN_OPTION:
            first = FIRST_TOKEN_OPTION[folder.config["model_type"]]
            config.classifier_pooling = "mean" if folder.pooling == "mean" else first
        model, loading = _from_pretrained(
            folder,
            output_loading_info=True,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # of the head; `_check_weights` rejects all others
            key_mapping={f"^{re.escape(WRAPPER_PREFIX)}": ""} if folder.wrapped else None,
        )
    except ValueError as error:
        signs = ("Unrecognized configuration class", "does not recognize", "custom code")
        if not any(sign in str(error) for sign in signs):
            raise
        raise InputError(
            f"--model {folder.name}: transformers has no sequence classifier for the architecture "
            f"{folder.config['model_type']!r} without running code from the model; give a BERT-like model."
        ) from None
    if output_layer(model).bias is None or getattr(model.config, "summary_type", None) == "last":
        raise InputError(
            f"--model {folder.name}: the classifier of the architecture {folder.config['model_type']!r} reads a text's "
            "last token, as decoders do; give a BERT-like model, which reads the first."
        )
    try:
        model.get_input_embeddings()
    except NotImplementedError:
        raise InputError(
            f"--model {folder.name}: the architecture {folder.config['model_type']!r} has no table of word embeddings, "
            "as those that read characters; give a BERT-like model."
        ) from None
    _check_weights(folder.name, model.base_model_prefix, loading)
    unread = sorted(key for key in loading["unexpected_keys"] if _LAYER.search(key))
    if folder.wrapped:  # transformers would save renamed weights under the old names
        loaded = model.state_dict()
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        model.load_state_dict(loaded)
    if keep_head:
        _load_head(model, folder, labels)
    else:
        _reset_head(model, {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if folder.added_layers:
        append_layer(model)
    texts = [f"the weights have more layers than config.json; not loaded: {unread[0]}, ..."] if unread else []
    return Classifier(model, pad_token_id, list(map(note, texts)))


def load_tokenizer(folder: ModelFolder) -> Any:
    """Load the tokenizer of a model; see `classify.data.tokenize.load_tokenizer`."""
    return folder.quantized.tokenizer() if folder.quantized is not None else tokenize.load_tokenizer(str(folder.path))


def _load_config(folder: ModelFolder, **values: Any) -> Any:
    if folder.quantized is not None:
        return transformers.BertConfig(**{**folder.config, **values})
    return transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False, **values)


def _from_pretrained(folder: ModelFolder, **values: Any) -> Any:
    """Load the stock sequence classifier of a model; `values` are those of transformers' from_pretrained."""
    if folder.quantized is not None:
        weights = {name: torch.from_numpy(array) for name, array in folder.quantized.state_dict().items()}
        return transformers.BertForSequenceClassification.from_pretrained(None, state_dict=weights, **values)
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder.path, use_safetensors=True, trust_remote_code=False, **values
    )


@_load_quietly()
def load_trained(path: Path, *, pad_token_id: int) -> Classifier:
    """Load a classifier that this program saved. Raises InputError if weights are missing."""
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, output_loading_info=True, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(
            f"--model {path}: {len(missing)} weights are missing in model.safetensors: {list_some(missing)}; "
            "copy the folder again."
        )
    for parameter in model.parameters():  # they are mapped: overwriting the file would end the process
        parameter.data = parameter.data.clone()
    # Evaluation mode from here on: switching modes per pass would affect other threads.
    return Classifier(model, pad_token_id).eval()


def _check_weights(name: str, base: str, loading: Mapping[str, Any]) -> None:
    """Raise InputError, naming the weights, if parts of the encoder would stay random.

    `loading` is the report of transformers. The head is new, and a language model's checkpoint has no pooler.
    """

    def is_new(key: str) -> bool:
        return not key.startswith(f"{base}.") or key.startswith(f"{base}.pooler.")

    missing = sorted(key for key in loading["missing_keys"] if not is_new(key))
    mismatched = sorted(
        f"{key} ({'x'.join(map(str, stored))} in the file, {'x'.join(map(str, expected))} by config.json)"
        for key, stored, expected in loading["mismatched_keys"]
        if not is_new(key)
    )
    faults = [
        f"{what} ({len(keys)}): {list_some(keys)}"
        for what, keys in (("weights missing in the file", missing), ("weights of another shape", mismatched))
        if keys
    ]
    if faults:
        raise InputError(
            f"--model {name}: the encoder would be partly random: {'; '.join(faults)}. Give matching "
            "weights and config.json."
        )


@torch.no_grad()
def _load_head(model: Any, folder: ModelFolder, labels: Sequence[str]) -> None:
    """Copy the output layer's rows of these labels, in any order in the folder."""
    layer = output_layer(model)
    name = next(name for name, module in model.named_modules() if module is layer)
    stored = read_labels(str(folder.path))
    rows = [stored.index(label) for label in labels]
    with safetensors.safe_open(folder.path / "model.safetensors", "pt") as file:
        layer.weight.copy_(file.get_tensor(f"{name}.weight")[rows])
        layer.bias.copy_(file.get_tensor(f"{name}.bias")[rows])


@torch.no_grad()
def _reset_head(model: Any, new: set[str]) -> None:
    """Reinitialize an output layer that was loaded: its classes are those of another table."""
    layer = output_layer(model)
    name = next(name for name, module in model.named_modules() if module is layer)
    if f"{name}.weight" not in new:
        nn.init.normal_(layer.weight, std=getattr(model.config, "initializer_range", 0.02))
        nn.init.zeros_(layer.bias)


def _set_dropout(config: Any, rate: float) -> None:
    """Set every dropout rate in an architecture's configuration."""
    for name, value in config.to_dict().items():
        if type(value) in (int, float) and ("dropout" in name or name.endswith("drop")):
            setattr(config, name, rate)
    if getattr(config, "classifier_dropout", 0) is None:
        config.classifier_dropout = rate


def freeze(model: nn.Module, *, embeddings: bool, layers: int) -> None:
    """Freeze the embeddings, or the first `layers` layers with them.

    Raises InputError if the model has fewer layers: config.json may not say how many.
    """
    depth = parameter_depths(model)
    check_frozen(layers, max(depth.values(), default=0) - 1)
    for name, parameter in model.named_parameters():
        if (depth[name] == 0 and embeddings) or (layers and depth[name] <= layers):
            parameter.requires_grad_(False)


def freeze_unused(classifier: Classifier, tokens: Tokens, row: int) -> list[str]:
    """Freeze parameters that the classifier does not use, and return their names.

    DistributedDataParallel would wait for their gradients in each step. A backward pass on one row finds them.
    """
    classifier.eval()
    device = classifier.output_layer.weight.device
    classifier(classifier.batch(tokens, np.array([row])).to(device)).sum().backward()
    unused = {name: p for name, p in classifier.model.named_parameters() if p.requires_grad and p.grad is None}
    for parameter in unused.values():
        parameter.requires_grad_(False)
    classifier.zero_grad(set_to_none=True)
    return list(unused)


def checkpoint_activations(model: Any) -> None:
    """Keep only each layer's input for the backward pass, and recompute the layer there (Chen et al., 2016).

    Raises InputError if transformers does not support it for the architecture.
    """
    # Renamed in transformers 5.23; the old name warns.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError:
        raise InputError(
            f"--gradient-checkpointing: transformers does not support it for {model.config.model_type}; drop the flag."
        ) from None

"""Load stock models: pretrained with a new head, or trained by this program."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import torch
import transformers
from torch import nn

from classify.data import tokenize
from classify.data.tokenize import Tokens
from classify.errors import InputError, list_some
from classify.modeling.classifier import Classifier
from classify.modeling.find import FIRST_TOKEN_OPTION, ModelFolder, check_frozen
from classify.modeling.layers import output_layer, parameter_depths
from classify.modeling.mean_pooling import append_layer
from classify.modeling.result_folder import read_labels

# Parts of transformers' messages where it has no classifier for an architecture.
_UNKNOWN = ("Unrecognized configuration class", "does not recognize", "custom code")


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
def load_quietly() -> Iterator[None]:
    """Disable transformers' output, which fails where standard output was replaced by an object without `isatty`."""
    replaced = sys.stdout is not None and not hasattr(sys.stdout, "isatty")
    with quiet_libraries(), contextlib.redirect_stdout(io.StringIO()) if replaced else contextlib.nullcontext():
        yield


@load_quietly()
def load_pretrained(
    folder: ModelFolder,
    labels: Sequence[str],
    *,
    seed: int,
    pad_token_id: int,
    dropout: float | None = None,
    problem_type: str | None = "single_label_classification",
    keep_head: bool = False,
) -> Classifier:
    """Load the model of a folder in float32 with a new head for `labels`, initialized from `seed`.

    With `keep_head` the output layer's rows are copied from the same labels in the folder. `problem_type` is a word of
    transformers. Raises InputError if transformers has no sequence classifier for the architecture, or the weights do
    not fit it.
    """
    torch.manual_seed(seed)
    model, loading = _read_stock(
        folder,
        dropout,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
        problem_type=problem_type,
    )
    _check_architecture(folder, model)
    _check_weights(folder.name, model.base_model_prefix, loading)
    _start_head(model, folder, labels if keep_head else None, loading)
    if folder.added_layers:
        append_layer(model)
    return Classifier(model, pad_token_id)


def _read_stock(folder: ModelFolder, dropout: float | None, **values: Any) -> tuple[Any, dict[str, Any]]:
    """A stock sequence classifier and transformers' report of its loading; `values` are set in its configuration."""
    kind = folder.config["model_type"]
    # Sizes may differ in the head; `_check_weights` rejects all others.
    options: dict[str, Any] = {"output_loading_info": True, "dtype": torch.float32, "ignore_mismatched_sizes": True}
    if folder.quantized is not None:
        config = _set_dropout(transformers.BertConfig(**{**folder.config, **values}), dropout)
        weights = {name: torch.from_numpy(array) for name, array in folder.quantized.state_dict().items()}
        model, loading = transformers.BertForSequenceClassification.from_pretrained(
            None, config=config, state_dict=weights, **options
        )
        return model, loading
    options |= {"use_safetensors": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False, **values)
        if kind in FIRST_TOKEN_OPTION:
            config.classifier_pooling = "mean" if folder.pooling == "mean" else FIRST_TOKEN_OPTION[kind]
        model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder.path, config=_set_dropout(config, dropout), **options
        )
    except ValueError as error:
        if not any(sign in str(error) for sign in _UNKNOWN):
            raise
        raise InputError(
            f"--model {folder.name}: transformers has no sequence classifier for the architecture {kind!r} without "
            "running code from the model; give a BERT-like model."
        ) from None
    return model, loading


def _set_dropout(config: Any, rate: float | None) -> Any:
    """Set every dropout rate in an architecture's configuration, unless it stays as it is (None)."""
    if rate is None:
        return config
    for name, value in config.to_dict().items():
        if type(value) in (int, float) and ("dropout" in name or name.endswith("drop")):
            setattr(config, name, rate)
    if getattr(config, "classifier_dropout", 0) is None:
        config.classifier_dropout = rate
    return config


def _check_architecture(folder: ModelFolder, model: Any) -> None:
    """Raise InputError for decoders, and for models that read characters."""
    is_fit = output_layer(model).bias is not None and getattr(model.config, "summary_type", None) != "last"
    with contextlib.suppress(NotImplementedError):
        model.get_input_embeddings()
        if is_fit:
            return
    raise InputError(
        f"--model {folder.name}: a classifier of the architecture {folder.config['model_type']!r} reads a text's last "
        "token, as decoders do, or characters; give a BERT-like model, which reads words and the first token."
    )


def _check_weights(name: str, base: str, loading: Mapping[str, Any]) -> None:
    """Raise InputError, naming the weights, if parts of the encoder would stay random.

    `loading` is the report of transformers. The head is new, and a language model's checkpoint has no pooler.
    """
    encoder = re.compile(rf"{re.escape(base)}\.(?!pooler\.)")
    missing = sorted(filter(encoder.match, loading["missing_keys"]))
    mismatched = sorted(
        f"{key} ({'x'.join(map(str, stored))} in the file, {'x'.join(map(str, expected))} by config.json)"
        for key, stored, expected in loading["mismatched_keys"]
        if encoder.match(key)
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
def _start_head(model: Any, folder: ModelFolder, kept: Sequence[str] | None, loading: Mapping[str, Any]) -> None:
    """Copy the output layer's rows of the `kept` labels, which have any order in the folder, or draw them anew.

    An output layer that was loaded whole has the classes of another table: it is drawn again.
    """
    layer = output_layer(model)
    name = next(name for name, module in model.named_modules() if module is layer)
    if kept is not None:
        stored = read_labels(str(folder.path))
        rows = [stored.index(label) for label in kept]
        with safetensors.safe_open(folder.path / "model.safetensors", "pt") as file:
            layer.weight.copy_(file.get_tensor(f"{name}.weight")[rows])
            layer.bias.copy_(file.get_tensor(f"{name}.bias")[rows])
    elif f"{name}.weight" not in {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}:
        nn.init.normal_(layer.weight, std=getattr(model.config, "initializer_range", 0.02))
        nn.init.zeros_(layer.bias)


def load_tokenizer(folder: ModelFolder) -> Any:
    return folder.quantized.tokenizer() if folder.quantized is not None else tokenize.load_tokenizer(str(folder.path))


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

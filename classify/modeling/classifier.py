"""A stock sequence classifier with the person's labels, ready to be packed and wrapped."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import nn

from classify.data.tokenize import Tokens
from classify.distributed import batch_norm
from classify.distributed.memory import attempt, out_of_memory
from classify.distributed.sharding import repeated_layers
from classify.distributed.world import World
from classify.errors import InputError
from classify.launch import accelerators, process_settings
from classify.launch.accelerator import Accelerator
from classify.modeling import memory_estimate
from classify.modeling.first_tokens import encoder_of
from classify.modeling.hub import WRAPPER_PREFIX, ModelFolder
from classify.modeling.kernels.base import Kernel
from classify.modeling.kernels.linear import multiplies_by_onednn
from classify.modeling.kernels.registry import install
from classify.modeling.mean_pooling import append_layer
from classify.modeling.packing import Batch, TextClassifier, pack, pad, pad_to_multiple
from classify.modeling.precision import Precision, full_precision

# In fp32 packed and padded texts differ by rounding alone, below 1e-5 of what sets texts apart.
_ROUNDING = 1e-3
# Where products are rounded to fewer bits, packed texts may be so many times as far from full precision as padded ones
# are. With MiniLM in bf16 they were 0.7 to 1.7 times as far; with a boundary one token off 30 to 130 times, with two
# texts that see each other, or a doubled gradient of the queries, at least 19 times.
_TIMES_ROUNDING = 5.0
# Batches that oneDNN multiplies on a CPU come in multiples of so many tokens: it makes code for each number it has not
# met, and the C library finds memory of sizes that come again faster. It costs 2 % of a step of 32 short texts; in bf16
# it saves 10 % of one, in fp32 8 to 12 %.
_MULTIPLE = 16
_SHOWN = 3
# A weight of one of an encoder's repeated layers.
_LAYER = re.compile(r"(^|\.)layers?\.\d+\.")


class LoadedModel:
    """The classifier, and how its batches are made: packed end to end where the architecture allows, else padded."""

    def __init__(self, classifier: TextClassifier, pad_token_id: int, first_position: int):
        self.classifier = classifier
        self.pad_token_id = pad_token_id
        self.first_position = first_position
        self.packed = False
        self._padded_for = accelerators.of("cpu")
        self.kernels: tuple[Kernel, ...] = ()
        self.token_multiple = 1
        self._cuts_steps = False
        self.note: str | None = None  # for people, on how it was loaded

    @property
    def stock(self) -> Any:
        """The transformers model inside."""
        return self.classifier.model

    @property
    def hidden_size(self) -> int:
        """Width of the encoder, for the cost of a text."""
        return int(self.stock.config.hidden_size)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // int(self.stock.config.num_attention_heads)

    @property
    def tokens_at_once(self) -> int | None:
        """Tokens that a micro-batch holds at most, padding too; None: as many as there are."""
        if not self._cuts_steps:
            return None
        return memory_estimate.tokens_at_once(self.hidden_size) if self.packed else memory_estimate.PADDED_TOKENS

    def batch(self, tokens: Tokens, rows: npt.NDArray[np.int64]) -> Batch:
        """Collate rows (at least one) the way this model takes them."""
        assert len(rows), "a batch holds at least one row"
        if self.packed:
            packed = pack(tokens, rows, self.first_position)
            bounds = packed.boundaries
            filling = -bounds.tokens % self.token_multiple
            return pad_to_multiple(packed, bounds.tokens + filling, max(bounds.longest, filling)) if filling else packed
        if self.static_shapes:
            longest = int(tokens.lengths_of(rows).max())
            return pad(tokens, rows, self.pad_token_id, self.filled(len(rows)), self.padded_length(longest))
        return pad(tokens, rows, self.pad_token_id)

    def filled(self, rows: int) -> int:
        """The logits that a batch of so many rows gives: more where batches come in few shapes; the rest is filling."""
        return self._padded_for.padded_rows(rows)

    def padded_length(self, tokens: int) -> int:
        """The length that texts of up to so many tokens are padded to."""
        return self._padded_for.padded_length(tokens)

    @property
    def static_shapes(self) -> bool:
        """Whether padded batches come in few shapes."""
        return self._padded_for.static_shapes

    def pad_for(self, accelerator: Accelerator) -> None:
        """Pad batches as a kind of device wants them."""
        self.use_packing(False)
        self._padded_for = accelerator

    def set_precision(self, precision: Precision) -> None:
        """Compute in this precision from here on, with packed batches filled up and steps cut where that is faster.

        A BatchNorm would count the filling, and take the rows of a micro-batch for all. Gradients in half precision
        are not added up more often than need be.
        """
        self.classifier.precision = precision
        on_cpu = accelerators.of(precision.device_type).cuts_steps and batch_norm.count(self.stock) == 0
        by_onednn = precision.half is not None or multiplies_by_onednn(self.stock)
        self.token_multiple = _MULTIPLE if on_cpu and by_onednn else 1
        self._cuts_steps = on_cpu and precision.level == 1

    def use_packing(self, packed: bool) -> None:
        """Switch between packed and padded batches; the weights stay as they are."""
        self.packed = packed
        self.stock.set_attn_implementation(self.classifier.packed_attention if packed else self._stock_attention)

    def install_kernels(self, device: torch.device, off: Container[str] = ()) -> None:
        """Take the kernels that are of use on a device, but for those named."""
        self.kernels = install(self.classifier, device, off)

    def loses_attention_dropout(self, device: torch.device) -> bool:
        """Whether a kernel that packed texts go through has no dropout."""
        half = self.classifier.precision.half
        return self.packed and any(kernel.loses_dropout(device, half, self.head_size) for kernel in self.kernels)

    @property
    def _stock_attention(self) -> str:
        return "sdpa" if getattr(self.stock, "_supports_sdpa", False) else "eager"


def quiet_libraries() -> None:
    """Keep transformers' own progress bars and notices off the person's screen."""
    process_settings.tokenize_in_threads()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def load_model(
    folder: ModelFolder,
    labels: Sequence[str],
    *,
    seed: int,
    pad_token_id: int,
    dropout: float | None = None,
    problem_type: str = "single_label_classification",
) -> LoadedModel:
    """The model of a folder with a head for `labels`, in float32; a new head is random from `seed`.

    `problem_type` is transformers' word for what the labels are.

    Raises InputError where transformers has no sequence classifier for the architecture.
    """
    quiet_libraries()
    torch.manual_seed(seed)
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder.path,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={name: number for number, name in enumerate(labels)},
            problem_type=problem_type,
            trust_remote_code=False,
        )
        if dropout is not None:
            _set_dropout(config, dropout)
        if folder.pooling == "mean" and hasattr(config, "classifier_pooling"):
            config.classifier_pooling = "mean"
        stock, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder.path,
            output_loading_info=True,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # of the head; `_check_weights` refuses any other
            key_mapping={f"^{re.escape(WRAPPER_PREFIX)}": ""} if folder.wrapped else None,
        )
    except ValueError as error:
        signs = ("Unrecognized configuration class", "does not recognize", "custom code")
        if not any(sign in str(error) for sign in signs):
            raise
        raise InputError(
            f"--model {folder.name}: transformers has no sequence classifier for the architecture "
            f"{folder.config['model_type']!r} without running code from the model; take a BERT-like model."
        ) from None
    if output_layer(stock).bias is None:
        raise InputError(
            f"--model {folder.name}: the classifier of the architecture {folder.config['model_type']!r} reads a text's "
            "last token, as decoders do; take a BERT-like model, which reads the first."
        )
    _check_weights(folder.name, stock.base_model_prefix, loading)
    unread = sorted(key for key in loading["unexpected_keys"] if _LAYER.search(key))
    if folder.wrapped:  # what transformers loaded under other names it would save under those again
        loaded = stock.state_dict()
        stock = transformers.AutoModelForSequenceClassification.from_config(config)
        stock.load_state_dict(loaded)
    _renew_head(stock, {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if folder.added_layers:
        append_layer(stock)
    model = LoadedModel(TextClassifier(stock), pad_token_id, _first_position(stock))
    if unread:
        model.note = f"the weights hold more layers than config.json names; not read: {unread[0]}, ..."
    return model


def _check_weights(name: str, base: str, loading: Mapping[str, Any]) -> None:
    """Raise InputError where the folder's weights leave parts of the encoder random, naming these.

    `loading` is what transformers reports. The head is new, and a checkpoint of a language model has no pooler.
    """

    def is_new(key: str) -> bool:
        return not key.startswith(f"{base}.") or key.startswith(f"{base}.pooler.")

    missing = sorted(key for key in loading["missing_keys"] if not is_new(key))
    mismatched = sorted(
        f"{key} ({'x'.join(map(str, there))} in the file, {'x'.join(map(str, wanted))} by config.json)"
        for key, there, wanted in loading["mismatched_keys"]
        if not is_new(key)
    )
    faults = [
        f"{what} ({len(keys)}): {', '.join(keys[:_SHOWN])}{', ...' if len(keys) > _SHOWN else ''}"
        for what, keys in (("weights missing in the file", missing), ("weights of another shape", mismatched))
        if keys
    ]
    if faults:
        raise InputError(
            f"--model {name}: the encoder would be partly random: {'; '.join(faults)}. Give the config.json that "
            "belongs to the weights, or the weights that belong to it."
        )


@torch.no_grad()
def _renew_head(stock: Any, new: set[str]) -> None:
    """Random numbers for an output layer that came with the folder: its classes are of another table."""
    layer = output_layer(stock)
    name = next(name for name, module in stock.named_modules() if module is layer)
    if f"{name}.weight" not in new:
        nn.init.normal_(layer.weight, std=getattr(stock.config, "initializer_range", 0.02))
        nn.init.zeros_(layer.bias)


def load_trained(path: Path, *, pad_token_id: int) -> LoadedModel:
    """Load a classifier that this program has written, with the labels it was trained on.

    Raises InputError where weights are missing.
    """
    quiet_libraries()
    stock, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, output_loading_info=True, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(
            f"--model {path}: {len(missing)} weights are missing in model.safetensors: {', '.join(missing[:_SHOWN])}; "
            "copy the folder again."
        )
    # In evaluation mode for good: a pass that switched modes would do so for other threads, too.
    return LoadedModel(TextClassifier(stock).eval(), pad_token_id, _first_position(stock))


def verify_packing(
    model: LoadedModel,
    tokens: Tokens,
    rows: npt.NDArray[np.int64],
    world: World,
    wish: str = "auto",
    *,
    training: bool = True,
) -> str:
    """Pack if packed and padded texts agree on a few real rows; returns why it came out as it did.

    The model is on its device and its precision set, so that what is compared is what will run: in training the
    kernels of forward and backward pass, and those that scores are computed with. Dropout is off. A collective. Raises
    InputError where packing was asked for and cannot be had.
    """
    if world.accelerator.static_shapes and wish != "packed":
        model.pad_for(world.accelerator)
        return "to powers of two, so that nothing has to be compiled anew in each step"
    if wish == "padded":
        model.use_packing(False)
        return "asked for"
    kind = model.stock.config.model_type
    reason, fault = "texts stay apart, checked on real rows", None
    if encoder_of(model.stock) is None or not getattr(model.stock, "_supports_attention_backend", False):
        fault = f"{kind} has no exchangeable attention"
    else:
        longest_first = rows[np.argsort(-tokens.lengths[rows], kind="stable")]
        sample = longest_first[np.unique(np.linspace(0, len(rows) - 1, num=min(8, len(rows))).astype(np.int64))]
        differences = _differences_in_memory(model, tokens, sample, world.device, training)
        shares = {what: share for what, (share, bound) in differences.items() if not share <= bound}
        if shares:
            words = " and ".join(f"{what} differ by {share:.1e}" for what, share in shares.items())
            fault = f"packed and padded {words} for {kind}"
        if world.all_reduce_any(fault is not None) and fault is None:
            fault = "another process finds that packed and padded texts differ"
    if wish == "packed" and fault is not None:
        raise InputError(f"packing: packed is not possible: {fault}; leave it at auto.")
    model.use_packing(fault is None)
    return fault or reason


def _differences_in_memory(
    model: LoadedModel, tokens: Tokens, rows: npt.NDArray[np.int64], device: torch.device, training: bool
) -> dict[str, tuple[float, float]]:
    """`_packed_differences` of the rows, longest first, or of the shorter half of them where memory runs out."""
    while True:
        differences, _ = attempt(
            partial(_packed_differences, model, tokens, rows, device, training), device, last=len(rows) == 1
        )
        if differences is not None:
            return differences
        rows = rows[(len(rows) + 1) // 2 :]


def _packed_differences(
    model: LoadedModel, tokens: Tokens, rows: npt.NDArray[np.int64], device: torch.device, training: bool
) -> dict[str, tuple[float, float]]:
    """How far packed texts lie from each text by itself in full precision: {what: (how far, how far at most)}.

    Logits as a share of the largest difference between texts, since those of a random head are all nearly alike;
    gradients as a share of the largest. Infinite where the packed way fails.
    """
    precision, was_training = model.classifier.precision, model.classifier.training
    half = precision.half if training else None

    def outputs(batches: list[npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        with torch.autocast(device.type, dtype=half) if half is not None else precision.autocast(training=False):
            return _outputs(model, tokens, batches, device, training)

    alone = [np.array([row]) for row in rows]
    model.classifier.eval()
    try:
        model.use_packing(False)
        with full_precision():
            exact = _outputs(model, tokens, alone, device, training)
        rounded = outputs(alone) if precision.rounds else exact
        model.use_packing(True)
        packed = outputs([rows])
        if training:
            with precision.autocast(training=False):
                packed["scored logits"] = _outputs(model, tokens, [rows], device, gradients=False)["logits"]
            exact["scored logits"], rounded["scored logits"] = exact["logits"], rounded["logits"]
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, LookupError) as error:
        if out_of_memory(error):
            raise
        return {"logits": (float("inf"), 0.0)}
    finally:
        model.classifier.train(was_training)
    differences = {}
    for what, wanted in exact.items():
        # One text alone has nothing to differ from.
        zero = wanted.mean(dim=0) if what != "gradients" and len(rows) > 1 else 0.0
        scale = max(float((wanted - zero).abs().max()), 1e-6 if what != "gradients" else 1e-30)
        shares = [float((other[what] - wanted).abs().max()) / scale for other in (packed, rounded)]
        differences[what] = (shares[0], max(_ROUNDING, _TIMES_ROUNDING * shares[1]))
    return differences


def _outputs(
    model: LoadedModel,
    tokens: Tokens,
    batches: list[npt.NDArray[np.int64]],
    device: torch.device,
    gradients: bool,
) -> dict[str, torch.Tensor]:
    """Logits (N, classes) of the rows of some batches and, where something is trained, their gradients.

    These are the summed first logit's, (T, H), with respect to the states of all tokens that go into the lowest layer
    that is trained: they come through every attention that training goes back through.
    """
    logits: list[torch.Tensor] = []
    collected: list[torch.Tensor] = []
    states: list[torch.Tensor] = []

    def ask_gradient(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append((args[0] if args else kwargs["hidden_states"]).requires_grad_())

    layers = repeated_layers(model.stock) or [model.stock.base_model.encoder]  # ALBERT repeats one
    trained = [layer for layer in layers if any(parameter.requires_grad for parameter in layer.parameters())]
    hooks = [layer.register_forward_pre_hook(ask_gradient, with_kwargs=True) for layer in trained[:1] if gradients]
    try:
        with torch.set_grad_enabled(gradients):
            for rows in batches:
                states.clear()
                got = model.classifier.logits(model.batch(tokens, rows).to(device)).float()
                logits.append(got.detach().cpu())
                if states:
                    # Times 1,024, so that none vanishes in fp16; a gradient scaler does the same in training.
                    (gradient,) = torch.autograd.grad(1024 * got[:, 0].sum(), states)
                    collected.append(gradient.flatten(0, 1)[: int(tokens.lengths_of(rows).sum())].float().cpu())
    finally:
        for hook in hooks:
            hook.remove()
    outputs = {"logits": torch.cat(logits)}
    return {**outputs, "gradients": torch.cat(collected)} if collected else outputs


def freeze(model: LoadedModel, *, embeddings: bool, layers: int) -> None:
    """Stop training the embeddings, or the first `layers` layers with them.

    Raises InputError for too many layers of a model whose config.json does not say how many there are.
    """
    depth = depths(model.stock)
    top = max(depth.values(), default=0) - 1
    if layers > top:
        raise InputError(f"--freeze-layers {layers}: the model has {top} layers; give that or less.")
    for name, parameter in model.stock.named_parameters():
        if (depth[name] == 0 and embeddings) or (layers and depth[name] <= layers):
            parameter.requires_grad_(False)


def checkpoint_activations(model: LoadedModel) -> None:
    """Keep each layer's input alone for the backward pass, and compute the layer again there (Chen et al., 2016).

    Raises InputError for an architecture that transformers cannot do this with.
    """
    stock = model.stock
    # Renamed in transformers 5.23, where the older name warns.
    enable = getattr(stock, "activation_checkpointing_enable", None) or stock.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError:
        raise InputError(
            f"--gradient-checkpointing: transformers has none for {stock.config.model_type}; drop the flag."
        ) from None


def depths(model: nn.Module) -> dict[str, int]:
    """How far each parameter lies above the input: 0 for embeddings, n for layer n, one more for what is on top."""
    layers = repeated_layers(model)
    level = {id(p): number for number, layer in enumerate(layers, start=1) for p in layer.parameters()}
    return {
        name: level.get(id(parameter), 0 if "embedding" in name else len(layers) + 1)
        for name, parameter in model.named_parameters()
    }


def freeze_unused(model: LoadedModel, tokens: Tokens, row: int) -> list[str]:
    """Stop asking gradients of parameters that the classifier never uses, and return their names.

    DistributedDataParallel would wait for their gradients at every step. One backward pass on one row finds them.
    """
    model.classifier.eval()
    model.classifier(model.batch(tokens, np.array([row]))).sum().backward()
    unused = [name for name, p in model.stock.named_parameters() if p.requires_grad and p.grad is None]
    for name, parameter in model.stock.named_parameters():
        if name in unused:
            parameter.requires_grad_(False)
    model.classifier.zero_grad(set_to_none=True)
    return unused


def output_layer(stock: Any) -> nn.Linear:
    """The last linear layer, which gives the logits."""
    classes = stock.config.num_labels
    layers = [m for m in stock.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    assert layers, f"{type(stock).__name__} ends in no linear layer with {classes} outputs"
    return layers[-1]


def _first_position(stock: Any) -> int:
    """The position of a text's first token: 0, but pad_token_id + 1 in RoBERTa and its kin."""
    embeddings = getattr(stock.base_model, "embeddings", None)
    counts_from_padding = hasattr(embeddings, "create_position_ids_from_input_ids")
    return int(stock.config.pad_token_id or 0) + 1 if counts_from_padding else 0


def _set_dropout(config: Any, rate: float) -> None:
    """One rate for every dropout an architecture names in its configuration."""
    for name, value in config.to_dict().items():
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and ("dropout" in name or name.endswith("drop"))
        ):
            setattr(config, name, rate)
    if getattr(config, "classifier_dropout", 0) is None:
        config.classifier_dropout = rate

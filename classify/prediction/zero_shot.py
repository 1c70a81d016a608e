"""A first classifier, from the names of the classes alone: no label is seen.

Each class has a sentence, such as its name. A text is as near to a class as their features are, without what all texts,
and all classes, share. The texts that are nearest to one class by the largest margin train a linear layer, which names
the texts of the next round (self-training; Gera et al., 2022, "Zero-Shot Text Classification with Self-Training"). The
encoder stays as it is, so all rounds take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml

from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.data.languages import Languages, detect_languages, sample_rows
from classify.data.tokenize import default_max_length, get_padding_id, load_tokenizer, tokenize, tokenize_columns
from classify.distributed.world import World
from classify.errors import InputError
from classify.evaluation.inference import compute_logits
from classify.files import make_folders
from classify.modeling.classifier import choose_packing
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.modeling.result_folder import FORMAT, save_model
from classify.tables.roles import TextColumns
from classify.tables.table import EMPTY, Table
from classify.tasks import single_label
from classify.tasks.base import Task
from classify.tasks.label_columns import label_texts

LABEL_COLUMN = "label"
# Entry of classify.json: how many labels the model has learned from.
LABELS_SEEN = "labels_seen"
_ROUNDS = 4
# Of all texts, the share that a round learns from, the same number of each class, and the fewest texts of a class.
_LEARNED = 0.3
_FEWEST = 5
# C of the linear layer, for up to so many classes; of the texts that it learns from a tenth or a fifth is named wrong.
_C = 0.01
_FEW_CLASSES = 8
_FEWEST_TEXTS = 50

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Start:
    """A model from names: its task, and the `agreement`, the share of texts that the last round names as the first."""

    task: Task
    agreement: float
    languages: Languages


def read_names(path: str) -> dict[str, list[str]]:
    """The texts of each class by its name, from a YAML list of names, or of name: sentence.

    Instead of a sentence there may be {description: ..., examples: [...]}. Raises InputError for anything else.
    """
    expected = "Expected a YAML list of names, or a line 'name: a sentence about it' for each class"
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--labels {path}: cannot be read ({error.strerror}). {expected}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"--labels {path}: {' '.join(str(error).split())}. {expected}.") from None
    entries = dict.fromkeys(map(str, content)) if isinstance(content, list) else content
    if not isinstance(entries, dict) or any(isinstance(name, dict | list) for name in content):
        raise InputError(f"--labels {path}: {expected}.")
    names = {str(name).strip(): _read_texts(entry) for name, entry in entries.items()}
    if len(names) < 2 or not all(names):
        raise InputError(f"--labels {path}: {len(names)} classes. Expected two or more, each with a name.")
    return names


def _read_texts(entry: Any) -> list[str]:
    if isinstance(entry, dict):
        examples = entry.get("examples") or []
        entry = [entry.get("description"), *([examples] if isinstance(examples, str) else examples)]
    texts = entry if isinstance(entry, list) else [entry]
    return [str(text).strip() for text in texts if text is not None and str(text).strip()]


def start(
    table: Table, texts: TextColumns, names: dict[str, list[str]], folder: Path, world: World, model: str | None = None
) -> Start:
    """Train a model on the names of the classes and the texts of a table, and save it as a result folder.

    Raises InputError where there are fewer than 50 texts.
    """
    rows = np.flatnonzero(table.text_hashes(texts.whole) != EMPTY)
    if len(rows) < max(_FEWEST_TEXTS, len(names)):
        raise InputError(
            f"{table.path}: {len(rows)} texts for {len(names)} classes. Expected {max(_FEWEST_TEXTS, len(names))} or "
            "more, since the classes are learned from them."
        )
    languages = detect_languages(table.take(texts.whole, sample_rows(rows, seed=0)))
    default = DEFAULT_MODEL if languages.is_english else MULTILINGUAL_MODEL
    source = resolve_model(model or default, named=model is not None)
    task, tokenizer = single_label.make(list(names)), load_tokenizer(str(source.path))
    classifier = load_pretrained(source, task.labels, seed=0, pad_token_id=get_padding_id(tokenizer))
    classifier.to(world.device).eval()
    choose_packing(classifier, world)
    tokens = tokenize_columns(tokenizer, table, texts.inputs, source.max_length)
    tokens = tokens.cut(default_max_length(tokens.full_lengths(rows), source.max_length))
    sentences, class_of = _sentences(names, is_english=languages.is_english)
    named = tokenize(tokenizer, sentences, tokens.max_length)
    features = compute_logits(classifier, tokens, rows, world, features=True)
    of_names = compute_logits(classifier, named, np.arange(len(sentences)), world, features=True)
    weight, bias, agreement = self_train(task, features, of_names, class_of)
    with torch.no_grad():
        classifier.output_layer.weight.copy_(torch.from_numpy(weight))
        classifier.output_layer.bias.copy_(torch.from_numpy(bias))
    settings = {
        "format": FORMAT,
        "task": task.name,
        **texts.as_settings(),
        "label_columns": [LABEL_COLUMN],
        "reading": {"given": {}, "found": dict(table.reading)},
        "max_length": tokens.max_length,
        "languages": languages.shares,
        "long_text": tokens.long_texts.name,
        LABELS_SEEN: 0,
        **task.settings(),
    }
    weights = {name: tensor.cpu() for name, tensor in classifier.model.state_dict().items()}
    make_folders(folder)
    save_model(folder, classifier.model, weights, tokenizer, settings)
    return Start(task, agreement, languages)


def _sentences(names: dict[str, list[str]], *, is_english: bool) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The sentences of all classes, and the number of the class (sentences,) of each; without any, the name is one."""
    named = [label_texts([name], is_english=is_english) or (name,) for name in names]
    texts = [given or list(own) for given, own in zip(names.values(), named, strict=True)]
    numbers = np.repeat(np.arange(len(texts)), [len(of_class) for of_class in texts])
    return [text for of_class in texts for text in of_class], numbers


def self_train(
    task: Task, features: Features, of_names: Features, class_of: npt.NDArray[np.int64]
) -> tuple[Features, Features, float]:
    """An output layer, its weight and bias, from features of texts (texts, width) and of sentences (sentences, width).

    Beside it the share of texts that it names as the sentences alone did.
    """
    classes, penalty = len(task.labels), _C * max(1.0, len(task.labels) / _FEW_CLASSES)
    middles = np.stack([_unit(of_names)[class_of == number].mean(axis=0) for number in range(classes)])
    texts = _unit(features)
    scores = _unit(texts - texts.mean(axis=0)) @ _unit(middles - middles.mean(axis=0)).T
    first, count = scores.argmax(axis=1), max(_FEWEST, int(_LEARNED * len(features) / classes))
    weight, bias = np.empty(0, np.float32), np.empty(0, np.float32)
    for _ in range(_ROUNDS):
        rows, targets = _choose(scores, count)
        learned = np.concatenate([features[rows], of_names])
        weight, bias = task.head.fit(learned, np.concatenate([targets, class_of]), penalty)
        scores = np.log(task.answers.probabilities(features @ weight.T + bias).clip(min=1e-9))
    return weight, bias, float((scores.argmax(axis=1) == first).mean())


def _unit(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return features / np.linalg.norm(features, axis=1, keepdims=True).clip(min=1e-9)


def _choose(scores: npt.NDArray[Any], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each class up to `count` texts with the largest margin before the next class, and their classes."""
    second, best = np.partition(scores, -2, axis=1)[:, -2:].T
    nearest, order = scores.argmax(axis=1), np.argsort(second - best, kind="stable")
    chosen = [order[nearest[order] == number][:count] for number in range(scores.shape[1])]
    return np.concatenate(chosen), np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])

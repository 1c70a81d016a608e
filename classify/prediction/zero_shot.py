"""A first classifier, from the names of the classes alone: no label is seen.

Each class has a sentence, such as its name. A text is as near to a class as their features are, without what all texts,
and all classes, share. The texts that are nearest to one class by the largest margin train a linear layer, which names
the texts of the next round (self-training; Gera et al., 2022, "Zero-Shot Text Classification with Self-Training"). The
encoder stays as it is, so all rounds take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.data.languages import Languages, detect_languages, sample_rows
from classify.data.tokenize import default_max_length, get_padding_id, tokenize
from classify.distributed.world import World
from classify.errors import list_some
from classify.files import make_folders
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained, load_tokenizer
from classify.modeling.precision import for_prediction
from classify.modeling.result_folder import FORMAT, LABELS_SEEN, save_model
from classify.prediction.pytorch import PyTorchPredictor
from classify.tables.roles import TextColumns
from classify.tables.table import EMPTY, Table
from classify.tasks import single_label
from classify.tasks.base import FitRows, Task
from classify.tasks.label_columns import label_texts

LABEL_COLUMN = "label"
_ROUNDS = 4
# Of all texts, the share that a round learns from, the same number of each class, and the fewest texts of a class.
_LEARNED = 0.3
_FEWEST = 5
# C of the linear layer, for up to so many classes; of the texts that it learns from a tenth or a fifth is named wrong.
_C = 0.01
_FEW_CLASSES = 8
# Similarity of the sentences of two classes from which they mean the same.
_ALIKE = 0.95

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Start:
    """A model from names, and its `logits` (rows, classes) of the table; those of an empty text are 0.

    `renamed` is the share of texts that self-training has named anew.
    """

    predictor: PyTorchPredictor
    logits: Features
    renamed: float
    notes: list[str]


def load_encoder(
    table: Table,
    texts: TextColumns,
    labels: Sequence[str],
    world: World,
    given: dict[str, Any],
    model: str | None = None,
) -> PyTorchPredictor:
    """A predictor whose encoder is the model for these texts, and whose output layer has seen nothing yet.

    `given` are the flags by which the table was read.
    """
    rows = np.flatnonzero(table.text_hashes(texts.whole) != EMPTY)
    sample = sample_rows(rows, seed=0)
    languages = detect_languages(table.take(texts.whole, sample))
    default = DEFAULT_MODEL if languages.is_english else MULTILINGUAL_MODEL
    source = resolve_model(model or default, named=model is not None)
    task, tokenizer = single_label.make(labels), load_tokenizer(source)
    classifier = load_pretrained(source, task.labels, seed=0, pad_token_id=get_padding_id(tokenizer)).eval()
    classifier.install_kernels(world.device)
    classifier.set_precision(for_prediction("auto", world.device))
    first, *second = (table.take(name, sample) for name in texts.inputs)
    tokens = tokenize(tokenizer, first, source.max_length, second=second[0] if second else None)
    settings = {
        "format": FORMAT,
        "task": task.name,
        **texts.as_settings(),
        "label_columns": [LABEL_COLUMN],
        "reading": {"given": given, "found": dict(table.reading)},
        "max_length": default_max_length(tokens.full_lengths(np.arange(len(sample))), source.max_length),
        "languages": languages.shares,
        "long_text": tokens.long_texts.name,
        LABELS_SEEN: 0,
        **task.settings(),
    }
    return PyTorchPredictor(str(source.path), settings, task, tokenizer, classifier, world)


def start(
    encoder: PyTorchPredictor, table: Table, texts: TextColumns, names: dict[str, list[str]], folder: Path
) -> Start:
    """Train a model on the names of the classes and the texts of a table, and save it as a result folder."""
    rows = np.flatnonzero(table.text_hashes(texts.whole) != EMPTY)
    features = encoder.features(*(table.take(name, rows) for name in texts.inputs))
    weight, bias, renamed, notes = learn_names(encoder, names, features)
    classifier = encoder.classifier
    with torch.no_grad():
        classifier.output_layer.weight.copy_(torch.from_numpy(weight))
        classifier.output_layer.bias.copy_(torch.from_numpy(bias))
    weights = {name: tensor.cpu() for name, tensor in classifier.model.state_dict().items()}
    make_folders(folder)
    save_model(folder, classifier.model, weights, encoder.tokenizer, encoder.settings)
    predictor = PyTorchPredictor(
        str(folder), encoder.settings, encoder.task, encoder.tokenizer, classifier, encoder.world
    )
    logits = np.zeros((len(table), len(names)), dtype=np.float32)
    logits[rows] = features @ weight.T + bias
    return Start(predictor, logits, renamed, notes)


def learn_names(
    predictor: PyTorchPredictor, names: dict[str, list[str]], features: Features
) -> tuple[Features, Features, float, list[str]]:
    """An output layer from the names of the classes and `features` of texts.

    Returns its weight and bias, the share of texts that self-training has named anew, and notes for the person.
    """
    languages = Languages(predictor.settings["languages"], len(features))
    sentences, class_of = _sentences(names, is_english=languages.is_english)
    of_names = predictor.features(sentences)
    weight, bias, renamed = self_train(predictor.task, features, of_names, class_of)
    logits = features @ weight.T + bias
    return weight, bias, renamed, _notes(predictor.labels, _middles(of_names, class_of), logits)


def _notes(labels: Sequence[str], middles: Features, logits: Features) -> list[str]:
    """Classes that no text has, and classes whose sentences mean the same."""
    empty = np.flatnonzero(np.bincount(logits.argmax(axis=1), minlength=len(labels)) == 0)
    alike = np.argwhere(np.triu(_unit(middles) @ _unit(middles).T, k=1) > _ALIKE)
    notes = [f"the classes {labels[one]!r} and {labels[other]!r} mean nearly the same" for one, other in alike.tolist()]
    if len(empty):
        named = list_some([labels[number] for number in empty.tolist()], show=repr)
        notes.append(f"no text is nearest to {named}; describe these classes in a sentence")
    return notes


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

    Beside it the share of texts that it names otherwise than the sentences alone did.
    """
    classes, penalty = len(task.labels), _C * max(1.0, len(task.labels) / _FEW_CLASSES)
    middles = _middles(of_names, class_of)
    texts = _unit(features)
    scores = _unit(texts - texts.mean(axis=0)) @ _unit(middles - middles.mean(axis=0)).T
    first, count = scores.argmax(axis=1), max(_FEWEST, int(_LEARNED * len(features) / classes))
    weight, bias = np.empty(0, np.float32), np.empty(0, np.float32)
    for _ in range(_ROUNDS):
        rows, targets = _choose(scores, count)
        learned = np.concatenate([features[rows], of_names])
        weight, bias = task.head.fit(FitRows(learned, np.concatenate([targets, class_of])), penalty)
        scores = np.log(task.answers.probabilities(features @ weight.T + bias).clip(min=1e-9))
    return weight, bias, float((scores.argmax(axis=1) != first).mean())


def _middles(of_names: Features, class_of: npt.NDArray[np.int64]) -> Features:
    """The mean features (classes, width) of each class's sentences, each of the same length."""
    return np.stack([_unit(of_names)[class_of == number].mean(axis=0) for number in range(int(class_of.max()) + 1)])


def _unit(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return features / np.linalg.norm(features, axis=1, keepdims=True).clip(min=1e-9)


def _choose(scores: npt.NDArray[Any], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each class up to `count` texts with the largest margin before the next class, and their classes."""
    second, best = np.partition(scores, -2, axis=1)[:, -2:].T
    nearest, order = scores.argmax(axis=1), np.argsort(second - best, kind="stable")
    chosen = [order[nearest[order] == number][:count] for number in range(scores.shape[1])]
    return np.concatenate(chosen), np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])

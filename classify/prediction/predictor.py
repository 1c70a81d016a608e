"""Predict texts with a trained folder: what all runtimes have in common.

A runtime is a file beside this one, and a line in `RUNTIMES`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.config.fields import describe
from classify.data.long_texts import POLICIES, TRUNCATE
from classify.data.tokenize import Tokens, tokenize
from classify.errors import InputError
from classify.evaluation.scope import Scope
from classify.launch.launch import Launch
from classify.modeling.result_folder import EXPORTED, trained_texts
from classify.prediction.occlusion import WordAttribution, explain
from classify.tables.table import replace_surrogates
from classify.tables.texts import TextColumns
from classify.tasks.base import Task

# The module that loads a folder with this file.
RUNTIMES = {EXPORTED: "onnx", "model.safetensors": "pytorch"}


class Predictor(ABC):
    """A trained classifier. In a single process it is thread-safe.

    `world` has the identity and the collectives of this process; `precision` names that of the scores. `scope` tells
    texts that belong to none of the labels, where it was trained with --out-of-scope-label.
    """

    world: Any
    precision: str
    scope: Scope | None = None

    def __init__(self, folder: str, settings: dict[str, Any], task: Task, tokenizer: Any):
        self.folder, self.settings, self.task, self.tokenizer = folder, settings, task, tokenizer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.world.close(error)

    def close(self) -> None:
        """Leave the process group; the predictor cannot be used afterwards."""
        self.world.close()

    @property
    def labels(self) -> list[str]:
        return self.task.labels

    @property
    def texts(self) -> TextColumns:
        return trained_texts(self.settings)

    @property
    def label_columns(self) -> list[str]:
        return list(self.settings.get("label_columns", ()))

    def probabilities(self, texts: Iterable[Any]) -> npt.NDArray[np.float64]:
        """Return probabilities (len(texts), classes), or scores (len(texts), 1), with the preprocessing of training.

        `texts` are strings, or tuples of two where the model was trained on text pairs. Raises TypeError for anything
        else, ValueError if the predictor is closed.
        """
        return self.predict(texts)[0]

    def predict(self, texts: Iterable[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32] | None]:
        """The `probabilities` of texts, and the probability (len(texts),) of being in scope, if there is one."""
        first, second = self.as_columns(texts)
        if not first:
            return np.zeros((0, len(self.labels))), None if self.scope is None else np.zeros(0, dtype=np.float32)
        logits, in_scope = self.split_outputs(self.compute_outputs(self.tokenize(first, second)))
        return self.task.answers.probabilities(logits), in_scope

    def answers(self, probabilities: npt.NDArray[np.float64], in_scope: npt.NDArray[np.float32] | None) -> list[Any]:
        """What `predict` found as labels, lists or numbers; below the threshold the label of the scope."""
        values = self.task.targets.decode(self.task.answers.decide(probabilities))
        if self.scope is None or in_scope is None:
            return values
        pairs = zip(values, in_scope.tolist(), strict=True)
        return [value if share >= self.scope.threshold else self.scope.label for value, share in pairs]

    def as_columns(self, texts: Iterable[Any]) -> tuple[list[str], list[str] | None]:
        """The texts, or the first and the second texts of pairs. Raises TypeError for anything else."""
        return _as_pairs(texts) if self.texts.pair is not None else (_as_texts(texts), None)

    def tokenize(self, first: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        """Tokenize texts, or pairs with their `second` texts, as in training."""
        max_length, policy = self.settings["max_length"], POLICIES[self.settings.get("long_text", TRUNCATE.name)]
        return tokenize(self.tokenizer, first, max_length, second=second, long_texts=policy)

    def find_output(self, text: Any, label: str | None) -> int:
        """The output of a label, the predicted one by default. Raises InputError for an unknown label."""
        if label is None:
            return int(self.probabilities([text])[0].argmax())
        if label not in self.labels:
            raise InputError(f"{self.folder}: no label {label!r}; it has: {', '.join(map(repr, self.labels[:10]))}.")
        return self.labels.index(label)

    def compute_logits(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """The logits (len(tokens), labels) of tokenized texts; see `compute_outputs`."""
        return self.split_outputs(self.compute_outputs(tokens))[0]

    def split_outputs(self, outputs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """The logits (rows, labels), and the probabilities (rows,) of being in scope, if there are any."""
        if self.scope is None:
            return outputs, None
        return outputs[:, :-1], outputs[:, -1]

    @abstractmethod
    def compute_outputs(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """The logits of tokenized texts, at least one, and the probability of being in scope, if there is one.

        The shape is (len(tokens), labels), or one column more. A collective. Raises InputError if the tokenizer does
        not match the model.
        """

    def compute_sharded(self, first: Sequence[str], second: Sequence[str] | None) -> npt.NDArray[np.float32]:
        """The outputs (len(first), ...) of texts, or pairs; each rank tokenizes and computes a shard.

        A collective, with the same texts on every rank, at least one.
        """
        return self.compute_outputs(self.tokenize(first, second))

    def explain(self, text: str | tuple[str, str], label: str | None = None) -> list[WordAttribution]:
        """By how much each word raises the logit of a label, the predicted one by default; see `occlusion`.

        Of a model that predicts scores it is the score. A model of text pairs takes a tuple of two texts; the words of
        both are returned in order. A collective. Raises InputError for unknown labels, TypeError for anything but a
        text, or a pair where the model takes pairs.
        """
        first, second = self.as_columns([text])
        output = self.find_output(text, label)

        def compute(rows: list[Sequence[str]]) -> npt.NDArray[np.float32]:
            columns = [list(column) for column in zip(*rows, strict=True)]
            return self.compute_logits(self.tokenize(columns[0], None if second is None else columns[1]))[:, output]

        return explain([*first, *(second or [])], compute)


def load_classifier(
    folder: str,
    *,
    use_cpu: bool = False,
    precision: str = "auto",
    distributed: bool = False,
    launch: Launch | None = None,
) -> Predictor:
    """Load a result folder, e.g. `classify.load_classifier("runs/my-1").probabilities(["..."])`, or an exported one.

    This process predicts by itself, also in a job of several. With `distributed` the processes that a launcher started
    form a group and share the texts: each calls `probabilities` with the same texts, gets all results, and closes the
    predictor, or uses it as a context manager. A command passes on its `launch`, which is read here otherwise. Raises
    InputError if it is not a result folder.
    """
    launch = (launch or Launch.read()) if distributed else None
    runtime = next((name for file, name in RUNTIMES.items() if (Path(folder) / file).exists()), "pytorch")
    module = importlib.import_module(f"classify.prediction.{runtime}")
    predictor: Predictor = module.load(folder, use_cpu=use_cpu, precision=precision, launch=launch)
    return predictor


def _as_texts(texts: Iterable[str]) -> list[str]:
    """Convert a list, array or column of strings to a list. Raises TypeError for anything else."""
    expected = "texts must be a list of strings. Got"
    if isinstance(texts, str):
        raise TypeError(f"{expected} the string {texts!r} instead.")
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{expected} {describe(texts)} instead.")
    listed = list(texts)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(f"{expected} {describe(text)} at index {index} instead.")
    try:
        "".join(listed).encode()
    except UnicodeEncodeError:
        return list(map(replace_surrogates, listed))
    return listed


def _as_pairs(pairs: Iterable[Any]) -> tuple[list[str], list[str]]:
    """The first and the second texts of pairs.

    Raises TypeError for anything else, ValueError where one of a pair is empty.
    """
    if isinstance(pairs, str):
        raise TypeError(f"texts must be a list of pairs of strings. Got the string {pairs!r} instead.")
    listed = pairs.tolist() if isinstance(pairs, np.ndarray) else list(pairs)
    for index, pair in enumerate(listed):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"texts must be a list of pairs of strings. Got {describe(pair)} at index {index} instead.")
    first, second = _as_texts(pair[0] for pair in listed), _as_texts(pair[1] for pair in listed)
    for index, (left, right) in enumerate(zip(first, second, strict=True)):
        if bool(left.strip()) != bool(right.strip()):
            raise ValueError(f"texts must be pairs of two texts. Got an empty one at index {index}.")
    return first, second

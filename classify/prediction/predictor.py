"""Predict texts with a trained folder: what all runtimes have in common.

A runtime is a file beside this one, and a line in `RUNTIMES`.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.config.fields import describe
from classify.console import progress_bar
from classify.data.tokenize import POLICIES, TRUNCATE, Tokens, tokenize
from classify.errors import InputError
from classify.launch.launch import Launch
from classify.modeling.result_folder import EXPORTED, trained_texts
from classify.prediction.occlusion import WordAttribution, explain
from classify.tables.table import replace_surrogates
from classify.tasks.base import Task

# The module that loads a folder with this file.
RUNTIMES = {EXPORTED: "onnx", "model.safetensors": "pytorch"}
# Rows that are computed at once: results come while others are computed, and memory holds the texts of these alone.
_BLOCK = 2048

Outputs = npt.NDArray[np.float32]


class Predictor(ABC):
    """A trained classifier. In a single process it is thread-safe.

    A runtime computes `outputs`; all else follows from these. `world` has the identity and the collectives of this
    process; `precision` is that of the model (with auto, scores are in fp32).
    """

    world: Any
    precision: str

    def __init__(self, folder: str, settings: dict[str, Any], task: Task, tokenizer: Any):
        self.folder, self.settings, self.task, self.tokenizer = folder, settings, task, tokenizer
        self.labels, self.texts = task.labels, trained_texts(settings)
        self.label_columns = list(settings.get("label_columns", ()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.world.close(error)

    def close(self) -> None:
        """Leave the process group; the predictor cannot be used afterwards."""
        self.world.close()

    @abstractmethod
    def outputs(self, first: Sequence[str], second: Sequence[str] | None = None) -> Outputs:
        """Compute the logits of texts, at least one, or of pairs with their `second` texts.

        The shape is (len(first), labels). A task with a scope has one more column: the probability of being in scope.
        A collective, with the same texts on every rank. Raises InputError if the tokenizer does not match the model,
        ValueError if the predictor is closed.
        """

    def blocks(
        self, rows: int, take: Callable[[int, int], Iterable[Sequence[str]]], *, delayed: bool = False
    ) -> Iterator[Outputs]:
        """Yield the outputs of many texts, block by block, and show progress on the main process.

        `take` gives the texts from one row up to another, or the first and the second texts. A `delayed` bar is for
        texts in memory: it appears only where they take long.
        """
        # Rows of a table may go to standard output, so lines of progress do not.
        lines = None if delayed else sys.stderr
        with progress_bar(rows, 0, "row", enabled=self.world.is_main, delayed=delayed, lines=lines) as bar:
            for start in range(0, rows, _BLOCK):
                end = min(rows, start + _BLOCK)
                yield self.outputs(*take(start, end))
                bar.update(end - start)

    def predict(self, texts: Iterable[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32] | None]:
        """Compute the `probabilities` of texts, and the probability (len(texts),) of being in scope, or None."""
        columns = _read_texts(texts, pairs=self.texts.pair is not None)
        none = np.zeros((0, len(self.labels) + (self.task.scope is not None)), dtype=np.float32)
        blocks = self.blocks(len(columns[0]), lambda a, b: (column[a:b] for column in columns), delayed=True)
        logits, in_scope = self.task.split(np.concatenate([none, *blocks]))
        return self.task.answers.probabilities(logits), in_scope

    def probabilities(self, texts: Iterable[Any]) -> npt.NDArray[np.float64]:
        """Compute probabilities (len(texts), classes), or scores (len(texts), 1), with the preprocessing of training.

        `texts` are strings, or tuples of two where the model was trained on text pairs. Raises TypeError for anything
        else, ValueError if the predictor is closed.
        """
        return self.predict(texts)[0]

    def answers(self, probabilities: npt.NDArray[np.float64], in_scope: npt.NDArray[np.float32] | None) -> list[Any]:
        """The label, the list of labels or the number of each row that `predict` computed.

        Below the threshold it is the label of the scope.
        """
        values = self.task.targets.decode(self.task.answers.decide(probabilities))
        if self.task.scope is None or in_scope is None:
            return values
        pairs = zip(values, in_scope.tolist(), strict=True)
        return [value if share >= self.task.scope.threshold else self.task.scope.label for value, share in pairs]

    def tokenize(self, first: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        """Tokenize texts, or pairs with their `second` texts, as in training."""
        max_length, policy = self.settings["max_length"], POLICIES[self.settings.get("long_text", TRUNCATE.name)]
        return tokenize(self.tokenizer, first, max_length, second=second, long_texts=policy)

    def explain(self, text: str | tuple[str, str], label: str | None = None) -> list[WordAttribution]:
        """Measure by how much each word raises the logit of a label, the predicted one by default; see `occlusion`.

        Where the model predicts scores, the logit is the score. A model of text pairs takes a tuple of two texts; the
        words of both are returned in order. A collective. Raises InputError for unknown labels, TypeError for anything
        but a text, or a pair where the model takes pairs.
        """
        if label is not None and label not in self.labels:
            raise InputError(f"{self.folder}: no label {label!r}; it has: {', '.join(map(repr, self.labels[:10]))}.")

        def compute(rows: list[Sequence[str]]) -> Outputs:
            logits = self.task.split(self.outputs(*map(list, zip(*rows, strict=True))))[0]
            predicted = int(self.task.answers.probabilities(logits[:1]).argmax())  # the first row is the whole text
            return logits[:, predicted if label is None else self.labels.index(label)]

        return explain([column[0] for column in _read_texts([text], pairs=self.texts.pair is not None)], compute)


def load_classifier(
    folder: str, *, use_cpu: bool = False, precision: str = "auto", distributed: bool = False
) -> Predictor:
    """Load a result folder, e.g. `classify.load_classifier("runs/my-1").probabilities(["..."])`, or an exported one.

    This process predicts by itself, also in a job of several. With `distributed` the processes that a launcher started
    form a group and share the texts: each calls `probabilities` with the same texts, gets all results, and closes the
    predictor, or uses it as a context manager. Raises InputError if it is not a result folder.
    """
    launch = Launch.read() if distributed else None
    return load_predictor(folder, use_cpu=use_cpu, precision=precision, launch=launch)


def load_predictor(folder: str, *, use_cpu: bool, precision: str, launch: Launch | None) -> Predictor:
    """Load a folder for the processes of `launch`, or for this process by itself; see `load_classifier`."""
    runtime = next((name for file, name in RUNTIMES.items() if (Path(folder) / file).exists()), "pytorch")
    module = importlib.import_module(f"classify.prediction.{runtime}")
    predictor: Predictor = module.load(folder, use_cpu=use_cpu, precision=precision, launch=launch)
    return predictor


def _read_texts(texts: Iterable[Any], *, pairs: bool) -> list[list[str]]:
    """The texts, or the first and the second texts of pairs. Raises TypeError for anything else.

    Raises ValueError where one text of a pair is empty.
    """
    expected = f"texts must be a list of {'pairs of ' if pairs else ''}strings. Got"
    if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) > 1 + pairs:
        what = "the string " if isinstance(texts, str) else ""
        raise TypeError(f"{expected} {what}{describe(texts)} instead.")
    listed = texts.tolist() if isinstance(texts, np.ndarray) else list(texts)
    columns: list[list[str]] = [[], []] if pairs else [[]]
    for index, row in enumerate(listed):
        parts = (row,) if not pairs or isinstance(row, str) or not isinstance(row, Sequence) else row
        if len(parts) != len(columns) or not all(isinstance(part, str) for part in parts):
            raise TypeError(f"{expected} {describe(row)} at index {index} instead.")
        if pairs and bool(parts[0].strip()) != bool(parts[1].strip()):
            raise ValueError(f"texts must be pairs of two texts. Got an empty one at index {index}.")
        for column, part in zip(columns, parts, strict=True):
            column.append(part if part.isascii() else replace_surrogates(part))
    return columns

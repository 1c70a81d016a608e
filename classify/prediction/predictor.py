"""Predict texts, or a table, with a trained folder.

A runtime is a file beside this one that computes the outputs of texts, and a line in `RUNTIMES`. All else is here: the
texts of a table are computed block by block, by all ranks together, and the main process writes them.
"""

from __future__ import annotations

import importlib
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.config.fields import describe
from classify.console import progress_bar
from classify.data.languages import note_new_languages, sample_rows
from classify.data.tokenize import POLICIES, TRUNCATE, Tokens, note_longer, tokenize
from classify.errors import InputError, list_some
from classify.files import remove_temporaries
from classify.launch.launch import Launch
from classify.modeling.coverage import note_unknown
from classify.modeling.result_folder import EXPORTED, LABELS_SEEN, trained_texts
from classify.prediction.explanations import WordAttribution, explain
from classify.tables.roles import TextColumns, note_empty_texts
from classify.tables.table import EMPTY, Table, replace_surrogates
from classify.tables.writers import Added, CSVStream, rename_columns, rows_of
from classify.tasks.base import Task
from classify.tasks.columns import PredictionColumns, note_renamed

# The module that loads a folder with this file.
RUNTIMES = {EXPORTED: "onnx", "model.safetensors": "pytorch"}
STANDARD_OUTPUT = "-"
# Rows that are computed at once: memory holds the token ids of these alone.
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

    def compute(
        self,
        rows: int,
        take: Callable[[int, int], Iterable[Sequence[str]]],
        function: Callable[..., Outputs] | None = None,
        *,
        delayed: bool = False,
    ) -> Outputs:
        """The `outputs` of many texts, or another function of them, block by block; the main process shows progress.

        `take` gives the texts from one row up to another, or the first and the second texts. A `delayed` bar is for
        texts in memory: it appears only where they take long.
        """
        function, blocks = function or self.outputs, list[Outputs]()
        # Rows of a table may go to standard output, so lines of progress do not.
        lines = None if delayed else sys.stderr
        with progress_bar(rows, 0, "row", enabled=self.world.is_main, delayed=delayed, lines=lines) as bar:
            for start in range(0, rows, _BLOCK):
                end = min(rows, start + _BLOCK)
                blocks.append(function(*take(start, end)))
                bar.update(end - start)
        if not blocks:
            return np.zeros((0, len(self.labels) + (self.task.scope is not None)), dtype=np.float32)
        return np.concatenate(blocks)

    def table_outputs(self, table: Table, texts: TextColumns, rows: npt.NDArray[np.int64]) -> Outputs:
        return self.compute(len(rows), lambda a, b: (table.take(name, rows[a:b]) for name in texts.inputs))

    def predict(self, texts: Iterable[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32] | None]:
        """Compute the `probabilities` of texts, and the probability (len(texts),) of being in scope, or None."""
        columns = _read_texts(texts, pairs=self.texts.pair is not None)
        outputs = self.compute(len(columns[0]), lambda a, b: (column[a:b] for column in columns), delayed=True)
        logits, in_scope = self.task.split(outputs)
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
        is_inside = self.task.scope.holds(in_scope).tolist()
        return [value if holds else self.task.scope.label for value, holds in zip(values, is_inside, strict=True)]

    def tokenize(self, first: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        max_length, policy = self.settings["max_length"], POLICIES[self.settings.get("long_text", TRUNCATE.name)]
        return tokenize(self.tokenizer, first, max_length, second=second, long_texts=policy)

    def explain(self, text: str | tuple[str, str], label: str | None = None) -> list[WordAttribution]:
        """Measure by how much each word raises the logit of a label, the predicted one by default; see `explanations`.

        Where the model predicts scores, the logit is the score. Of several label columns a label is named as in "topic:
        billing", and the name of a column means its predicted label. A model of text pairs takes a tuple of two texts;
        the words of both are returned in order. A collective. Raises InputError for unknown labels, TypeError for
        anything but a text, or a pair where the model takes pairs.
        """
        columns = {column.name: column.outputs for column in self.task.columns}
        known = [*columns, *self.labels]
        if (label is not None and label not in known) or (label is None and columns):
            listed = list_some(known, show=repr, most=10)
            raise InputError(f"{self.folder}: expected one of the labels {listed}. Got {label!r} instead.")
        part = slice(None) if label is None else columns.get(label)

        def compute(rows: list[Sequence[str]]) -> Outputs:
            logits = self.task.split(self.outputs(*map(list, zip(*rows, strict=True))))[0]
            if part is None and label is not None:
                return logits[:, self.labels.index(label)]
            predicted = int(self.task.answers.probabilities(logits[:1])[:, part].argmax())  # the first row is the text
            return logits[:, part][:, predicted]

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


def predict_table(
    predictor: Predictor, table: Table, texts: TextColumns, out: str, columns: PredictionColumns
) -> list[str]:
    """Write a table that `check_prediction` accepted with its predictions, in file order; return notes for the user.

    `out` is a file name, whose extension selects the format, or - for standard output. A collective; the main process
    writes. Raises InputError if the processes read different tables.
    """
    world, rows = predictor.world, np.arange(len(table))
    world.check_same({"data": " ".join(map(table.digest, texts.inputs))})
    outputs, has_text = predictor.table_outputs(table, texts, rows), table.text_hashes(texts.whole) != EMPTY
    with world.sync_errors():
        if world.is_main and out == STANDARD_OUTPUT:
            added = Added(columns.names, columns.cells(outputs, has_text))
            names = [*rename_columns(table, columns.names), *columns.names]
            file = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="", write_through=True)
            try:
                CSVStream(file, names, for_excel=columns.for_excel).write(rows_of(table, rows, added))
            finally:
                file.detach()  # the stream stays open
        elif world.is_main:
            path = Path(out).resolve()  # the file that a link points to
            remove_temporaries(path.parent, path.name)
            columns.write(path, table, rows, outputs, has_text=has_text)
    return describe_doubts(predictor, table, texts, columns.names)


def describe_doubts(predictor: Predictor, table: Table, texts: TextColumns, added: Sequence[str]) -> list[str]:
    """List what may be wrong with a table, to which columns of these names are `added`."""
    notes = [finding.sentence for finding in (*table.findings, *note_empty_texts(table, texts))]
    if predictor.settings.get(LABELS_SEEN) == 0:
        notes.append("the model was made from the names of the classes; no label was seen, so its accuracy is unknown")
    if texts != predictor.texts:
        names, before = (", ".join(map(repr, columns.named)) for columns in (texts, predictor.texts))
        notes.append(f"texts are from column {names}; the model was trained on column {before}")
    if not len(table):
        return [*notes, f"{table.path} has no row"]
    if not table.has_names:
        notes.append(f"{table.path} has no header; its first row was predicted, too")
    sample = table.take(texts.whole, sample_rows(np.arange(len(table)), seed=0))
    tokens = predictor.tokenize(sample)
    more = (
        note_renamed(table, added),
        note_unknown(tokens, predictor.tokenizer),
        note_longer(tokens),
        note_new_languages(sample, predictor.settings.get("languages")),
    )
    return [*notes, *filter(None, more)]

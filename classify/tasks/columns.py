"""The columns that predictions add to a table, in a run's predictions.csv as in the files of `classify predict`."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import InputError, list_some
from classify.evaluation.scope import COLUMN
from classify.files import atomic_path, read_json
from classify.tables import csv_file
from classify.tables.source import ReadOptions, Source
from classify.tables.table import Table, to_arrow
from classify.tables.writers import Added, find_writer, rename_columns, unescape_formula, write_csv
from classify.tasks.base import EXACT, Column, Task

FILE = "predictions.csv"
# Column of the fold that predicted a row, in cross-validation.
FOLD_COLUMN = "fold"
# Column that says whether a prediction reaches the confidence that is asked for.
_ACCEPTED = "accepted"
# The added columns of other names hold numbers, but for `_ACCEPTED`.
_TEXT_COLUMNS = ("predicted_label", "label_", "accepted_")
# Labels above which a table has no column for each, but the most probable ones: a spreadsheet opens no more, and 10,000
# rows of 10,000 labels would be a gigabyte.
_MOST_COLUMNS = 1_000
_TOP_OF_MANY = 10
# Rows that are formatted at once: their probabilities take twice the memory of their logits.
_BLOCK = 2048

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PredictionColumns:
    """Formats a model's outputs as cells, and writes them beside the columns of a table.

    `top_k`: the labels with the highest probabilities in place of one column per label; of over 1,000 labels, ten.
    `min_confidence`: add a column that says whether the confidence reaches it. `set_limit`: add prediction sets (see
    `Answers.set_fields`). Outputs of a task with a scope end with the probability of belonging to a class: it is added,
    and below the threshold the scope's label is predicted. `digits` is the format of numbers; `for_excel`: see
    `CSVStream`. `tally` counts the rows so far: "accepted", how many of them are "expected right", and those "rejected"
    as of no class.

    Of several label columns `parts` format each, with the column's `name` behind that of each added one. A number of
    `min_confidence` or `set_limit` is for all of them; a mapping has one for each column that has any.

    Raises InputError where the task has no labels to rank, or no confidence.
    """

    task: Task
    top_k: int | None = None
    min_confidence: Any = None
    set_limit: Any = None
    digits: str = EXACT
    for_excel: bool = False
    tally: Counter[str] = field(default_factory=Counter, compare=False)
    name: str | None = None

    def __post_init__(self) -> None:
        if self.task.columns:
            answers = [column.task.answers for column in self.task.columns]
            if self.top_k is not None and not any(one.has_labels for one in answers):
                raise InputError("--top-k: the model predicts scores; leave the flag out.")
            if self.min_confidence is not None and not any(one.has_confidence for one in answers):
                raise InputError("--min-confidence: no column has one label per row; drop the flag.")
            return
        if self.top_k is None and self.task.answers.has_labels and len(self.task.labels) > _MOST_COLUMNS:
            object.__setattr__(self, "top_k", _TOP_OF_MANY)
        if self.top_k is not None and not self.task.answers.has_labels:
            raise InputError(f"--top-k: the model predicts {self.task.answers.outputs}; leave the flag out.")
        if self.top_k is not None and self.top_k > len(self.task.labels):
            raise InputError(
                f"--top-k must be at most {len(self.task.labels)}, the number of labels. Got {self.top_k} instead."
            )
        if self.min_confidence is not None and not self.task.answers.has_confidence:
            raise InputError("--min-confidence: predictions of this model have no single confidence; drop the flag.")

    @functools.cached_property
    def parts(self) -> tuple[PredictionColumns, ...]:
        return tuple(map(self._of_column, self.task.columns))

    def _of_column(self, column: Column) -> PredictionColumns:
        """The same for one of several label columns, without what its answers do not have."""
        answers, name, top_k = column.task.answers, column.name, self.top_k
        top_k = None if top_k is None or not answers.has_labels else min(top_k, len(column.task.labels))
        least, limit = (
            value.get(name) if isinstance(value, Mapping) else value for value in (self.min_confidence, self.set_limit)
        )
        return replace(
            self,
            task=column.task,
            top_k=top_k,
            min_confidence=least if answers.has_confidence else None,
            set_limit=limit,
            tally=Counter(),
            name=name,
        )

    @property
    def names(self) -> list[str]:
        """The names of the added columns, behind each that of one of several label columns."""
        if self.parts:
            return [name for part in self.parts for name in part.names]
        if self.name is None:
            return self._plain_names
        return [_name_part(name, self.name, is_label=self.top_k is None) for name in self._plain_names]

    @property
    def types(self) -> dict[str, type]:
        """The types of the added columns that hold no text."""
        if self.parts:
            return {name: kind for part in self.parts for name, kind in part.types.items()}
        pairs = zip(self.names, self._plain_names, strict=True)
        of_numbers = [(name, plain) for name, plain in pairs if not plain.startswith(_TEXT_COLUMNS)]
        return {name: bool if plain == _ACCEPTED else float for name, plain in of_numbers}

    @property
    def _plain_names(self) -> list[str]:
        answers = self.task.answers
        label, *others = answers.first_columns
        accepted = () if self.min_confidence is None else answers.accepted_columns
        in_scope = [] if self.task.scope is None else [COLUMN]
        of_labels = [f"{kind}_{place}" for place in range(1, (self.top_k or 0) + 1) for kind in ("label", "prob")]
        if self.top_k is None and answers.has_labels:
            of_labels = [f"prob_{name}" for name in answers.labels]
        sets = () if self.set_limit is None else answers.set_columns
        return [label, *accepted, *others, *in_scope, *of_labels, *sets]

    def cells(
        self, outputs: Array, has_text: Mask | None = None, predicted: npt.NDArray[np.generic] | None = None
    ) -> Iterator[list[str]]:
        """Yield the cells of each row of a model's outputs (rows, ...).

        A row without a text is not accepted. `predicted` are the predictions, by default those that the task decides.
        """
        if self.parts:
            of_parts = [
                part.cells(
                    outputs[:, column.outputs], has_text, None if predicted is None else column.unpack(predicted)
                )
                for part, column in zip(self.parts, self.task.columns, strict=True)
            ]
            yield from (list(itertools.chain.from_iterable(row)) for row in zip(*of_parts, strict=True))
            return
        for start in range(0, len(outputs), _BLOCK):
            block = slice(start, start + _BLOCK)
            decided = None if predicted is None else predicted[block]
            yield from self._format(outputs[block], True if has_text is None else has_text[block], decided)

    def _format(
        self, outputs: Array, has_text: Mask | bool, predicted: npt.NDArray[np.generic] | None
    ) -> Iterator[list[str]]:
        answers, digits = self.task.answers, self.digits
        logits, in_scope = self.task.split(outputs)
        probabilities, inside = answers.probabilities(logits), ~self.task.rejects(outputs)
        first = answers.fields(probabilities, digits, predicted)
        if self.task.scope is not None and in_scope is not None:
            first = self.task.scope.mark(first, in_scope, digits)
        marks: list[Sequence[str]] = [()] * len(outputs)
        if self.min_confidence is not None:
            names, shares = answers.accept(probabilities, self.min_confidence)
            # A rejected row is not accepted: no held-out row has shown how often a rejection is right.
            accepted = (names != "") & inside & has_text
            self.tally["accepted"] += int(accepted.sum())
            self.tally["expected right"] += float(shares[accepted].sum())  # type: ignore[assignment]
            words = (np.where(accepted, *pair).tolist() for pair in (("true", "false"), (names, "")))
            cells = zip(*words, strict=True)
            marks = [row[: len(answers.accepted_columns)] for row in cells]
        self.tally["rejected"] += int((~inside).sum())
        more: list[Iterator[Sequence[str]]] = []
        if answers.has_labels:
            more.append(self._of_labels(probabilities))
        if self.set_limit is not None:
            sets = answers.set_fields(probabilities, self.set_limit, digits)
            # A rejected row has an empty set: its text may have no class.
            more.append(
                members if is_inside else [""] * len(members)
                for members, is_inside in zip(sets, inside.tolist(), strict=True)
            )
        for (label, *others), mark, *parts in zip(first, marks, *more, strict=True):
            yield [label, *mark, *others, *itertools.chain.from_iterable(parts)]

    def _of_labels(self, probabilities: npt.NDArray[np.float64]) -> Iterator[list[str]]:
        """Yield the probabilities of each row, or the `top_k` labels with theirs."""
        if self.top_k is None:
            yield from ([f"{p:{self.digits}}" for p in row] for row in probabilities)
            return
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.top_k]
        for row, places in zip(probabilities, best.tolist(), strict=True):
            yield [cell for place in places for cell in (self.task.labels[place], f"{row[place]:{self.digits}}")]

    def write(
        self,
        path: Path,
        table: Table,
        rows: npt.NDArray[np.int64],
        outputs: Array,
        *,
        has_text: Mask | None = None,
        predicted: npt.NDArray[np.generic] | None = None,
        folds: npt.NDArray[np.generic] | None = None,
    ) -> None:
        """Write `rows` of a table, ascending, with all its columns, then their predictions; see `cells`.

        The format follows from the extension of the file. `folds` (rows,) are numbers from 0: the fold that predicted
        each row gets a column of its own.
        """
        names, cells = self.names, self.cells(outputs, has_text, predicted)
        if folds is not None:
            names = [*names, FOLD_COLUMN]
            cells = ([*row, str(fold + 1)] for row, fold in zip(cells, folds.tolist(), strict=True))
        types = {**self.types, FOLD_COLUMN: float}
        writer = find_writer(path.name)
        if writer is write_csv:
            writer = functools.partial(write_csv, for_excel=self.for_excel)
        with atomic_path(path) as temporary:
            writer(temporary, table, rows, Added(names, cells, types))

    def summary(self, rows: int) -> str:
        """Say what became of the rows that were predicted."""
        if self.parts:
            lines = [(part.name, part.summary(rows).partition(", ")[2]) for part in self.parts]
            return "; ".join([f"{rows:,} rows", *(f"{name}: {line}" for name, line in lines if line)])
        parts = [f"{rows:,} rows"]
        if self.min_confidence is not None:
            right = round(self.tally["expected right"])
            least = f" at {self.min_confidence:.3g}" if isinstance(self.min_confidence, float) else ""
            parts.append(f"{self.tally['accepted']:,} accepted{least} (expected {right:,} right)")
        if self.task.scope is not None:
            parts.append(f"{self.tally['rejected']:,} in no class")
        return ", ".join(parts)


def _name_part(name: str, column: str, *, is_label: bool) -> str:
    """The name of an added column for one of several label columns, e.g. predicted_topic and prob_topic_billing.

    `is_label`: behind prob_ stands a label, and no place of a most probable one.
    """
    if name.startswith("predicted_"):
        return f"predicted_{column}"
    kind, _, label = name.partition("_")
    return f"prob_{column}_{label}" if kind == "prob" and is_label else f"{name}_{column}"


def read_predictions(folder: Path) -> Table:
    """Read predictions.csv of a result folder, with the texts that were predicted. Raises OSError and InputError."""
    written = ReadOptions(encoding="utf-8", quote='"', header=True, like={"delimiter": ","})
    table = csv_file.read(Source(str(folder / FILE)), written)
    if not read_json(folder / "run.json").get("config", {}).get("training", {}).get("excel_safe"):
        return table
    columns = [to_arrow(map(unescape_formula, table.column(name))) for name in table.columns]
    return replace(table, arrow=pyarrow.table(columns, names=table.columns))


def note_renamed(table: Table, added: Sequence[str]) -> str | None:
    pairs = zip(table.columns, rename_columns(table, added), strict=True)
    renamed = [f"{name!r} is named {new!r}" for name, new in pairs if name != new]
    return f"{table.path}: in the predictions, column {list_some(renamed)}" if renamed else None

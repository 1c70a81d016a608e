"""The columns that predictions add to a table, in a run's predictions.csv as in the files of `classify predict`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.predictions_file import ACCEPTED, EXACT, FOLD_COLUMN, write_predictions
from classify.evaluation.scope import Scope
from classify.tables.table import Table
from classify.tasks.base import Task

# Rows that are formatted at once: their probabilities take twice the memory of their logits.
_BLOCK = 2048

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PredictionColumns:
    """Formats a model's outputs as cells, and writes them beside the columns of a table.

    `top_k`: the labels with the highest probabilities in place of one column per label. `min_confidence`: add a column
    that says whether the confidence reaches it. `set_limit`: add prediction sets (see `Answers.set_fields`). `scope`:
    the outputs end with the probability of belonging to a class; add it, and predict its label below the threshold.
    `digits` is the format of numbers; `for_excel`: see `CSVStream`. `tally` counts the rows so far: "accepted", how
    many of them are "expected right", and those "rejected" as of no class.

    Raises InputError where the task has no labels to rank, or no confidence.
    """

    task: Task
    top_k: int | None = None
    min_confidence: float | None = None
    set_limit: float | None = None
    scope: Scope | None = None
    digits: str = EXACT
    for_excel: bool = False
    tally: Counter[str] = field(default_factory=Counter, compare=False)

    def __post_init__(self) -> None:
        if self.top_k is not None and not self.task.answers.has_labels:
            raise InputError("--top-k: the model predicts scores; leave the flag out.")
        if self.top_k is not None and self.top_k > len(self.task.labels):
            raise InputError(
                f"--top-k must be at most {len(self.task.labels)}, the number of labels. Got {self.top_k} instead."
            )
        if self.min_confidence is not None and not self.task.answers.has_confidence:
            raise InputError("--min-confidence: predictions of this model have no single confidence; drop the flag.")

    @property
    def names(self) -> list[str]:
        label, *others = self._task_names
        accepted = [] if self.min_confidence is None else [ACCEPTED]
        ranked = [f"{kind}_{place}" for place in range(1, (self.top_k or 0) + 1) for kind in ("label", "prob")]
        return [label, *accepted, *others, *ranked, *(() if self.set_limit is None else self.task.answers.set_columns)]

    @property
    def _task_names(self) -> list[str]:
        """The columns of the task; with `top_k` without the columns of the labels, which are the last."""
        names = self.task.answers.columns()
        names = names if self.scope is None else self.scope.names(names)
        return names if self.top_k is None else names[: -len(self.task.labels)]

    def cells(
        self, outputs: Array, has_text: Mask | None = None, predicted: npt.NDArray[np.generic] | None = None
    ) -> Iterator[list[str]]:
        """Yield the cells of each row of a model's outputs (rows, ...).

        A row without a text is not accepted. `predicted` are the predictions, by default those that the task decides.
        """
        for start in range(0, len(outputs), _BLOCK):
            block = slice(start, start + _BLOCK)
            decided = None if predicted is None else predicted[block]
            yield from self._format(outputs[block], True if has_text is None else has_text[block], decided)

    def _format(
        self, outputs: Array, has_text: Mask | bool, predicted: npt.NDArray[np.generic] | None
    ) -> Iterator[list[str]]:
        task = self.task
        probabilities = task.answers.probabilities(outputs if self.scope is None else outputs[:, :-1])
        fields = task.answers.fields(probabilities, self.digits, predicted)
        inside = np.ones(len(outputs), dtype=bool)
        if self.scope is not None:
            fields = self.scope.mark(fields, outputs[:, -1], self.digits)
            inside = self.scope.holds(outputs[:, -1])
        confidence = probabilities.max(axis=1)
        # A rejected row is not accepted: no held-out row has shown how often a rejection is right.
        accepted = (confidence >= (self.min_confidence or 0.0)) & inside & has_text
        self.tally["accepted"] += int(accepted.sum())
        self.tally["expected right"] += float(confidence[accepted].sum())  # type: ignore[assignment]
        self.tally["rejected"] += int((~inside).sum())
        columns: list[Iterator[Sequence[str]]] = []
        if self.top_k is not None:
            columns.append(self._rank(probabilities))
        if self.set_limit is not None:
            sets = task.answers.set_fields(probabilities, self.set_limit, self.digits)
            # A rejected row has an empty set: its text may have no class.
            columns.append(
                members if is_inside else [""] * len(members)
                for members, is_inside in zip(sets, inside.tolist(), strict=True)
            )
        kept = len(self._task_names)
        for cells, is_accepted, *more in zip(fields, accepted.tolist(), *columns, strict=True):
            mark = [] if self.min_confidence is None else ["true" if is_accepted else "false"]
            yield [cells[0], *mark, *cells[1:kept], *(cell for part in more for cell in part)]

    def _rank(self, probabilities: npt.NDArray[np.float64]) -> Iterator[list[str]]:
        """Yield the `top_k` labels of each row with their probabilities."""
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
        """Write `rows` of a table, ascending, with their predictions; see `cells`.

        `folds` (rows,) are numbers from 0: the fold that predicted each row gets a column of its own.
        """
        names, cells = self.names, self.cells(outputs, has_text, predicted)
        if folds is not None:
            names = [*names, FOLD_COLUMN]
            cells = ([*row, str(fold + 1)] for row, fold in zip(cells, folds.tolist(), strict=True))
        write_predictions(path, table, rows, names, cells, for_excel=self.for_excel)

    def summary(self, rows: int) -> str:
        """Say what became of the rows that were predicted."""
        parts = [f"{rows:,} rows"]
        if self.min_confidence is not None:
            right = round(self.tally["expected right"])
            parts.append(f"{self.tally['accepted']:,} accepted at {self.min_confidence:.3g} (expected {right:,} right)")
        if self.scope is not None:
            parts.append(f"{self.tally['rejected']:,} in no class")
        return ", ".join(parts)

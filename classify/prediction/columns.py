"""The columns that predictions add to a table."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.predictions_file import EXACT
from classify.evaluation.scope import Scope
from classify.tasks.base import Task

ACCEPTED = "accepted"


@dataclass(frozen=True)
class PredictionColumns:
    """Format the probabilities of a row as cells.

    `top_k`: the labels with the highest probabilities in place of one column per label. `min_confidence`: add a column
    that says whether the confidence reaches it. `set_limit`: add prediction sets (see `Answers.set_fields`). `scope`:
    add the probability of belonging to a class, and predict its label below the threshold.
    `digits` is the format of numbers; `for_excel`: see `CSVStream`. `tally` counts the rows so far: "accepted", those
    of them "expected right", and those "rejected" as of no class.

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
        places = range(1, (self.top_k or 0) + 1)
        ranked = [name for place in places for name in (f"label_{place}", f"prob_{place}")]
        sets = self.task.answers.set_columns if self.set_limit is not None else ()
        label, *others = self._kept
        return [label, *([ACCEPTED] if self.min_confidence is not None else []), *others, *ranked, *sets]

    @property
    def _kept(self) -> list[str]:
        """The columns of the task; with `top_k` without those of the labels, which are the last."""
        names = self.task.answers.columns()
        names = names if self.scope is None else self.scope.names(names)
        return names if self.top_k is None else names[: -len(self.task.labels)]

    def cells(
        self, outputs: npt.NDArray[np.float32], has_text: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[list[str]]:
        """Yield the cells of each row of a predictor's outputs (rows, ...); one without a text is not accepted.

        Nor is one that is out of scope: no held-out row has shown how often that answer is right.
        """
        logits = outputs if self.scope is None else outputs[:, :-1]
        probabilities = self.task.answers.probabilities(logits)
        all_fields = self.task.answers.fields(probabilities, self.digits)
        confidence = probabilities.max(axis=1)
        if self.scope is not None:
            in_scope = outputs[:, -1]
            all_fields = self.scope.mark(map(list, all_fields), in_scope, self.digits)
        accepted = confidence >= (self.min_confidence or 0.0)
        holds = np.ones(len(accepted), dtype=bool) if self.scope is None else self.scope.holds(in_scope)
        accepted &= holds
        if has_text is not None:
            accepted &= has_text
        kept = len(self._kept)
        best: npt.NDArray[Any] = np.empty((len(probabilities), 0), dtype=np.int64)
        if self.top_k is not None:
            best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.top_k]
        sets: Iterator[list[str]] = itertools.repeat([], len(probabilities))
        if self.set_limit is not None:
            sets = self.task.answers.set_fields(probabilities, self.set_limit, self.digits)
        self.tally["accepted"] += int(accepted.sum())
        self.tally["expected right"] += float(confidence[accepted].sum())  # type: ignore[assignment]
        self.tally["rejected"] += int((~holds).sum())
        rows = zip(probabilities, accepted.tolist(), holds.tolist(), all_fields, best.tolist(), sets, strict=True)
        for row, is_accepted, is_inside, fields, places, members in rows:
            label, *others = fields[:kept]
            marks = [] if self.min_confidence is None else ["true" if is_accepted else "false"]
            ranked = [cell for place in places for cell in (self.task.labels[place], f"{row[place]:{self.digits}}")]
            # No class is among those that a rejected text may have.
            yield [label, *marks, *others, *ranked, *(members if is_inside else [""] * len(members))]

    def summary(self, rows: int) -> str:
        """In words what became of the rows that were predicted."""
        parts = [f"{rows:,} rows"]
        if self.min_confidence is not None:
            right = round(self.tally["expected right"])
            parts.append(f"{self.tally['accepted']:,} accepted at {self.min_confidence:.3g} (expected {right:,} right)")
        if self.scope is not None:
            parts.append(f"{self.tally['rejected']:,} in no class")
        return ", ".join(parts)

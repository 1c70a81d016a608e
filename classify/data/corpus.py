"""The tables of a run and their parts: what is trained on, what chooses the best epoch, what is scored."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from classify.data.columns import Columns, Decision
from classify.data.labels import ClassNames
from classify.data.table import Table

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Some rows of a table: `rows` ascending (file order), `labels` the class numbers of all rows of the table."""

    table: Table
    rows: Rows
    labels: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def truth(self) -> Rows:
        """Class numbers of the part's own rows."""
        return self.labels[self.rows]

    def texts(self, column: str) -> list[str]:
        """Texts of the part's own rows."""
        return self.table.take(column, self.rows)


@dataclass(frozen=True)
class Corpus:
    """Everything the run knows of the person's data before a model is loaded.

    `unlabelled` are rows to predict at the end, by the name of their file; `seen` the indices of evaluation and test
    rows whose text is in the training part, too. `assignment` is the part that each row of --data went to where it was
    divided, an index into `PARTS`, -1 of a row without a label; None where the parts are tables of their own.
    """

    text_column: str
    label_column: str
    labels: list[str]
    train: Part
    eval: Part
    test: Part | None
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = field(default=())
    unlabelled: Mapping[str, Part] = field(default_factory=dict)
    seen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assignment: npt.NDArray[np.int8] | None = None

    @property
    def tables(self) -> list[Table]:
        """Each table once, `--data` first."""
        tables: list[Table] = []
        for part in (self.train, self.eval, self.test, *self.unlabelled.values()):
            if part is not None and not any(part.table is table for table in tables):
                tables.append(part.table)
        return tables

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of what a run learns from and is scored on: the texts, targets and class names of each part."""
        digest = hashlib.sha256("\0".join(self.labels).encode())
        for part in (self.train, self.eval, self.test):
            if part is not None:
                digest.update(part.table.digest(self.text_column).encode())
                digest.update(part.rows.tobytes() + part.truth.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Tables:
    """The tables as they were read, and the columns that matter, which all of them have.

    `split_column` says of each row of `--data` which part it belongs to, where a column does; `task` is --task.
    """

    train: Table
    eval: Table | None
    test: Table | None
    columns: Columns
    classes: ClassNames = field(default_factory=ClassNames)
    split_column: str | None = None
    task: str = "auto"

    def labelled(self, table: Table) -> npt.NDArray[np.bool_]:
        """(rows,) whether each row of a table has a label."""
        if self.columns.label not in table.columns:
            return np.zeros(len(table), dtype=bool)
        values, numbers = table.values(self.columns.label)
        return np.array([self.classes.of(value) is not None for value in values], dtype=bool)[numbers]


class LabelEncoder(Protocol):
    """What makes numbers of labels: a task, see `classify.tasks`."""

    labels: list[str]

    def guess(self) -> Decision:
        """What the labels were taken for."""
        ...

    def encode(self, table: Table, column: str, known_from: str) -> Rows:
        """The truth of all rows of a table, something else where a row has no label.

        Raises InputError naming labels that `known_from` does not have.
        """
        ...

    def strata(self, truth: Rows) -> Rows:
        """A number a row: parts of the rows hold each number in proportion."""
        ...

"""The rows that a run trains on, validates on and tests, with their targets."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from classify.data.soft_labels import SoftLabels
from classify.findings import Finding
from classify.tables.labels import ClassNames
from classify.tables.roles import Columns
from classify.tables.table import Table, TextHashes

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Some rows of a table: `rows` (n,) ascending, i.e. in file order, and their `targets` (n, ...).

    Scores count `targets`. Training rows train towards `soft_targets` (n, ...), if there are any, by their `weights`
    (n,).
    """

    table: Table
    rows: Rows
    targets: Array
    soft_targets: Array | None = None
    weights: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, column: str) -> list[str]:
        return self.table.take(column, self.rows)

    def hashes(self, column: str) -> TextHashes:
        return self.table.text_hashes(column)[self.rows]

    def take(self, places: Rows) -> Split:
        soft, weights = (None if part is None else part[places] for part in (self.soft_targets, self.weights))
        return Split(self.table, self.rows[places], self.targets[places], soft, weights)


@dataclass(frozen=True)
class Source:
    """Rows of one origin that are trained on beside the training split, and never scored.

    `shared` are the targets of trusted texts that the source labels, too: its own, and the trusted ones. `is_taught`: a
    teacher has labelled the rows, and may have learned from the training split; where that is cross-validated,
    `by_fold` has for each fold the rows with the labels of a teacher that has not seen it. What
    is not `is_judged` stays, whatever it adds.
    """

    name: str
    split: Split
    shared: tuple[Array, Array] | None = None
    is_taught: bool = False
    is_judged: bool = True
    by_fold: tuple[Split, ...] = ()

    def of_fold(self, fold: int | None) -> Split:
        """The rows for a model that does not learn from a fold of the training split."""
        return self.split if fold is None or not self.by_fold else self.by_fold[fold]


@dataclass(frozen=True)
class Splits:
    """The splits of a run, known before a model is loaded.

    `targets` has all rows of `--data`, in splits or not; `labelled` marks rows that have one. `unlabelled`
    are rows to predict at the end, by the name of their file; `in_training` the indices of validation and test rows
    whose text is in the training split, too. `assignment` is the split of each row of `--data` as an index into
    `SPLITS`, -1 for none; None where the splits are separate tables.

    `folds` (len(train),) is the fold of each training row in cross-validation, else None. With folds nothing is held
    out: the validation split is the training split, and its logits come from models that were trained without the row.

    With `learnable_validation` the validation rows may be learned from once they are scored: the seed has drawn them
    from `--data`, and no test row has their text.

    `outside` are rows that belong to none of the classes, of which `outside_scored` are scored; none of them is
    trained on. `sources` are more rows to train on, whose labels are not trusted enough to score by; `to_teach` are
    rows without labels, which a teacher makes one of them.
    """

    columns: Columns
    encoder: Targets
    train: Split
    validation: Split
    test: Split | None
    targets: Array
    labelled: npt.NDArray[np.bool_]
    findings: tuple[Finding, ...]
    unlabelled: Mapping[str, Split] = field(default_factory=dict)
    in_training: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assignment: npt.NDArray[np.int8] | None = None
    folds: Rows | None = None
    outside: tuple[Split, ...] = ()
    outside_scored: Split | None = None
    learnable_validation: bool = False
    sources: tuple[Source, ...] = ()
    to_teach: Split | None = None

    @property
    def labels(self) -> list[str]:
        return self.encoder.labels

    @property
    def scored(self) -> Split:
        return self.test or self.validation

    @property
    def learned(self) -> list[Split]:
        """The training split, and the rows of each source."""
        return [self.train, *(source.split for source in self.sources)]

    @property
    def num_learned(self) -> int:
        return sum(map(len, self.learned))

    @property
    def num_folds(self) -> int:
        return 0 if self.folds is None else int(self.folds.max()) + 1

    @property
    def method(self) -> str | None:
        return None if self.folds is None else f"{self.num_folds}-fold cross-validation"

    @property
    def tables(self) -> list[Table]:
        """Each table once, `--data` first."""
        tables: list[Table] = []
        scored = (self.validation, self.test, *self.unlabelled.values(), self.outside_scored, self.to_teach)
        for split in (*self.learned, *scored):
            if split is not None and not any(split.table is table for table in tables):
                tables.append(split.table)
        return tables

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what a run learns from and is scored on: texts, targets and class names of each split."""
        digest = hashlib.sha256("\0".join(self.labels).encode())
        # A teacher's probabilities may differ in the last bits where the run is resumed on other devices.
        taught = [source.split for source in self.sources if source.is_taught]
        for split in (*self.learned, self.validation, self.test):
            if split is not None:
                for column in self.columns.texts.inputs:
                    digest.update(split.table.digest(column).encode())
                digest.update(split.rows.tobytes())
                for part in (split.targets, split.soft_targets, split.weights):
                    if part is not None and not any(split is other for other in taught):
                        digest.update(part.tobytes())
        if self.folds is not None:
            digest.update(self.folds.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Targets(ABC):
    """What the labels are: the numbers that the cells of a label column become, and back; a part of each task.

    `labels` are the names of the model's outputs, `classes` the class of each label that is written in a table.
    `findings` say how a run's labels were understood, and what may be wrong with them.
    """

    # Of the array of targets: whether each label has a column of it, and its type.
    per_label: ClassVar[bool] = False
    # Whether a run keeps features of its rows, by which another one may add a class.
    are_extended: ClassVar[bool] = False
    dtype: ClassVar[type[np.generic]]

    labels: list[str]
    classes: ClassNames = field(default_factory=ClassNames)
    findings: tuple[Finding, ...] = ()

    @abstractmethod
    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        """(rows,) whether each row of a table has a label; none has one where the column is missing."""

    @abstractmethod
    def encode(self, table: Table, column: str, known_from: str) -> Array:
        """The targets of all rows of a table; any value where a row has no label.

        Raises InputError naming labels that `known_from` does not have.
        """

    def partial(self, table: Table, column: str) -> tuple[npt.NDArray[np.bool_], Array] | None:
        """The rows (rows,) whose label says too little to score by, and what they train towards; None without any."""
        return None

    @abstractmethod
    def soften(self, targets: Array, soft: SoftLabels) -> Array:
        """What rows with these targets train towards, where some have probabilities.

        Raises InputError for a task without such, for columns that name no label, and where they do not sum to 1.
        """

    def in_form_of(self, targets: Array, others: Array) -> Array:
        """These targets, soft where the others are."""
        return targets if np.issubdtype(targets.dtype, np.floating) else targets.astype(others.dtype)

    @abstractmethod
    def decode(self, targets: Array) -> list[Any]:
        """Targets or predictions as labels, lists of labels, or numbers."""

    @abstractmethod
    def stratify_by(self, targets: Array) -> Rows:
        """(rows,) numbers; splits hold each number in proportion."""

    def differ(self, targets: Array, others: Array) -> npt.NDArray[np.bool_]:
        """(rows,) whether the targets of two tables of rows say different things."""
        return np.asarray((targets != others).reshape(len(targets), -1).any(axis=1))

    @abstractmethod
    def label_counts(self, targets: Array) -> Rows:
        """(labels,) the rows of each label."""

    @abstractmethod
    def summary(self, targets: Array) -> str:
        """Describe the targets of a table in a line."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Entries of classify.json, from which `from_settings` makes the targets of a trained model."""

    @abstractmethod
    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """The similarity (n, n) of the labels of each two rows, 0 to 1.

        The steps on pairs, before the first epoch, train the features of a text towards it.
        """


def mark_rows(table: Table, column: str, holds: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """(rows,) whether each row's cell in a column holds something; each distinct cell is asked about once."""
    if not table.has_column(column):
        return np.zeros(len(table), dtype=bool)
    values, numbers = table.dictionary_encode(column)
    return np.array(list(map(holds, values)), dtype=bool)[numbers]

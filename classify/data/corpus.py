"""The tables of a run, understood and divided: what is trained on, what chooses the best epoch, what is scored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from classify.config.schema import DataConfig
from classify.data.columns import Columns, Guess, empty_texts, find_columns, require_column
from classify.data.formats.base import ReadOptions
from classify.data.formats.registry import SUFFIXES
from classify.data.labels import ClassNames, name_classes, near_twins
from classify.data.source import split_files
from classify.data.split import cap_rows, overlap, split_rows
from classify.data.table import Table, read_table
from classify.errors import Faults, InputError

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
        values = self.table.column(column)
        return [values[row] for row in self.rows]


@dataclass(frozen=True)
class Corpus:
    """Everything the run knows of the person's data before a model is loaded."""

    text_column: str
    label_column: str
    labels: list[str]
    train: Part
    eval: Part
    test: Part | None
    guesses: tuple[Guess, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def tables(self) -> list[Table]:
        """Each table once, `--data` first."""
        tables: list[Table] = []
        for part in (self.train, self.eval, self.test):
            if part is not None and not any(part.table is table for table in tables):
                tables.append(part.table)
        return tables

    @property
    def fingerprint(self) -> str:
        """Hash of what training sees: files, columns, class names, rows of the training part."""
        digest = hashlib.sha256()
        for table in self.tables:
            digest.update(table.sha256.encode())
        digest.update("\0".join([self.text_column, self.label_column, *self.labels]).encode())
        digest.update(self.train.rows.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Tables:
    """The tables as they were read, and the columns that matter, which all of them have."""

    train: Table
    eval: Table | None
    test: Table | None
    columns: Columns
    classes: ClassNames = field(default_factory=ClassNames)


class LabelEncoder(Protocol):
    """What makes numbers of labels: a task, see `classify.tasks`."""

    labels: list[str]

    def guess(self) -> Guess:
        """What the labels were taken for."""
        ...

    def encode(self, table: Table, column: str, known_from: str) -> Rows:
        """The truth of all rows of a table. Raises InputError naming labels that `known_from` does not have."""
        ...

    def strata(self, truth: Rows) -> Rows:
        """A number a row: parts of the rows hold each number in proportion."""
        ...


def read_tables(config: DataConfig) -> Tables:
    """Read the tables and find the columns. Raises InputError with all faults."""
    table, eval_table, test_table = _read(config)
    columns = find_columns(table, config.text_column, config.label_column)
    _require_columns(columns.text, columns.label, eval_table, test_table)
    if config.group_column is not None and config.group_column not in table.columns:
        raise InputError(
            f"--group-column {config.group_column}: {table.path} has no such column; it has: "
            f"{', '.join(table.columns)}."
        )
    labels = [label for one in (table, eval_table) if one is not None for label in one.column(columns.label)]
    classes = name_classes(labels, normalize=config.normalize_labels, given=config.label_names)
    return Tables(table, eval_table, test_table, columns, classes)


def divide(tables: Tables, encoder: LabelEncoder, config: DataConfig, seed: int) -> Corpus:
    """The parts of a run. Raises InputError where the texts are too few, or a label is unknown.

    Given tables are taken as they are. `--data` alone is divided 80/10/10 into train, eval and test, 90/10 into
    train and eval beside `--test-data`; beside `--eval-data` alone there is no test part. `max_train_samples` caps
    the training part once the class names are fixed.
    """
    table, columns = tables.train, tables.columns
    ids = encoder.encode(table, columns.label, "--data")
    texts = table.column(columns.text)
    known = "--data" if tables.eval is None else "--data or --eval-data"

    def whole(of: Table) -> Part:
        return Part(of, np.arange(len(of)), encoder.encode(of, columns.label, known))

    test = None
    if tables.eval is not None:
        train_rows = np.arange(len(table))
        eval_part = whole(tables.eval)
        how = "given as files of their own"
    else:
        test_share = 0.0 if tables.test is not None else 0.1
        owners = table.column(config.group_column) if config.group_column is not None else None
        split = split_rows(texts, encoder.strata(ids), seed=seed, eval_share=0.1, test_share=test_share, owners=owners)
        assert split.eval is not None
        train_rows, eval_part = split.train, Part(table, split.eval, ids)
        # So few different texts that none is left for it: then there is no test score, rather than a false one.
        test = Part(table, split.test, ids) if split.test is not None and len(split.test) else None
        how = f"{'80/10/10' if test_share else '90/10'} of {table.path}, each class in proportion, by seed {seed}"
        how += f", rows of one {config.group_column!r} in one part" if owners is not None else ""
    if tables.test is not None:
        test = whole(tables.test)
    notes = [f"the labels {', '.join(map(repr, same))} are one class" for same in tables.classes.merged]
    notes += _warnings(texts, train_rows, columns.text, encoder.labels, eval_part, test, table)
    if config.max_train_samples is not None:
        train_rows = cap_rows(encoder.strata(ids), train_rows, config.max_train_samples, seed=seed)
    train = Part(table, train_rows, ids)
    if not len(eval_part) or not len(train):
        raise InputError(f"{table.path}: too few different texts to divide: {len(table)} rows hold {len(set(texts))}.")
    sizes = f"{len(train)} to train, {len(eval_part)} to evaluate, {len(test) if test else 0} to test"
    guesses = (
        *columns.guesses,
        encoder.guess(),
        Guess("parts", sizes, how, "--eval-data, --test-data" if tables.eval is None else ""),
    )
    return Corpus(columns.text, columns.label, encoder.labels, train, eval_part, test, guesses, tuple(notes))


def _read(config: DataConfig) -> tuple[Table, Table | None, Table | None]:
    """All tables; the faults of all of them are raised together."""
    assert config.data is not None
    wanted = {"--data": config.data, "--eval-data": config.eval_data, "--test-data": config.test_data}
    if Path(config.data).is_dir():
        parts = split_files(Path(config.data), SUFFIXES)
        wanted |= {flag: path for flag, path in parts.items() if flag == "--data" or wanted[flag] is None}
    options = ReadOptions(config.encoding, config.sheet, config.on_bad_rows == "skip")
    tables: list[Table | None] = []
    faults = Faults()
    for flag, path in wanted.items():
        with faults.collecting():
            tables.append(None if path is None else read_table(path, flag, options))
    faults.raise_if_any()
    table, eval_table, test_table = tables
    assert table is not None
    return table, eval_table, test_table


def _require_columns(text: str, label: str, *tables: Table | None) -> None:
    faults = Faults()
    for table in tables:
        for name, flag in ((text, "--text-column"), (label, "--label-column")):
            with faults.collecting():
                if table is not None:
                    require_column(table, name, flag)
    faults.raise_if_any()


def _warnings(
    texts: list[str], train: Rows, column: str, labels: list[str], eval_part: Part, test: Part | None, table: Table
) -> list[str]:
    """What a person should know of their data before they trust a score."""
    notes = [
        f"the labels {a!r} and {b!r} differ only in case or spaces; they are two classes" for a, b in near_twins(labels)
    ]
    empty = empty_texts(table, column)
    if empty is not None:
        notes.append(empty)
    for name, part in (("evaluation", eval_part), ("test", test)):
        if part is not None and part.table is not table:
            shared = overlap(texts, train, part.texts(column))
            if shared:
                lines = part.table.where([int(part.rows[i]) for i in shared])
                notes.append(f"{len(shared)} of {len(part)} {name} texts are also in the training part ({lines})")
    return notes

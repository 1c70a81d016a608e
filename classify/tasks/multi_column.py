"""Several label columns over one encoder: each column is a task of its own, with its slice of the output layer.

A row's targets are the cells of all columns side by side, float32, `MISSING` where a column is empty: such a row counts
for its other columns. Each part of the task asks the same part of the columns' tasks, on the rows and outputs that are
theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify import tasks
from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels
from classify.data.splits import Targets
from classify.errors import ErrorList, InputError
from classify.evaluation.metrics import INDEPENDENT, Array, MajorityBaseline, Sampling, Scores as SplitScores
from classify.findings import Finding, note
from classify.tables.table import Table
from classify.tasks.base import (
    BALANCED,
    EXACT,
    MISSING,
    NONE,
    Answers,
    Column,
    FitRows,
    Head,
    Layer,
    Loss,
    Penalty,
    Scores,
    Task,
    Weights,
    format_value,
)
from classify.tasks.label_columns import check_empty_labels

NAME = "multi_column"
# Rows of a combination of labels from which splits hold it in proportion.
_ENOUGH = 10


def pack(columns: Sequence[Column], of_columns: Sequence[Array]) -> npt.NDArray[np.float32]:
    """Targets or predictions of each column, for the same rows, side by side (rows, cells)."""
    parts = [
        values.reshape(len(values), column.cells.stop - column.cells.start)
        for column, values in zip(columns, of_columns, strict=True)
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ColumnTargets(Targets):
    """The cells (rows, cells) of all columns, float32."""

    columns: tuple[Column, ...] = ()

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        return np.any([one.task.targets.labelled(table, one.name) for one in self.columns], axis=0)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.float32]:
        encoded, faults = [], ErrorList()
        for one in self.columns:
            with faults.collect():
                encoded.append(one.task.targets.encode(table, one.name, known_from))
        faults.raise_if_any()
        cells = pack(self.columns, encoded)
        for one in self.columns:
            cells[~one.task.targets.labelled(table, one.name), one.cells] = MISSING
        return cells

    def soften(self, targets: Array, soft: SoftLabels) -> Array:
        if soft.labels or soft.texts is not None:
            flag = "--soft-labels" if soft.labels else "--annotator-column"
            raise InputError(f"{flag} works with one label column; name one with --label-column, or drop the flag.")
        return targets

    def decode(self, targets: Array) -> list[dict[str, Any]]:
        """The label, labels or number of each column by its name; without columns that are empty."""
        rows: list[dict[str, Any]] = [{} for _ in range(len(targets))]
        for one in self.columns:
            places = one.rows(targets)
            for place, value in zip(places.tolist(), one.task.targets.decode(one.unpack(targets[places])), strict=True):
                rows[place][one.name] = value
        return rows

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """Each row's combination of labels; where that is rare, its rarest label."""
        numbers = np.stack([self._numbers(one, targets) for one in self.columns], axis=1)
        _, of_row, rows = np.unique(numbers, axis=0, return_inverse=True, return_counts=True)
        of_row = of_row.ravel()
        frequent = rows[of_row] >= _ENOUGH
        counts = np.stack([np.bincount(column)[column] for column in numbers.T], axis=1)
        rarest = counts.argmin(axis=1)
        alone = len(rows) + np.cumsum([0, *(column.max(initial=0) + 1 for column in numbers.T[:-1])])
        of_rarest = alone[rarest] + numbers[np.arange(len(numbers)), rarest]
        return np.unique(np.where(frequent, of_row, of_rarest), return_inverse=True)[1].astype(np.int64)

    def _numbers(self, column: Column, targets: Array) -> npt.NDArray[np.int64]:
        """The stratum (rows,) of each row in a column, from 1; 0 where it is empty."""
        rows, numbers = column.rows(targets), np.zeros(len(targets), dtype=np.int64)
        numbers[rows] = 1 + column.task.targets.stratify_by(column.unpack(targets[rows]))
        return numbers

    def differ(self, targets: Array, others: Array) -> npt.NDArray[np.bool_]:
        """Whether two rows differ in a column that both have."""
        return np.asarray(((targets != others) & (targets != MISSING) & (others != MISSING)).any(axis=1))

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        counts = [one.task.targets.label_counts(one.unpack(targets[one.rows(targets)])) for one in self.columns]
        return np.concatenate(counts)

    def summary(self, targets: Array) -> str:
        parts = []
        for one in self.columns:
            rows = one.rows(targets)
            empty = f", empty in {len(targets) - len(rows):,} rows" if len(rows) < len(targets) else ""
            parts.append(f"{one.name}: {one.task.targets.summary(one.unpack(targets[rows]))}{empty}")
        return "; ".join(parts)

    def settings(self) -> dict[str, Any]:
        return {}

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """The mean similarity in the columns that both rows have; 0 where they share none."""
        total, both = (np.zeros((len(targets), len(targets)), dtype=np.float32) for _ in range(2))
        for one in self.columns:
            rows = one.rows(targets)
            pairs = np.ix_(rows, rows)
            total[pairs] += one.task.targets.similarity(one.unpack(targets[rows]))
            both[pairs] += 1
        return np.asarray(total / np.maximum(both, 1))


def _zero_layer(column: Column, features: Array) -> Layer:
    outputs = column.outputs.stop - column.outputs.start
    return np.zeros((outputs, features.shape[1]), dtype=np.float32), np.zeros(outputs, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ColumnHead(Head):
    """A slice of the output layer for each column. A row's loss is the mean over the columns that it has."""

    problem_type = None
    probe = "a linear layer per column"

    columns: tuple[Column, ...] = ()

    def check(self, config: TrainingConfig) -> None:
        if config.class_weights not in (NONE, BALANCED):
            raise InputError(
                f"--class-weights {config.class_weights}: the weights of a file are for one label column; give "
                "balanced, or drop the flag."
            )
        # Of scores there are no classes to weigh or smooth, which the other columns may have.
        plain = replace(config, class_weights=NONE, loss="cross_entropy", label_smoothing_factor=0.0)
        any_labels = any(one.task.answers.has_labels for one in self.columns)
        for one in self.columns:
            one.task.head.check(config if one.task.answers.has_labels or not any_labels else plain)

    def balance(self, targets: Array) -> Weights:
        parts = []
        for one in self.columns:
            weights = one.task.head.balance(self._own(one, targets)) if one.task.answers.has_labels else None
            parts.append(np.ones(len(one.task.labels)) if weights is None else weights)
        return np.concatenate(parts).astype(np.float32)

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        losses = [one.task.head.loss(config, self._own(one, targets)) for one in self.columns]
        return tasks.losses.ColumnLoss(self.columns, tuple(losses))

    def trained_penalty(self, *, is_final: bool) -> Penalty:
        return [one.task.head.trained_penalty(is_final=is_final) for one in self.columns]

    def choose_penalty(self, rows: FitRows) -> Penalty:
        return [one.task.head.choose_penalty(own) for one, own in self._each(rows)]

    def fit(self, rows: FitRows, penalty: Penalty = None) -> Layer:
        """Fit each column's slice on the rows that have the column; its penalty is the one at its place.

        Features are standardized on these rows.
        """
        penalties = [None] * len(self.columns) if penalty is None else penalty
        layers = [
            one.task.head.fit(own, strength)
            if len(own.targets)
            else _zero_layer(one, rows.features)  # without the rows of a fold a column may be empty
            for (one, own), strength in zip(self._each(rows), penalties, strict=True)
        ]
        return np.concatenate([weight for weight, _ in layers]), np.concatenate([bias for _, bias in layers])

    def _own(self, column: Column, targets: Array) -> Array:
        return column.unpack(targets[column.rows(targets)])

    def _each(self, rows: FitRows) -> Iterator[tuple[Column, FitRows]]:
        """Yield each column, and the rows that have it, with its targets and the weights of its labels."""
        for one in self.columns:
            own, weights = rows.take(one.rows(rows.targets)), rows.class_weights
            weights = None if weights is None else weights[one.outputs]
            yield one, own._replace(targets=one.unpack(own.targets), class_weights=weights)

    def standardize(self, weight: Any, bias: Any) -> None:
        for one in self.columns:
            one.task.head.standardize(weight[one.outputs], bias[one.outputs])

    def rescale(self, logits: Array, targets: Array, *, calibrate: bool) -> tuple[Array, Array] | None:
        scale, shift = np.ones(len(self.labels), dtype=np.float32), np.zeros(len(self.labels), dtype=np.float32)
        for one in self.columns:
            rows = one.rows(targets)
            fitted = one.task.head.rescale(logits[rows][:, one.outputs], one.unpack(targets[rows]), calibrate=calibrate)
            if fitted is not None:
                scale[one.outputs], shift[one.outputs] = fitted
        return scale, shift


@dataclass(frozen=True, eq=False)
class ColumnAnswers(Answers):
    """The answers of each column side by side; `columns` have them apart."""

    purpose = "answers several questions about a text"
    first_columns = ()

    @property
    def has_labels(self) -> bool:  # type: ignore[override]
        return any(one.task.answers.has_labels for one in self.columns)

    sections = ("next_steps", "scores", "sources", "curve", "usage", "data", "course", "decisions")

    def probabilities(self, logits: Array) -> npt.NDArray[np.float64]:
        return np.concatenate([one.task.answers.probabilities(logits[:, one.outputs]) for one in self.columns], axis=1)

    def decide(self, probabilities: Array) -> npt.NDArray[np.float32]:
        decided = [one.task.answers.decide(probabilities[:, one.outputs]) for one in self.columns]
        return pack(self.columns, decided)

    def fitted(self, probabilities: Array, targets: Array) -> Self:
        fitted = []
        for one in self.columns:
            rows = one.rows(targets)
            answers = one.task.answers.fitted(probabilities[rows][:, one.outputs], one.unpack(targets[rows]))
            fitted.append(replace(one, task=one.task.with_answers(answers)))
        return replace(self, columns=tuple(fitted))

    def fields(self, probabilities: Array, digits: str = EXACT, predicted: Array | None = None) -> Iterator[list[str]]:
        raise NotImplementedError  # each column has its own, see `tasks.columns`

    def certainty(self, probabilities: Array) -> npt.NDArray[np.float64]:
        """That of the least certain column; scores do not say how certain they are."""
        parts = [
            one.task.answers.certainty(probabilities[:, one.outputs])
            for one in self.columns
            if one.task.answers.has_labels
        ]
        return np.min(parts, axis=0)


@dataclass(frozen=True, eq=False)
class ColumnScores(Scores):
    """The scores of each column, and the mean of their primary metrics. A column without a labelled row has none."""

    primary = "mean"
    row_metric = "row_mean"
    selection = ("mean", "loss")

    def _each(self, targets: Array) -> Iterator[tuple[Column, Array]]:
        for one in self.answers.columns:
            rows = one.rows(targets)
            if len(rows):
                yield one, rows

    def metrics(self, predicted: Array, targets: Array) -> dict[str, Any]:
        found = {
            one.name: one.task.scores.metrics(one.unpack(predicted[rows]), one.unpack(targets[rows]))
            for one, rows in self._each(targets)
        }
        return {"mean": self._mean(found), "columns": found}

    def _mean(self, found: Mapping[str, Any]) -> float:
        primary = {one.name: one.task.scores.primary for one in self.answers.columns}
        return float(np.mean([values[primary[name]] for name, values in found.items()]))

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        """The scores of each column on the rows that have it; the loss is the mean of theirs."""
        found = {
            one.name: one.task.scores.score(
                logits[rows][:, one.outputs],
                one.unpack(targets[rows]),
                seed,
                None if predicted is None else one.unpack(predicted[rows]),
                sampling.take(rows),
            )
            for one, rows in self._each(targets)
        }
        loss = float(np.mean([scores["loss"] for scores in found.values()]))
        intervals = [found[one.name].intervals.get(one.task.scores.primary) for one, _ in self._each(targets)]
        interval, known = None, [pair for pair in intervals if pair is not None]
        if len(known) == len(found):  # as wide as if the columns were right and wrong together, which is the widest
            interval = float(np.mean([low for low, _ in known])), float(np.mean([high for _, high in known]))
        return SplitScores({"mean": self._mean(found)}, len(targets), {"loss": loss}, {"mean": interval}, columns=found)

    def row_scores(self, predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
        """The mean score over the columns that a row has; errors of scores by their standard deviation."""
        total, count = np.zeros(len(targets)), np.zeros(len(targets))
        for one, rows in self._each(targets):
            scores = one.task.scores
            total[rows] += scores.row_scores(one.unpack(predicted[rows]), one.unpack(targets[rows])) / scores.row_unit
            count[rows] += 1
        return total / np.maximum(count, 1)

    def majority(self, train_targets: Array, targets: Array) -> MajorityBaseline:
        found, labels = {}, {}
        for one, rows in self._each(targets):
            learned = one.unpack(train_targets[one.rows(train_targets)])
            frequent = one.task.scores.majority(learned, one.unpack(targets[rows]))
            found[one.name], labels[one.name] = frequent.as_json(), frequent.label
        return MajorityBaseline(format_value(labels), {"mean": self._mean(found), "columns": found})

    def linear_model(self, targets: Array, seed: int) -> tuple[str, Any, int]:
        parts = [
            one.task.scores.linear_model(one.unpack(targets[one.rows(targets)]), seed) for one in self.answers.columns
        ]
        model = tasks.baseline.ColumnModels(self.answers.columns, [estimator for _, estimator, _ in parts])
        name = ", ".join(dict.fromkeys(name for name, _, _ in parts))
        return name, model, max(outputs for _, _, outputs in parts)


def make(named: Sequence[tuple[str, Task]], findings: Sequence[Finding] = ()) -> Task:
    """The task of columns by name, in order. Their outputs, and the cells of their targets, follow each other."""
    columns, labels, cell = list[Column](), list[str](), 0
    for name, task in named:
        width = len(task.labels) if task.targets.per_label else 1
        outputs = slice(len(labels), len(labels) + len(task.labels))
        columns.append(Column(name, task, outputs, slice(cell, cell + width)))
        labels += [f"{name}: {label}" for label in task.labels] if task.answers.has_labels else [name]
        cell += width
    findings = [*itertools.chain.from_iterable(map(_list_findings, columns)), *findings]
    answers = ColumnAnswers(labels, columns=tuple(columns))
    targets = ColumnTargets(labels, findings=tuple(findings), columns=tuple(columns))
    head = ColumnHead(labels, columns=tuple(columns))
    return Task(NAME, targets, head, ColumnScores(labels, answers), answers)


def from_tables(tables: InputTables) -> Task:
    """The task of the label columns of a run's tables. Raises InputError with the faults of all columns."""
    config = tables.config
    flags = {
        "--out-of-scope-label": config.out_of_scope_label,
        "--unlabelled-data": config.unlabelled_data,
        "--source-column": config.source_column,
        "--soft-labels": config.soft_labels,
        "--annotator-column": config.annotator_column,
    }
    if given := [flag for flag, value in flags.items() if value]:
        names = ", ".join(tables.columns.labels)
        raise InputError(f"{' and '.join(given)}: works with one label column, and --label-column names {names}.")
    check_empty_labels(tables)
    named, faults = list[tuple[str, Task]](), ErrorList()
    for name in tables.columns.labels:
        with faults.collect():
            named.append((name, tasks.registry.recognize(tables.of_label_column(name))))
    faults.raise_if_any()
    _check_flags(tables)
    notes = [*_note_empty(tables.train, named), *_find_equal(tables.train, tables.columns.labels)]
    return make(named, [note(text, tables.train.path) for text in notes])


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    named = [
        (one["name"], tasks.registry.from_settings(one["task"], one["labels"], one)) for one in settings["columns"]
    ]
    return make(named)


def _check_flags(tables: InputTables) -> None:
    """Raise InputError for a name of --label-names, or a value, that no column has."""
    config, parts = tables.config, [tables.of_label_column(name).config for name in tables.columns.labels]
    used = {pair for part in parts for pair in (part.label_names or "").split(",")}
    if lost := [pair for pair in (config.label_names or "").split(",") if pair and pair not in used]:
        raise InputError(f"--label-names {lost[0]}: no label column has {lost[0].split('=')[0]!r}.")
    value = config.unlabelled_value
    if value is not None and all(part.unlabelled_value is None for part in parts):
        raise InputError(f"--unlabelled-value {value}: no label column has it.")


def _note_empty(table: Table, named: Sequence[tuple[str, Task]]) -> Iterator[str]:
    """Yield a sentence for each column that is empty in most rows."""
    for name, task in named:
        rows = int(task.targets.labelled(table, name).sum())
        if 2 * rows < len(table):
            empty = f"{len(table) - rows:,} of {len(table):,} rows"
            yield f"column {name!r} is empty in {empty}; these count for the other columns"


def _find_equal(table: Table, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each column whose cells tell those of an earlier one."""
    numbers = [table.dictionary_encode(name)[1] for name in names]
    for place, name in enumerate(names):
        for other in range(place):
            pairs = len(np.unique(np.stack([numbers[place], numbers[other]]), axis=1).T)
            if pairs == len(np.unique(numbers[place])) == len(np.unique(numbers[other])):
                yield f"columns {names[other]!r} and {name!r} say the same in each row; one is enough"
                break


def _list_findings(column: Column) -> Iterator[Finding]:
    """Yield the findings on a column's labels, with its name."""
    for one in column.task.targets.findings:
        yield replace(one, where=one.where if one.level == "note" else f"{one.where} of {column.name!r}")

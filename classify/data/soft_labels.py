"""What rows train towards beyond a label each: probabilities of the labels, weights, the labels of several people.

The columns `prob_<label>` are those that `classify predict` writes, so another model, or several people, can label a
table. Scores count the label itself, or the most probable one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from classify.config.schema import DataConfig
from classify.errors import InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.labels import ClassNames
from classify.tables.table import Table, to_arrow

PREFIX = "prob_"
# What `classify predict` writes beside the probabilities, and the ending of input columns that it has renamed.
PREDICTED = ("predicted_label", "predicted_labels", "confidence")
RENAMED = "_input"
# Name of the column of labels where the table has none.
DERIVED = "label"
# Distance of a sum of probabilities from 1 that rounding explains; of many labels each may be rounded.
_ROUNDING = 0.01
_ROUNDED = 0.005

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """`probabilities` (rows, labels) of the rows of `--data`, NaN in rows without any, and `weights` (rows,), if any.

    `are_all`: the table has no other labels. `texts` (rows,) are numbers of texts, where several people have labelled
    one.
    """

    table: Table
    labels: tuple[str, ...] = ()
    probabilities: Numbers | None = None
    weights: Numbers | None = None
    are_all: bool = False
    texts: npt.NDArray[np.int64] | None = None

    @property
    def has_any(self) -> npt.NDArray[np.bool_]:
        if self.probabilities is None:
            return np.zeros(len(self.table), dtype=bool)
        return np.asarray(~np.isnan(self.probabilities[:, 0]))

    def findings(self) -> list[Finding]:
        found = []
        if self.labels:
            what = f"{self.has_any.sum():,} rows train towards probabilities of {len(self.labels)} labels"
            why = f"columns {PREFIX}*; scores count the label itself, or the most probable one"
            found.append(decided("soft labels", what, why, "--soft-labels", True))
        if self.weights is not None:
            found.append(decided("weights", "of rows in training", "as given", "--weight-column", True))
        return found

    def class_names(self, classes: ClassNames) -> list[str]:
        """The classes that have a column of probabilities."""
        return [str(classes.of(name) or name) for name in self.labels]

    def check_sums(self) -> None:
        """Raise InputError where the probabilities of a row do not sum to 1."""
        if self.probabilities is None:
            return
        sums = self.probabilities.sum(axis=1)
        off = np.flatnonzero(np.abs(sums - 1) > max(_ROUNDING, _ROUNDED * len(self.labels)))
        if len(off):
            raise InputError(
                f"{self.table.describe_rows(off.tolist())}: the columns {PREFIX}* sum to {sums[off[0]]:.3g}; expected "
                "1. Correct them, drop --soft-labels, or give --task multi for any number of labels a row."
            )

    def replace(self, targets: npt.NDArray[Any], labels: Sequence[str], classes: ClassNames) -> Numbers:
        """Targets (rows, labels) of 0 and 1; in rows with probabilities these.

        Raises InputError where no column names a label.
        """
        replaced, names = np.array(targets, dtype=np.float64), self.class_names(classes)
        if self.probabilities is None:
            return replaced
        soft = np.flatnonzero(self.has_any)
        replaced[soft] = 0.0
        for place, name in enumerate(names):
            replaced[soft, labels.index(name)] += self.probabilities[soft, place]
        return replaced


def read_soft_labels(table: Table, config: DataConfig) -> tuple[SoftLabels | None, tuple[str, ...]]:
    """Read the probabilities and weights of a table, and list the columns that are no texts or labels.

    Raises InputError for cells that are no probabilities or weights.
    """
    weights = None if config.weight_column is None else _read_weights(table, config.weight_column)
    others = [name for name in (config.weight_column, config.annotator_column) if name is not None]
    if config.soft_labels:
        names = [name for name in table.columns if name.startswith(PREFIX)]
        names = [name for name in names if name.removesuffix(RENAMED) not in {*names} - {name}]
        if len(names) < 2:
            raise InputError(
                f"--soft-labels: expected columns {PREFIX}<label>, as classify predict writes them. Got "
                f"{list_some(table.columns, show=repr)}; drop the flag."
            )
        others += [name for name in table.columns if name.removesuffix(RENAMED) in (*names, *PREDICTED)]
        labels = tuple(name.removeprefix(PREFIX) for name in names)
        soft = SoftLabels(table, labels, _read_probabilities(table, names), weights)
        return soft, tuple(name for name in others if name != config.label_column)
    return None if weights is None else SoftLabels(table, weights=weights), tuple(others)


def fill_labels(table: Table, soft: SoftLabels, column: str | None, unlabelled: str | None) -> Table:
    """The table with the most probable label in rows that have no other; in a column of its own without `column`."""
    assert soft.probabilities is not None
    best = np.nan_to_num(soft.probabilities, nan=-1.0).argmax(axis=1).tolist()
    likely = [soft.labels[place] if has else "" for place, has in zip(best, soft.has_any.tolist(), strict=True)]
    if column is None:
        return table.with_arrow(table.arrow.append_column(DERIVED, to_arrow(likely)))
    given = (cell.strip() for cell in table.column(column))
    cells = (likely[row] if cell in ("", unlabelled) else cell for row, cell in enumerate(given))
    index = table.arrow.schema.get_field_index(column)
    return table.with_arrow(table.arrow.set_column(index, column, to_arrow(cells)))


def note_columns(table: Table, config: DataConfig) -> list[Finding]:
    """A note on columns of probabilities that are not read."""
    names = [name for name in table.columns if name.startswith(PREFIX)]
    if len(names) < 2 or config.soft_labels:
        return []
    return [note(f"columns {list_some(names, show=repr)} not read; --soft-labels trains towards them", table.path)]


def read_annotators(
    soft: SoftLabels | None, table: Table, text_column: str, label_column: str, annotator_column: str
) -> tuple[SoftLabels, Finding]:
    """Count the rows of a text as one, labelled by several people. Raises InputError beside probabilities."""
    if soft is not None and soft.labels:
        raise InputError("--annotator-column and --soft-labels both say what a text trains towards; drop one of them.")
    _, texts = np.unique(table.text_hashes(text_column), return_inverse=True)
    cells, numbers = table.dictionary_encode(label_column)
    alike = {cell: number for number, cell in enumerate(dict.fromkeys(cell.strip().casefold() for cell in cells))}
    labels = np.array([alike[cell.strip().casefold()] for cell in cells])[numbers]
    has_label = np.array([bool(cell.strip()) for cell in cells])[numbers]
    people = len({name.strip() for name in table.column(annotator_column)} - {""})
    votes = np.unique(np.stack([texts, labels])[:, has_label], axis=1, return_counts=True)[1]
    rows = np.bincount(texts[has_label])
    pairs, agreeing = (rows * (rows - 1)).sum(), (votes * (votes - 1)).sum()
    agreement = f"; of two labels of a text {100 * agreeing / pairs:.0f} % agree" if pairs else ""
    what = f"{people} people labelled {(rows > 0).sum():,} texts{agreement}"
    why = "the rows of a text train towards the shares of its labels, and count as one"
    soft = replace(soft or SoftLabels(table), texts=texts)
    return soft, decided("annotators", what, why, "--annotator-column", True)


def average_texts(
    targets: npt.NDArray[Any], texts: npt.NDArray[np.int64], weights: Numbers
) -> tuple[npt.NDArray[Any], Numbers]:
    """The weighted mean targets (rows, ...) of each row's text, and the weights (rows,), of a text as of one row."""
    _, place = np.unique(texts, return_inverse=True)
    totals, counts = np.bincount(place, weights), np.bincount(place, weights > 0)
    shape = (-1, *[1] * (targets.ndim - 1))
    sums = np.zeros((len(totals), *targets.shape[1:]))
    np.add.at(sums, place, targets * weights.reshape(shape))
    means = sums / np.where(totals > 0, totals, 1.0).reshape(shape)
    return means[place].astype(np.float32), weights / np.maximum(counts, 1)[place]


def _read_probabilities(table: Table, names: Sequence[str]) -> Numbers:
    found = np.stack([_read_numbers(table, name, "a probability from 0 to 1") for name in names], axis=1)
    wrong = (found < 0) | (found > 1 + _ROUNDING)
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{table.describe_rows([row])}: column {names[place]!r} holds {found[row, place]:g}; expected a "
            "probability from 0 to 1. Correct it, or drop --soft-labels."
        )
    empty = np.isnan(found)
    if (partly := empty.any(axis=1) & ~empty.all(axis=1)).any():
        where = table.describe_rows(np.flatnonzero(partly).tolist())
        raise InputError(f"{where}: some of the columns {PREFIX}* are empty; fill in all of a row, or none.")
    return found


def _read_weights(table: Table, name: str) -> Numbers:
    weights = _read_numbers(table, name, "a weight of 0 or more")
    wrong = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
    if len(wrong):
        where = table.describe_rows(wrong.tolist())
        raise InputError(f"{where}: column {name!r} holds no weight of 0 or more; correct it, or drop --weight-column.")
    if not weights.any():
        raise InputError(f"{table.path}: column {name!r} holds the weight 0 in all rows; drop --weight-column.")
    return weights


def _read_numbers(table: Table, name: str, expected: str) -> Numbers:
    """The numbers (rows,) of a column, NaN where a cell is empty."""
    cells = pc.utf8_trim_whitespace(table.arrow[name])
    filled = pc.if_else(pc.equal(cells, ""), pyarrow.scalar(None, pyarrow.string()), cells)
    try:
        return np.asarray(filled.cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
    except pyarrow.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{table.path}: column {name!r}: expected {expected} in each cell ({reason}).") from None

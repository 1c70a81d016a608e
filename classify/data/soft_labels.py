"""What rows train towards beyond a class each: probabilities of the classes, and weights.

The columns `prob_<label>` are those that `classify predict` writes, so a model, several people, or a language model can
label a table. Scores are computed on the most probable class alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from classify.errors import InputError, list_some
from classify.findings import Finding, decided
from classify.tables.labels import ClassNames
from classify.tables.rules import is_named
from classify.tables.table import Table, to_arrow

PREFIX = "prob_"
# What `classify predict` writes beside the probabilities.
PREDICTED = ("predicted_label", "confidence")
# Name of the column of labels where the table has none.
DERIVED = "label"
# Distance of a sum of probabilities from 1 that rounding explains.
_ROUNDING = 0.01

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """`probabilities` (rows, labels) of the rows of `--data`, NaN in rows without any, and `weights` (rows,).

    `are_all`: the table has no other labels.
    """

    labels: tuple[str, ...]
    probabilities: Numbers
    weights: Numbers
    are_all: bool = False

    @property
    def finding(self) -> Finding:
        rows = int((~np.isnan(self.probabilities).any(axis=1)).sum()) if self.labels else 0
        weighted = "" if (self.weights == 1).all() else "weighted rows"
        soft = f"{rows:,} rows train towards probabilities of {len(self.labels)} classes" if self.labels else ""
        why = f"columns {PREFIX}*; scores count the label, or the most probable class" if soft else "--weight-column"
        flag = "--soft-labels none" if soft else "--weight-column"
        return decided("soft labels", ", ".join(filter(None, (soft, weighted))), why, flag, True)

    def targets(self, labels: Sequence[str], classes: ClassNames, numbers: npt.NDArray[np.int64]) -> Numbers:
        """Targets (rows, classes) that sum to each row's weight, 1 on average; `numbers` (rows,) are the classes.

        Raises InputError for a column that names no class.
        """
        targets = np.zeros((len(numbers), len(labels)))
        known = np.flatnonzero(numbers >= 0)
        targets[known, numbers[known]] = 1.0
        names = [classes.of(name) for name in self.labels]
        if missing := [name for name, known_as in zip(self.labels, names, strict=True) if known_as not in labels]:
            raise InputError(
                f"columns {list_some([PREFIX + name for name in missing], show=repr)}: no row has such a label; rename "
                "the columns after the labels, or give --soft-labels none."
            )
        if self.labels:
            soft = np.flatnonzero(~np.isnan(self.probabilities[:, 0]))
            targets[soft] = 0.0
            for place, name in enumerate(names):
                targets[soft, labels.index(str(name))] += self.probabilities[soft, place]
        return targets * (self.weights / self.weights.mean())[:, None]


def read_soft_labels(
    table: Table, label_column: str | None, weight_column: str | None, *, is_read: bool
) -> tuple[Table, SoftLabels | None, tuple[str, ...]]:
    """The table with a label in each row that has probabilities, these, and the columns that are no texts or labels.

    An empty label becomes the most probable class, in a column of its own where the table has none. With `is_read`
    columns of probabilities are read. Raises InputError for cells that are no probabilities or weights.
    """
    names = tuple(name for name in table.columns if name.startswith(PREFIX)) if is_read else ()
    names = names if len(names) > 1 else ()
    if not names and weight_column is None:
        return table, None, ()
    weights = np.ones(len(table)) if weight_column is None else _read_weights(table, weight_column)
    others = [*names, *([] if weight_column is None else [weight_column])]
    if not names:
        return table, SoftLabels((), np.full((len(table), 0), np.nan), weights), tuple(others)
    probabilities = _read_probabilities(table, names)
    others += [name for name in PREDICTED if table.has_column(name) and name != label_column]
    labels = tuple(name.removeprefix(PREFIX) for name in names)
    named = [name for name in table.columns if name not in others and is_named(name, "label")]
    column = label_column or (named[0] if len(named) == 1 else None)
    has_any: list[bool] = (~np.isnan(probabilities[:, 0])).tolist()
    best = np.nan_to_num(probabilities, nan=-1.0).argmax(axis=1).tolist()
    if column is None and not named:
        cells = [labels[place] if has else "" for place, has in zip(best, has_any, strict=True)]
        table = table.with_arrow(table.arrow.append_column(DERIVED, to_arrow(cells)))
    elif column is not None and table.has_column(column):
        given = zip(table.column(column), best, has_any, strict=True)
        cells = [labels[place] if has and not cell.strip() else cell for cell, place, has in given]
        index = table.arrow.schema.get_field_index(column)
        table = table.with_arrow(table.arrow.set_column(index, column, to_arrow(cells)))
    return table, SoftLabels(labels, probabilities, weights, are_all=column is None), tuple(others)


def _read_probabilities(table: Table, names: Sequence[str]) -> Numbers:
    found = np.stack([_read_numbers(table, name, "a probability from 0 to 1") for name in names], axis=1)
    wrong = (found < 0) | (found > 1 + _ROUNDING)
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{table.describe_rows([row])}: column {names[place]!r} holds {found[row, place]:g}; expected a "
            "probability from 0 to 1. --soft-labels none ignores such columns."
        )
    empty = np.isnan(found)
    if (partly := empty.any(axis=1) & ~empty.all(axis=1)).any():
        where = table.describe_rows(np.flatnonzero(partly).tolist())
        raise InputError(f"{where}: some of the columns {PREFIX}* are empty; fill in all of a row, or none.")
    sums = found.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
    if len(off):
        raise InputError(
            f"{table.describe_rows(off.tolist())}: the columns {PREFIX}* sum to {sums[off[0]]:.3g}; expected 1. "
            "Correct them, or give --soft-labels none to ignore them."
        )
    return np.asarray(found / sums[:, None])


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
    except pyarrow.ArrowInvalid:
        wrong = next(row for row, cell in enumerate(cells.to_pylist()) if cell and not _is_number(cell))
        raise InputError(
            f"{table.describe_rows([wrong])}: column {name!r} holds {cells[wrong].as_py()!r}; expected {expected}."
        ) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""What rows train towards beyond a class each: probabilities of the classes, and weights.

The columns `prob_<label>` are those that `classify predict` writes, so a model, several people, or a language model can
label a table. Scores are computed on the most probable class alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
# Between the labels of a cell, and the probability from which a row has one.
JOIN = "|"
_LIKELY = 0.5
# Distance of a sum of probabilities from 1 that rounding explains.
_ROUNDING = 0.01

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """`probabilities` (rows, labels) of the rows of `--data`, NaN in rows without any, and `weights` (rows,), if any.

    `are_all`: the table has no other labels. `texts` (rows,) are numbers of texts, where several people have labelled
    one.
    """

    table: Table
    labels: tuple[str, ...]
    probabilities: Numbers
    weights: Numbers | None = None
    are_all: bool = False
    texts: npt.NDArray[np.int64] | None = None

    @property
    def finding(self) -> Finding:
        if not self.labels:
            return decided("weights", "of rows in training", "as given", "--weight-column", True)
        rows = int(self.has_any.sum())
        soft = f"{rows:,} rows train towards probabilities of {len(self.labels)} labels"
        why = f"columns {PREFIX}*; scores count the label itself, or the most probable one"
        return decided("soft labels", soft, why, "--soft-labels none", True)

    @property
    def has_any(self) -> npt.NDArray[np.bool_]:
        return np.asarray(~np.isnan(self.probabilities[:, 0]))

    def check_sums(self) -> None:
        """Raise InputError where the probabilities of a row do not sum to 1."""
        sums = self.probabilities.sum(axis=1)
        off = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
        if len(off):
            raise InputError(
                f"{self.table.describe_rows(off.tolist())}: the columns {PREFIX}* sum to {sums[off[0]]:.3g}; expected "
                "1. Correct them, give --task multi for any number of labels a row, or --soft-labels none to ignore "
                "them."
            )

    def replace(self, targets: Numbers, labels: Sequence[str], classes: ClassNames) -> Numbers:
        """Targets (rows, labels) of 0 and 1, in rows with probabilities these.

        Raises InputError for a column that names no label.
        """
        names = [classes.of(name) for name in self.labels]
        if missing := [name for name, known_as in zip(self.labels, names, strict=True) if known_as not in labels]:
            raise InputError(
                f"columns {list_some([PREFIX + name for name in missing], show=repr)}: no row has such a label; rename "
                "the columns after the labels, or give --soft-labels none."
            )
        replaced = np.array(targets, dtype=np.float64)
        soft = np.flatnonzero(self.has_any) if self.labels else np.empty(0, dtype=np.int64)
        replaced[soft] = 0.0
        for place, name in enumerate(names):
            replaced[soft, labels.index(str(name))] += self.probabilities[soft, place]
        return replaced


def read_soft_labels(
    table: Table, label_column: str | None, weight_column: str | None, *, is_read: bool, is_multi: bool
) -> tuple[Table, SoftLabels | None, tuple[str, ...]]:
    """The table with a label in each row that has probabilities, these, and the columns that are no texts or labels.

    An empty label becomes the most probable one, or with `is_multi` all above one half, in a column of its own where
    the table has none. With `is_read` columns of probabilities are read. Raises InputError for cells that are no
    probabilities or weights.
    """
    names = tuple(name for name in table.columns if name.startswith(PREFIX)) if is_read else ()
    names = names if len(names) > 1 else ()
    others = [*names, *([] if weight_column is None else [weight_column])]
    if not others:
        return table, None, ()
    weights = None if weight_column is None else _read_weights(table, weight_column)
    if not names:
        return table, SoftLabels(table, (), np.empty((len(table), 0)), weights), tuple(others)
    others += [name for name in PREDICTED if table.has_column(name) and name != label_column]
    labels = tuple(name.removeprefix(PREFIX) for name in names)
    named = [name for name in table.columns if name not in others and is_named(name, "label")]
    column = label_column or (named[0] if len(named) == 1 else None)
    soft = SoftLabels(table, labels, _read_probabilities(table, names), weights, column is None and not named)
    if soft.are_all and not is_multi:
        soft.check_sums()
    likely = _list_likely(soft, is_multi=is_multi)
    if soft.are_all:
        table = table.with_arrow(table.arrow.append_column(DERIVED, to_arrow(likely)))
    elif column is not None and table.has_column(column):
        cells = (cell if cell.strip() else other for cell, other in zip(table.column(column), likely, strict=True))
        index = table.arrow.schema.get_field_index(column)
        table = table.with_arrow(table.arrow.set_column(index, column, to_arrow(cells)))
    return table, soft, tuple(others)


def read_annotators(
    soft: SoftLabels | None, table: Table, text_column: str, label_column: str, annotator_column: str
) -> tuple[SoftLabels, Finding]:
    """Count the rows of a text as one, labelled by several people. Raises InputError beside probabilities."""
    if soft is not None and soft.labels:
        raise InputError(f"--annotator-column: columns {PREFIX}* say it, too; drop the flag, or --soft-labels none.")
    _, texts = np.unique(table.text_hashes(text_column), return_inverse=True)
    cells, labels = table.dictionary_encode(label_column)
    has_label = np.array([bool(cell.strip()) for cell in cells])[labels]
    people = len({name.strip() for name in table.column(annotator_column)} - {""})
    votes = np.unique(np.stack([texts, labels])[:, has_label], axis=1, return_counts=True)[1]
    rows = np.bincount(texts[has_label])
    pairs, alike = (rows * (rows - 1)).sum(), (votes * (votes - 1)).sum()
    agreement = f"; of two labels of a text {100 * alike / pairs:.0f} % agree" if pairs else ""
    soft = soft or SoftLabels(table, (), np.empty((len(table), 0)))
    what = f"{people} people labelled {(rows > 0).sum():,} texts{agreement}"
    why = "the rows of a text train towards the shares of its labels, and count as one"
    return replace(soft, texts=texts), decided("annotators", what, why, "--annotator-column", True)


def average_texts(targets: npt.NDArray[Any], texts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], Numbers]:
    """The mean targets (rows, ...) of each row's text, and the share (rows,) of the text that the row is."""
    _, place, counts = np.unique(texts, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), *targets.shape[1:]))
    np.add.at(sums, place, targets)
    means = sums / counts.reshape(-1, *[1] * (targets.ndim - 1))
    return means[place].astype(np.float32), 1 / counts[place]


def _list_likely(soft: SoftLabels, *, is_multi: bool) -> list[str]:
    """A label, or a cell of labels, for each row: what its probabilities make likely; empty without any."""
    cells = []
    for row, has_any in zip(soft.probabilities, soft.has_any.tolist(), strict=True):
        places = np.flatnonzero(row >= _LIKELY) if is_multi else [int(row.argmax())]
        cells.append(JOIN.join(soft.labels[place] for place in places) if has_any else "")
    return cells


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

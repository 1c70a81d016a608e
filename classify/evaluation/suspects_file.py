"""suspects.csv: rows of a table whose label may be wrong by out-of-fold probabilities, to be reviewed and applied.

Rows are numbered as messages number them: by their line in a text file, or their row in a sheet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import InputError, list_some
from classify.files import atomic_write
from classify.tables.profile import parse_mark
from classify.tables.read import read_table
from classify.tables.roles import find_id_column
from classify.tables.source import ReadOptions
from classify.tables.table import Table, normalize_text
from classify.tables.writers import CSVStream, unescape_formula

FILE = "suspects.csv"
# See `_MARGIN`.
MEASURED = "in tests with 2 to 15 % wrong labels, 57 to 100 % of such lines were wrong"
_COLUMNS = ("row", "accept", "label", "suggested_label", "prob_label", "prob_suggested", "text")
# The label column of a line, where the table has several.
_COLUMN = "column"
# With fewer rows the mean probability of a class says little, and it would be suggested everywhere.
_FEWEST_ROWS = 5
# By how much more probable the suggested class must be, the share of the rows that are listed, and the most that a
# person reviews. On seven public sets of 300 and 1,500 rows, 57 to 100 % of such lines were wrong where 2 to 15 % of
# the labels were; where none was, they are the 1 % at most.
_MARGIN = 0.95
_SHARE = 0.01
_MOST = 30
# Accuracy by which the model must beat always giving the most frequent class.
_CLEARLY = 0.1


@dataclass(frozen=True)
class Suspects:
    """Rows (n,) whose label may be wrong, the surest first, and the class (n,) that is suggested for each."""

    rows: npt.NDArray[np.int64]
    suggested: npt.NDArray[np.int64]


def find_suspects(probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> Suspects:
    """Find the rows that are counted off the diagonal of the confident joint, ranked by normalized margin.

    `probabilities` (rows, classes) are of models that were not trained on the row, `targets` (rows,) the given classes.
    Each class of five rows or more has a threshold: its mean probability over the rows with that label. A row counts
    for the most probable class that reaches its threshold (Northcutt et al., 2021, "Confident Learning", sections 3.1
    and 3.2), if that is more probable than its label.
    """
    self_confidence = probabilities[np.arange(len(targets)), targets]
    counts = np.bincount(targets, minlength=probabilities.shape[1])
    thresholds = np.bincount(targets, self_confidence, minlength=probabilities.shape[1]) / np.maximum(counts, 1)
    thresholds[counts < _FEWEST_ROWS] = np.inf
    is_candidate = (probabilities >= thresholds) & (probabilities > self_confidence[:, None])
    suggested = np.where(is_candidate, probabilities, -1.0).argmax(axis=1)
    rows = np.flatnonzero(is_candidate.any(axis=1))
    margin = self_confidence[rows] - probabilities[rows, suggested[rows]]
    rows = rows[np.argsort(margin, kind="stable")]
    return Suspects(rows, suggested[rows])


def choose_to_review(probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> Suspects:
    """The suspects that are worth a person's look: the surest ones, and none of a model that knows little."""
    found, rows = find_suspects(probabilities, targets), len(targets)
    accuracy = float((probabilities.argmax(axis=1) == targets).mean())
    is_clear = accuracy >= np.bincount(targets).max() / rows + _CLEARLY
    margin = probabilities[found.rows, found.suggested] - probabilities[found.rows, targets[found.rows]]
    count = min(int((margin >= _MARGIN).sum()), max(1, int(_SHARE * rows)), _MOST) if is_clear else 0
    return Suspects(found.rows[:count], found.suggested[:count])


@dataclass(frozen=True)
class ReviewedColumn:
    """A label column to be reviewed: its suspects among `rows` (n,) of a table, by their targets and probabilities."""

    name: str
    suspects: Suspects
    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]


def write_suspects(
    path: Path,
    table: Table,
    text_column: str,
    reviewed: Sequence[ReviewedColumn],
    *,
    several: bool = False,
    for_excel: bool = False,
) -> None:
    """Write the suspects of a table's label columns, by their place in the file, with its ID column if it has one.
    `accept` is empty: whoever reviews a line writes x there if its suggestion is right.

    Labels are written as most rows of a class have them, not as the class is named. Where the table has `several` label
    columns, each line names its own.
    """
    names = [one.name for one in reviewed]
    id_column = find_id_column(table)
    ids = [] if id_column is None or id_column in (*_COLUMNS, _COLUMN, text_column, *names) else [id_column]
    header = [_COLUMNS[0], *ids, _COLUMNS[1], *([_COLUMN] if several else []), *_COLUMNS[2:]]
    with atomic_write(path) as file:
        stream = CSVStream(file, header, for_excel=for_excel)
        for one in reviewed:
            labels = table.take(one.name, one.rows)
            cells = {name: table.take(name, one.rows) for name in (*ids, text_column)}
            ways: dict[int, Counter[str]] = {}
            for target, label in zip(one.targets.tolist(), labels, strict=True):
                ways.setdefault(target, Counter())[label] += 1
            for row, suggested in zip(one.suspects.rows.tolist(), one.suspects.suggested.tolist(), strict=True):
                which = [str(table.places[one.rows[row]]), *(cells[name][row] for name in ids), ""]
                which += [one.name] if several else []
                numbers = (one.probabilities[row, one.targets[row]], one.probabilities[row, suggested])
                label = ways[suggested].most_common(1)[0][0]
                stream.write([[*which, labels[row], label, *(f"{p:.4f}" for p in numbers), cells[text_column][row]]])


def apply_suspects(path: Path, table: Table, columns: tuple[str, str]) -> list[str]:
    """The labels of all rows after the accepted changes of suspects.csv.

    `columns` name the text and the label. Raises InputError where no line is accepted, where the file does not
    fit the table, and for a label that no row of the table has.
    """
    suspects = read_table(str(path), "--apply", ReadOptions(header=True))
    missing = [name for name in _COLUMNS[:4] if name not in suspects.columns]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; expected {FILE} of a run with --folds.")
    accepted = [number for number, cell in enumerate(suspects.column(_COLUMNS[1])) if parse_mark(cell)]
    of_column = [columns[1]] * len(suspects)
    if _COLUMN in suspects.columns:
        of_column = list(map(unescape_formula, suspects.column(_COLUMN)))
    if not accepted:
        raise InputError(
            f"{path}: no line is accepted. Write x into the column {_COLUMNS[1]!r} of each line whose suggested_label "
            "is right."
        )
    shown = suspects.column(_COLUMNS[-1]) if _COLUMNS[-1] in suspects.columns else [""] * len(suspects)
    texts, labels = table.column(columns[0]), table.column(columns[1])
    classes, places = set(labels), {str(place): row for row, place in enumerate(table.places)}
    cells = [suspects.column(name) for name in (_COLUMNS[0], *_COLUMNS[2:4])]
    for number in (number for number in accepted if of_column[number] == columns[1]):
        row, before, after = (unescape_formula(column[number]) for column in cells)
        place, where = places.get(row, -1), suspects.describe_rows([number])
        label, text = (labels[place], normalize_text(texts[place])) if place >= 0 else ("", "")
        # Spreadsheets escape and cut the text, which helps to find a table that has changed.
        ways = {normalize_text(shown[number]), normalize_text(unescape_formula(shown[number]))}
        if place < 0 or label not in (before, after) or not any(map(text.startswith, ways)):
            raise InputError(
                f"{where}: {table.path} has no such text with the label {before!r} at {table.unit} {row}; the table "
                "has changed since the run."
            )
        if after.strip() and after not in classes:
            raise InputError(
                f"{where}: suggested_label {after!r} is not a label of {table.path}; expected one of "
                f"{list_some(sorted(classes))}. Edit the table itself for a new one."
            )
        labels[place] = after if after.strip() else label
    return labels


def read_suspects(folder: Path, most: int, column: str | None = None) -> tuple[list[dict[str, str]], int]:
    """The first suspects of a run's folder, and how many there are; none without the file.

    With a `column` they are those of that one of several label columns.

    `id` is the cell of the ID column, "" without one. People review the file in a spreadsheet, which may save it with
    semicolons: it is read as any table.
    """
    if not (folder / FILE).exists():
        return [], 0
    table = read_table(str(folder / FILE), options=ReadOptions(header=True))
    if not set(_COLUMNS) <= set(table.columns):
        return [], 0
    if column is not None and _COLUMN in table.columns:
        is_own = np.array([unescape_formula(cell) == column for cell in table.column(_COLUMN)], dtype=bool)
        table = table.with_arrow(table.arrow.filter(pyarrow.array(is_own)))
    first = np.arange(min(most, len(table)))
    ids = next((name for name in table.columns if name not in (*_COLUMNS, _COLUMN)), None)
    columns = {name: table.take(name, first) for name in _COLUMNS}
    columns["id"] = table.take(ids, first) if ids else [""] * len(first)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], len(table)

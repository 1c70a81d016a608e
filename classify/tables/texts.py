"""The columns of a row's text, or of its two texts, and the columns computed from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from classify.errors import InputError
from classify.tables.profile import parse_mark
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY

# Joins the two texts of a pair where they count as one text: duplicates, language, the baseline.
PAIR_SEPARATOR = "\n"


@dataclass(frozen=True)
class TextColumns:
    """`fields` are joined by `delimiter` to a row's first text; `pair` is the column of the second one, if any."""

    fields: tuple[str, ...]
    pair: str | None = None
    delimiter: str = " "

    @property
    def named(self) -> tuple[str, ...]:
        return self.fields if self.pair is None else (*self.fields, self.pair)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the tokenizer reads: one, or two for pairs."""
        first = " + ".join(self.fields)
        return (first,) if self.pair is None else (first, self.pair)

    @property
    def whole(self) -> str:
        """The column that holds all of a row's text."""
        return self.inputs[0] if self.pair is None else " + ".join(self.named)

    def derive(self, table: Table) -> Table:
        """Add the columns that are not in the file. Raises InputError where one text of a pair is empty."""
        if len(self.fields) > 1:
            table = _join(table, self.inputs[0], self.fields, self.delimiter)
        if self.pair is None:
            return table
        first, second = (table.text_hashes(name) == EMPTY for name in self.inputs)
        for name, rows in ((self.inputs[0], first & ~second), (self.pair, second & ~first)):
            if rows.any():
                where = table.describe_rows(np.flatnonzero(rows).tolist())
                raise InputError(
                    f"{where}: column {name!r} is empty; expected two texts in each row. Fill it in, or leave such "
                    "rows out."
                )
        return _join(table, self.whole, self.inputs, PAIR_SEPARATOR)

    def as_settings(self) -> dict[str, Any]:
        """The entries of classify.json; `text_column` alone where a row has one text of one column."""
        settings: dict[str, Any] = {"text_column": ",".join(self.fields)}
        if len(self.fields) > 1:
            settings |= {"text_fields": list(self.fields), "text_column_delimiter": self.delimiter}
        return settings if self.pair is None else {**settings, "text_pair_column": self.pair}


def _join(table: Table, name: str, sources: Sequence[str], delimiter: str) -> Table:
    """Add a column of the joined texts. Raises InputError where the table has a column of that name."""
    if table.has_column(name):
        raise InputError(f"{table.path}: column {name!r} has the name of the joined text columns; rename that column.")
    cells = zip(*map(table.column, sources), strict=True)
    return table.with_derived(name, (delimiter.join(filter(None, texts)) for texts in cells))


def join_labels(table: Table, names: Sequence[str], name: str) -> Table:
    """Add a column with the names of those columns that hold 1 in a row, as a JSON list.

    Where the columns hold a 1, but no 0, an empty cell is one, and the table notes it. Raises InputError for other
    cells.
    """
    encoded = [table.dictionary_encode(source) for source in names]
    empty_is_no = not any(parse_mark(value) is False for values, _ in encoded for value in values)
    marks = []
    for source, (values, numbers) in zip(names, encoded, strict=True):
        parsed = [False if empty_is_no and not value.strip() else parse_mark(value) for value in values]
        wrong = [place for place, mark in enumerate(parsed) if mark is None]
        if wrong:
            where = table.describe_rows(np.flatnonzero(np.isin(numbers, wrong)).tolist())
            raise InputError(
                f"{where}: column {source!r} holds {values[wrong[0]]!r}; expected 0 or 1, or no and yes, as in "
                "each of several label columns."
            )
        marks.append(np.array(parsed, dtype=bool)[numbers])
    of_row = np.stack(marks, axis=1) if marks else np.zeros((len(table), 0), dtype=bool)
    sets, number = np.unique(of_row, axis=0, return_inverse=True)
    cells = [
        json.dumps([label for label, has in zip(names, row, strict=True) if has], ensure_ascii=False)
        for row in sets.tolist()
    ]
    if empty_is_no and not of_row.all():
        table = table.add_note(
            f"no 0 or 'no' in {', '.join(names)}: an empty cell means that a text does not have the label"
        )
    return table.with_derived(name, (cells[place] for place in number.ravel().tolist()))

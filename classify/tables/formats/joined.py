"""Drop traces of files that were joined, as by `cat`: byte order marks and headers inside a table.

Note a header that occurs inside the table as a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from classify.errors import InputError, list_some
from classify.tables.names import is_usual
from classify.tables.table import Table

_MARK = "\ufeff"
_SHOWN = 5


def drop_traces(table: Table) -> Table:
    """Drop byte order marks before a row, and rows that repeat the header, in any case.

    Raises InputError where no other row is left.
    """
    import pyarrow
    import pyarrow.compute as pc

    arrow = table.arrow
    if not arrow.num_columns or not arrow.num_rows:
        return table
    names = arrow.column_names
    # Comparing with a Python string would have pyarrow import pandas.
    marked = pc.starts_with(arrow[names[0]], _MARK)
    if pc.any(marked).as_py():
        arrow = arrow.set_column(0, names[0], pc.utf8_ltrim(arrow[names[0]], _MARK))
        table = replace(table, arrow=arrow, form=f"{table.form}; byte order marks between rows left out")
    if not table.has_names or len(names) < 2 or r"\E" in names[0]:  # which would end the quotation below
        return table
    matches = pc.match_substring_regex(arrow[names[0]], rf"^\s*\Q{names[0]}\E\s*$", ignore_case=True)
    likely = np.from_dlpack(pc.indices_nonzero(matches)).tolist()
    header = [name.lower() for name in names]
    dropped = [row for row in likely if [arrow[name][row].as_py().strip().lower() for name in names] == header]
    if not dropped:
        return table
    kept = np.delete(np.arange(len(arrow)), dropped)
    if not len(kept):
        raise InputError(f"{table.path}: there is a header but no row below it. Expected one row per text.")
    lines = list_some(list(map(str, table.places(dropped[:_SHOWN]))), len(dropped))
    unit = f"{table.unit or 'line'}{'s' * (len(dropped) > 1)}"
    before = table
    mask = np.ones(len(arrow), dtype=bool)
    mask[dropped] = False
    return replace(
        table,
        arrow=arrow.filter(pyarrow.array(mask)),  # `take` would join the chunks of a column, which hold 2 GiB at most
        form=f"{table.form}; rows that repeat the header dropped ({unit} {lines})",
        places=lambda rows: before.places([int(kept[row]) for row in rows]),
    )


def note_header(table: Table, related: Sequence[str]) -> Table:
    """Note a name that is also a value of its column, unless a name of the header is usual or of a `related` table.

    The header was detected on the first rows: below these, a class of the first row may come again.
    """
    import pyarrow.compute as pc

    names = table.columns
    numbered = names == list(map(str, range(len(names))))
    if not table.has_names or numbered or any(is_usual(name, related) for name in names):
        return table
    for name in names:
        column = table.arrow[name]
        # Comparing with a Python string would have pyarrow import pandas.
        count = column.filter(pc.starts_with(column, name)).to_pylist().count(name)
        if count:
            note = (
                f"the first row is read as column names, and {name!r} is the value of {count} row{'s' * (count > 1)} "
                "below it, too; if it is data, add --no-header"
            )
            return replace(table, notes=(*table.notes, note))
    return table

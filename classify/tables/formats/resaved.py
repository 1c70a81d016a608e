"""Repair a CSV that a spreadsheet opened with another delimiter and saved again: its lines became cells.

The spreadsheet put quotes around cells that hold quotes, doubled these, and wrote delimiters after each cell. A line
that ends a field over several lines may begin with a quote. The spreadsheet took that for the start of a quoted cell,
up to the next quote, and both quotes were lost.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from classify.tables.dialect import Dialect, parse_rows

# A row that is still open after these lines lost a quote for good.
_MOST_LINES = 100


def original_text(cells: Sequence[str], dialect: Dialect) -> str:
    """Return the text that the cells once were, in its first dialect."""
    widths = _widths(cells[0], dialect)
    if len(widths) != 1:
        return "\n".join(cells)
    quote = dialect.quote or '"'
    text = [cells[0]]
    row: list[str] = []  # the lines of one that has begun, and does not end yet
    is_open = False
    for number, cell in enumerate(cells[1:], start=1):
        if "\n" in cell:
            below = cells[number + 1] if number + 1 < len(cells) else ""
            begun = quote + below.partition("\n")[0] if "\n" in below else below
            ways = _with_quotes(cell, dialect.delimiter, quote)
            before = "".join(f"{line}\n" for line in row)
            cell = next((way for way in ways if _is_right(before + way, begun, widths, dialect)), cell)
        row.append(cell)
        is_open ^= cell.count(quote) % 2 == 1
        if not is_open or len(row) > _MOST_LINES:
            text += row
            row, is_open = [], False
    return "\n".join([*text, *row])


def _with_quotes(cell: str, delimiter: str, quote: str) -> Iterator[str]:
    """Yield each way to put the two quotes back: one at the beginning, one that opens a field of the last line."""
    start = cell.rindex("\n")
    end = cell.find(quote, start)
    for place in range(start, len(cell) if end < 0 else end):
        if cell[place] == delimiter:
            yield f"{quote}{cell[: place + 1]}{quote}{cell[place + 1 :]}"


def _is_right(text: str, below: str, widths: set[int], dialect: Dialect) -> bool:
    """Return whether all rows are as wide as the header, an open last one with the line below it."""
    unfinished = text.count(dialect.quote or '"') % 2
    return _widths(f"{text}\n{below}" if unfinished else text, dialect) == widths


def _widths(text: str, dialect: Dialect) -> set[int]:
    return {len(row) for _, row in parse_rows(io.StringIO(text, newline=""), dialect, strict=False)}

"""A CSV that a spreadsheet opened with another delimiter than its own, and saved again: its lines became cells.

The spreadsheet put quotes around cells that hold quotes, doubled these, and wrote delimiters behind each cell. Where a
line began with a quote, the end of a field that spans lines, it took what follows, up to the next quote, for a quoted
cell over several lines, and both quotes were lost.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from classify.data.dialect import Dialect, rows_of


def original_text(cells: Sequence[str], dialect: Dialect) -> str:
    """The text that the cells once were, in the dialect that it was written in."""
    (width,) = _widths(cells[0], dialect)
    quote = dialect.quote or '"'
    text = [cells[0]]
    row = ""  # has begun, and does not end yet
    for number, cell in enumerate(cells[1:], start=1):
        if "\n" in cell:
            below = cells[number + 1] if number + 1 < len(cells) else ""
            begun = quote + below.partition("\n")[0] if "\n" in below else below
            ways = _with_quotes(cell, dialect.delimiter, quote)
            cell = next((way for way in ways if _is_right(row + way, begun, width, dialect)), cell)
        row += cell + "\n"
        if row.count(quote) % 2 == 0:
            text.append(row.removesuffix("\n"))
            row = ""
    return "\n".join([*text, row])


def _with_quotes(cell: str, delimiter: str, quote: str) -> Iterator[str]:
    """Each way to put the two quotes back: one at the beginning, one that opens a field of the last line."""
    start = cell.rindex("\n")
    end = cell.find(quote, start)
    for place in range(start, len(cell) if end < 0 else end):
        if cell[place] == delimiter:
            yield f"{quote}{cell[: place + 1]}{quote}{cell[place + 1 :]}"


def _is_right(text: str, below: str, width: int, dialect: Dialect) -> bool:
    """Whether all rows are as wide as the header, the last one with the line below it where it does not end before."""
    unfinished = text.count(dialect.quote or '"') % 2
    return _widths(f"{text}\n{below}" if unfinished else text, dialect) == {width}


def _widths(text: str, dialect: Dialect) -> set[int]:
    return {len(row) for _, row in rows_of(io.StringIO(text, newline=""), dialect, strict=False)}

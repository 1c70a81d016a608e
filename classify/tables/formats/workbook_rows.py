"""Print a sheet of the workbook on standard input as JSON: a line of sheet names, then a line per row.

`excel.py` runs this file in a process whose memory is limited. The library holds a value for every cell between the
first and the last one, and a Rust library that gets no memory ends its process. So nothing of classify is imported.

    python workbook_rows.py SHEET MOST_BYTES      (SHEET "" is the first one that is visible)
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import python_calamine


def limit_memory(most_bytes: int) -> None:
    """Limit the memory of the process, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def print_sheet(sheet: str) -> None:
    """Print {"sheets", "visible", "sheet"}, and [number, cells, kinds] of each row that holds anything.

    {"error"} if damaged.
    """
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(sys.stdin.buffer.read()))
        tables = [entry for entry in book.sheets_metadata if entry.typ is python_calamine.SheetTypeEnum.WorkSheet]
        visible = [entry.name for entry in tables if entry.visible is python_calamine.SheetVisibleEnum.Visible]
        names = [entry.name for entry in tables]
        sheet = sheet or next(iter(visible or names), "")
        print(json.dumps({"sheets": names, "visible": visible, "sheet": sheet}))
        if sheet in names:
            for number, (row, kinds) in enumerate(iterate_rows(book.get_sheet_by_name(sheet)), start=1):
                while row and not row[-1].strip():
                    row.pop()
                if row:
                    print(json.dumps([number, row, kinds[: len(row)]]))
    except python_calamine.CalamineError as error:
        print(json.dumps({"error": str(error)}))


def iterate_rows(sheet: python_calamine.CalamineSheet) -> Iterator[tuple[list[str], str]]:
    """Yield all rows, and a letter per cell for its kind (see `find_kind`).

    Cells that are merged downwards have their value in each row that holds anything else.
    """
    left = sheet.start[1] if sheet.start else 0  # the library leaves out empty columns before the first cell
    merged: dict[int, list[tuple[int, int]]] = {}
    for (top, column), (bottom, _) in sheet.merged_cell_ranges or []:
        if bottom > top:
            merged.setdefault(top, []).append((column, bottom))
    below: dict[int, tuple[int, str]] = {}
    for number, cells in enumerate(sheet.iter_rows()):
        row = [""] * left + [write_cell(cell) for cell in cells]
        kinds = " " * left + "".join(map(find_kind, cells))
        if below and any(row):
            for column, (bottom, value) in below.items():
                if number <= bottom and not row[column]:
                    row[column] = value
        for column, bottom in merged.get(number, []):
            if column < len(row):
                below[column] = bottom, row[column]
        yield row, kinds


def find_kind(cell: Any) -> str:
    """Return the kind of a cell: i(nteger), n(umber), b(oolean), d(ate), t(ime), s(tring), or a space where empty."""
    if isinstance(cell, bool):
        return "b"
    if isinstance(cell, int | float):
        return "i" if isinstance(cell, int) or cell.is_integer() else "n"
    if isinstance(cell, datetime.datetime):
        return "t"
    if isinstance(cell, datetime.date):
        return "d"
    return "s" if str(cell).strip() else " "


def write_cell(cell: Any) -> str:
    """Return a cell as text: whole numbers without a fraction, since Excel keeps no other kind; ISO 8601 dates."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell)


if __name__ == "__main__":
    limit_memory(int(sys.argv[2]))
    print_sheet(sys.argv[1])

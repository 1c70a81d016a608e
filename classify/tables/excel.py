"""Workbooks: the first visible sheet with a header over texts, or the one that --sheet names."""

from __future__ import annotations

import datetime
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import python_calamine

from classify.errors import InputError
from classify.tables.csv_file import default_names, has_header, name_columns
from classify.tables.profile import SAMPLE, Profile
from classify.tables.source import Question, QuestionError, ReadOptions, Source
from classify.tables.table import Table, to_arrow

SUFFIXES = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")
_OLD_OFFICE = b"\xd0\xcf\x11\xe0"


def claims(source: Source) -> bool:
    """Whether a file is a workbook by its content; programs export text under such names."""
    return source.is_file and (source.is_office or source.head.startswith(_OLD_OFFICE))


@dataclass(frozen=True)
class _Sheet:
    """The rows of a sheet from the first that holds anything, all of one width, and the number of that row."""

    name: str
    rows: list[list[str]]
    first: int

    @property
    def is_table(self) -> bool:
        """Whether there are two columns below the first row, and one of them reads like texts."""
        cells = zip(*self.rows[1 : SAMPLE + 1], strict=True)
        columns = [Profile("", 0, list(filter(None, map(str.strip, column)))) for column in cells]
        return sum(bool(column.values) for column in columns) > 1 and any(column.reads_like_text for column in columns)


def read(source: Source, options: ReadOptions) -> Table:
    """Read one sheet. Raises InputError where it holds no table, QuestionError where several sheets may be meant."""
    try:
        with source.open() as stream:
            book = python_calamine.load_workbook(io.BytesIO(stream.read()))
        sheet = _choose(source, book, options)
    except (python_calamine.CalamineError, ValueError, MemoryError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{source.path}: not a readable workbook ({reason}); save it as CSV UTF-8.") from None
    if len(sheet.rows) < 2:
        raise InputError(f"{source.path}, sheet {sheet.name!r}: expected a row with column names, and rows below it.")
    has_names = has_header(sheet.rows[: SAMPLE + 1], options, source.path)
    body = sheet.rows[1:] if has_names else sheet.rows
    kept = [number for number, row in enumerate(body) if any(row)]
    columns = [to_arrow(body[number][place] for number in kept) for place in range(len(sheet.rows[0]))]
    names = sheet.rows[0] if has_names else default_names(len(columns), options)
    others = ", ".join(name for name in book.sheet_names if name != sheet.name)
    form = f"Excel, sheet {sheet.name!r}{f' (others: {others})' if others else ''}"
    return Table(
        source.path,
        source.sha256,
        name_columns(names, columns),
        form if has_names else f"{form}, without a header",
        np.array(kept, dtype=np.int64) + sheet.first + has_names,
        "row",
        flag="--sheet",
        has_names=has_names,
        reading={"sheet": sheet.name, "header": has_names, "skip_lines": options.skip_lines or 0},
        original=(lambda: io.BytesIO(source.open().read())) if source.suffix in (".xlsx", ".xlsm") else None,
    )


def _choose(source: Source, book: Any, options: ReadOptions) -> _Sheet:
    names: list[str] = book.sheet_names
    wanted = options.sheet if options.sheet is not None else options.like.get("sheet")
    if wanted in names:
        return _load(book, wanted, options)
    if options.sheet is not None:
        raise InputError(f"--sheet {wanted}: {source.path} has no such sheet; it has: {', '.join(names)}.")
    visible = [
        sheet.name
        for sheet in book.sheets_metadata
        if sheet.visible == python_calamine.SheetVisibleEnum.Visible
        and sheet.typ == python_calamine.SheetTypeEnum.WorkSheet
    ]
    if not visible:
        raise InputError(f"{source.path}: the workbook has no worksheet.")
    sheets = [_load(book, name, options) for name in visible]
    tables = [sheet for sheet in sheets if sheet.is_table]
    alike = [sheet for sheet in tables if sheet.rows[0] == tables[0].rows[0]]
    if len(alike) > 1:
        shown = tuple(f"{sheet.name} ({len(sheet.rows) - 1} rows)" for sheet in alike)
        raise QuestionError(source.path, [Question("which sheet", shown, (f"--sheet {alike[0].name!r}",))])
    return (tables or sheets)[0]


def _load(book: Any, name: str, options: ReadOptions) -> _Sheet:
    sheet = book.get_sheet_by_name(name)
    rows = [list(map(_as_text, row)) for row in sheet.to_python()]
    above = sheet.start[0] if sheet.start else 0
    skipped = max(0, (options.skip_lines or 0) - above)
    first = next((number for number, row in enumerate(rows) if number >= skipped and any(row)), 0)
    return _Sheet(name, rows[first:], above + first + 1)


def _as_text(cell: Any) -> str:
    """A cell as text: whole numbers without a fraction, days and times as ISO 8601."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ")
    return cell.isoformat() if isinstance(cell, datetime.date | datetime.time) else str(cell)

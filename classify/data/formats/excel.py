"""Excel's workbooks: the first sheet, or the one that is named."""

from __future__ import annotations

import datetime
from typing import Any

from classify.data.formats.base import Content, Format, ReadOptions, as_text, unique_names
from classify.data.source import Source
from classify.errors import InputError


class Excel(Format):
    """A sheet with a header in its first row that holds anything."""

    name = "Excel"
    suffixes = (".xlsx", ".xls", ".xlsb", ".ods")

    def recognises(self, start: bytes) -> bool:
        """A zip archive, or the container of older Office files."""
        return start.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0"))

    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows of the sheet. Raises InputError where there is no such sheet, or no header in it."""
        import pyarrow

        try:
            import python_calamine
        except ModuleNotFoundError:
            raise InputError(
                f"{source.path}: workbooks are read by the package python-calamine, which is not installed; pip "
                "install python-calamine, or save the sheet as CSV UTF-8."
            ) from None

        try:
            with source.open() as stream:
                book = python_calamine.CalamineWorkbook.from_filelike(stream)
                sheet = self._sheet(source, book.sheet_names, options.sheet)
                rows = book.get_sheet_by_name(sheet).to_python(skip_empty_area=False)
        except python_calamine.CalamineError as error:
            raise InputError(f"{source.path}: not a readable workbook ({error}).") from None
        filled = [(number, row) for number, row in enumerate(rows, start=1) if any(value != "" for value in row)]
        if len(filled) < 2:
            raise InputError(f"{source.path}, sheet {sheet!r}: expected a row with column names, and rows below it.")
        (_, header), *body = filled
        width = max(place for place, value in enumerate(header, start=1) if value != "")
        names, again = unique_names([_as_text(value) for value in header[:width]])
        columns = {
            name: pyarrow.array([_as_text(row[place]) for _, row in body], pyarrow.string())
            for place, name in enumerate(names)
        }
        others = f" (others: {', '.join(name for name in book.sheet_names if name != sheet)})"
        form = f"Excel, sheet {sheet!r}{others if len(book.sheet_names) > 1 else ''}{again}"
        places = [number for number, _ in body]
        return Content(pyarrow.table(columns), form, "--sheet", lambda rows: [places[row] for row in rows], "row")

    def _sheet(self, source: Source, names: list[str], wanted: str | None) -> str:
        if wanted is not None and wanted not in names:
            raise InputError(f"--sheet {wanted}: {source.path} has no such sheet; it has: {', '.join(names)}.")
        if not names:
            raise InputError(f"{source.path}: the workbook has no sheet.")
        return wanted or names[0]


def _as_text(value: Any) -> str:
    """A cell: whole numbers without a fraction, since Excel keeps no other kind; dates as ISO 8601 has them."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return as_text(value)

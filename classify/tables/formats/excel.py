"""Read workbooks: the first visible sheet, or the one that --sheet names."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from classify.errors import InputError
from classify.tables import rules
from classify.tables.decide import Answer, Doubt, DoubtError
from classify.tables.dialect import choose_header
from classify.tables.formats.base import FileFormat, ReadOptions, deduplicate_names, default_names
from classify.tables.profile import ColumnProfile
from classify.tables.source import Source
from classify.tables.table import Kind, Table

_READER = Path(__file__).with_name("workbook_rows.py")
# Memory limit of the reading process: a constant, plus a multiple of the file's size.
_MOST_BYTES, _MOST_GROWTH = 256 << 20, 64
_SAMPLE_ROWS = 2000
# Further sheets whose headers are compared with that of the first.
_LOOKED_AT = 10
# Kinds of columns, by the letters of their cells; the first that fits.
_KINDS: dict[str, Kind] = {"i": "integer", "in": "number", "b": "boolean", "d": "date", "dt": "time"}


class Excel(FileFormat):
    """A sheet of rows, below a header or not."""

    suffixes = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")
    takes = frozenset({"sheet", "header", "skip_lines"})
    is_text = False

    def matches(self, start: bytes) -> bool:
        """Look for a zip archive, or the container of older Office files."""
        return start.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0"))

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Read the sheet that is named, else the first that holds a table of texts. Raises InputError."""
        sheet = _read_sheet(source, options.sheet)
        if options.sheet is None and sheet.others:
            if _holds_texts(sheet):
                _refuse_alike(source, sheet)
            else:
                sheet = _choose_sheet(source, sheet)
        return _as_table(source, sheet, options)


def _choose_sheet(source: Source, first: _Sheet) -> _Sheet:
    """Return the only sheet that holds texts, else the first. Raises DoubtError where several do."""
    others = [_read_sheet(source, name) for name in first.others]
    fitting = [sheet for sheet in others if _holds_texts(sheet)]
    if len(fitting) > 1:
        shown = tuple(f"{sheet.name} ({len(sheet.rows)} rows)" for sheet in fitting)
        raise DoubtError(source.path, [Doubt("the sheet", shown, f"--sheet {fitting[0].name!r}")])
    return fitting[0] if fitting else first


def _refuse_alike(source: Source, first: _Sheet) -> None:
    """Raise DoubtError where further visible sheets hold texts below the same header, such as one sheet a month."""
    alike = []
    for name in [name for name in first.visible if name != first.name][:_LOOKED_AT]:
        with contextlib.suppress(InputError):  # it need not be read
            sheet = _read_sheet(source, name)
            if _holds_texts(sheet) and _read_header(sheet) == _read_header(first):
                alike.append(name)
    if alike:
        doubt = Doubt("the sheet", (first.name, *alike), f"--sheet {first.name!r}")
        raise DoubtError(source.path, [doubt], "They have the same columns; to read all, copy their rows into one.")


def _read_header(sheet: _Sheet) -> list[str]:
    return [cell.strip() for cell in sheet.rows[_count_rows_above(sheet.rows, ())]]


def _holds_texts(sheet: _Sheet) -> bool:
    """Return whether a sheet has a column that reads like texts, and one whose values recur or that is numbers."""
    rows = sheet.rows[:_SAMPLE_ROWS]
    columns = [ColumnProfile("", len(rows), list(filter(None, cells))) for cells in itertools.zip_longest(*rows)]
    texts = [column for column in columns if len(column.values) > 1 and rules.reads_like_text(column)]
    others = [column for column in columns if column not in texts]
    return bool(texts) and any(rules.recur_twice(column) or rules.is_numeric(column) for column in others)


def _as_table(source: Source, sheet: _Sheet, options: ReadOptions) -> Table:
    """Return the rows of a sheet below its header. Raises InputError where there is none."""
    import pyarrow

    above = options.skip_lines if options.skip_lines is not None else _count_rows_above(sheet.rows, options.columns)
    sample = sheet.rows[above : above + _SAMPLE_ROWS] or [[]]
    header = int(options.header or 0)
    if options.header is None:
        answer = choose_header(sample, options.columns)
        if not isinstance(answer, Answer):
            raise DoubtError(source.path, [answer])
        header = answer.value
    body, places = sheet.rows[above + header :], sheet.numbers[above + header :]
    if not body:
        raise InputError(f"{source.path}, {sheet.description}: expected a row with column names, and rows below it.")
    if header:
        first = [value.strip() for value in sheet.rows[above]]
        used = sorted({place for row in [first, *body] for place, value in enumerate(row) if value})
        names = [(first[place] if place < len(first) else "") or f"unnamed_{place + 1}" for place in used]
    else:
        used = list(range(max(map(len, body))))
        names = default_names(len(used), options)
    names, again = deduplicate_names(names)
    columns = {
        name: pyarrow.array([row[place] if place < len(row) else "" for row in body], pyarrow.string())
        for name, place in zip(names, used, strict=True)
    }
    form = f"Excel, {sheet.description}{'' if header else ', without a header'}{again}"
    if above:
        form += f"; rows above row {sheet.numbers[above]} left out"
    return Table(
        source.path,
        source.sha256,
        pyarrow.table(columns),
        form,
        lambda rows: [places[row] for row in rows],
        "row",
        flag="--sheet",
        has_names=header > 0,
        hint=sheet.hint if options.sheet is None else "",
        reading={"sheet": sheet.name, "header": header > 0, "skip_lines": above},
        kinds=_find_kinds(sheet.kinds[above + header :], dict(zip(names, used, strict=True))),
    )


def _find_kinds(rows: Sequence[str], places: Mapping[str, int]) -> dict[str, Kind]:
    """Return the kinds of the columns, by their places in the rows, of which no cell is text."""
    found: dict[str, Kind] = {}
    for name, place in places.items():
        letters = {row[place] for row in rows if place < len(row)} - {" "}
        kind = next((kind for allowed, kind in _KINDS.items() if letters <= set(allowed)), None)
        if letters and kind is not None:
            found[name] = kind
    return found


@dataclass(frozen=True)
class _Sheet:
    """A sheet by its name, the names of all, and its rows that hold anything, with their numbers and cells' kinds."""

    name: str
    all_names: list[str]
    numbers: list[int] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    visible: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """Return its name, and those of the other sheets."""
        return f"sheet {self.name!r}" + (f" (others: {', '.join(self.others)})" if self.others else "")

    @property
    def hint(self) -> str:
        """Return a hint in case this sheet does not hold the table."""
        others = ", ".join(self.others)
        return f"Only sheet {self.name!r} was read; --sheet reads another: {others}." if others else ""

    @property
    def others(self) -> list[str]:
        """Return the names of the other sheets."""
        return [name for name in self.all_names if name != self.name]


def _read_sheet(source: Source, requested: str | None) -> _Sheet:
    """Return the sheet that is requested, else the first, read by another process. Raises InputError."""
    size = source.file.stat().st_size
    most = _MOST_BYTES + _MOST_GROWTH * size
    # -P: the modules beside the reader must not shadow Python's.
    command = [sys.executable, "-P", str(_READER), requested or "", str(most)]
    pipe = subprocess.PIPE
    sheet = _Sheet("", [])
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin, source.open() as stream:
            shutil.copyfileobj(stream, process.stdin)
        for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # it ended while it wrote this
            read = json.loads(line)
            if isinstance(read, list):
                sheet.numbers.append(read[0])
                sheet.rows.append(read[1])
                sheet.kinds.append(read[2])
            elif "error" in read:
                raise InputError(
                    f"{source.path}: not a readable workbook ({read['error']}); save it again, without a password."
                )
            else:
                sheet = _Sheet(read["sheet"], read["sheets"], visible=tuple(read["visible"]))
    if process.returncode:
        raise InputError(
            f"{source.path}: reading these {size} bytes takes more than {most >> 20} MiB of memory: a cell lies far "
            "from the others (Ctrl+End goes there), or the file is damaged; save the sheet as CSV UTF-8."
        )
    if sheet.name not in sheet.all_names:
        if requested is None:
            raise InputError(f"{source.path}: the workbook has no worksheet.")
        names = ", ".join(sheet.all_names)
        raise InputError(f"--sheet {requested}: {source.path} has no such sheet; it has: {names}.")
    return sheet


def _count_rows_above(rows: Sequence[Sequence[str]], related: Sequence[str]) -> int:
    """Return the number of rows, such as a title, above the header: they hold fewer cells than most rows do.

    If the row below them does not look like a header, the first row is a header with an empty name.
    """
    counts = [sum(bool(value.strip()) for value in row) for row in rows[:_SAMPLE_ROWS]]
    usual = max(Counter(counts).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    above = next((place for place, count in enumerate(counts) if count >= usual), 0)
    if any(rules.is_usual_header(value, related) for row in rows[:above] for value in row):
        return 0
    answer = choose_header(rows[above : above + _SAMPLE_ROWS], related) if above else None
    return above if isinstance(answer, Answer) and answer.value else 0

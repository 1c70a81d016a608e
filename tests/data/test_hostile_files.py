"""Files made to fill the memory are refused in a line, or read, with little of it."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.processes import run_python

MOST_MIB = 500
READ = """
import resource, sys
from classify.tables.formats.registry import read_table
from classify.errors import InputError
try:
    print(len(read_table(sys.argv[1])), "rows")
except InputError as error:
    print(error)
own = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(int(own.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
"""
SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
XML = f'<?xml version="1.0"?><worksheet xmlns="{SPREADSHEET}"><sheetData>'


def write_stray(row: int, column: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import openpyxl

        book = openpyxl.Workbook()
        book.active.append(["text", "label"])
        book.active.append(["a", "b"])
        book.active.cell(row, column, "c")
        book.save(path)

    return write


def write_sheet(xml: Callable[[], str], strings: str = "") -> Callable[[Path], None]:
    """A workbook with a sheet, or a text of its cells, in place of its own."""

    def write(path: Path) -> None:
        write_stray(3, 1)(path)
        with zipfile.ZipFile(path) as book:
            members = {name: book.read(name) for name in book.namelist()}
        members["xl/worksheets/sheet1.xml"] = (XML + xml() + "</sheetData></worksheet>").encode()
        if strings:
            shared = f'<sst xmlns="{SPREADSHEET}"><si><t>{strings}</t></si></sst>'
            relation = f'<Relationship Type="{OFFICE}/sharedStrings" Target="sharedStrings.xml" Id="rId9"/>'
            relations = "xl/_rels/workbook.xml.rels"
            end = b"</Relationships>"
            members["xl/sharedStrings.xml"] = shared.encode()
            members[relations] = members[relations].replace(end, relation.encode() + end)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
            for name, content in members.items():
                book.writestr(name, content)

    return write


def write_repeated_ods(path: Path) -> None:
    office = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
    table = "urn:oasis:names:tc:opendocument:xmlns:table:1.0"
    cell = '<table:table-cell table:number-columns-repeated="16384" office:value-type="float" office:value="1"/>'
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr("META-INF/manifest.xml", "<manifest/>")
        book.writestr(
            "content.xml",
            f'<office:document-content xmlns:office="{office}" xmlns:table="{table}"><office:body><office:spreadsheet>'
            f'<table:table table:name="a"><table:table-row table:number-rows-repeated="1000000">{cell}'
            "</table:table-row></table:table></office:spreadsheet></office:body></office:document-content>",
        )


def repeated(value: str, rows: int = 1 << 16) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0], pyarrow.int32()).take([0] * rows), [value])


def write_parquet(column: Callable[[], pyarrow.Array], times: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        batch = pyarrow.record_batch([column()], names=["text"])
        table = pyarrow.Table.from_batches([batch] * times)
        parquet.write_table(table, path, compression="zstd", store_schema=False, write_statistics=False)

    return write


def write_arrow(column: Callable[[], pyarrow.Array], times: int = 1) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        batch = pyarrow.record_batch([column()], names=["text"])
        with pyarrow.ipc.new_file(path, batch.schema) as file:
            for _ in range(times):
                file.write_batch(batch)

    return write


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b"\0" * (200 << 20))


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.size = 200 << 20
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))


FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a stray cell": ("a.xlsx", write_stray(1_000_000, 16_384), "a cell lies far from the others"),
    "the last cell": ("a.xlsx", write_stray(1_048_576, 16_384), "a cell lies far from the others"),
    "the last row": ("a.xlsx", write_stray(1_048_576, 1), "2 rows"),
    "empty cells": (
        "a.xlsx", write_sheet(lambda: f"<row>{'<c/>' * 10_000}</row>" * 1_200), "expected a row with column names",
    ),
    "one long text in all cells": (
        "a.xlsx", write_sheet(lambda: '<row><c t="s"><v>0</v></c></row>' * 10_000, "a" * 1_000_000), "MiB of memory",
    ),
    "a large sheet of nothing": ("a.xlsx", write_sheet(lambda: " " * (100 << 20)), "MiB or more"),
    "a cell that is repeated": ("a.ods", write_repeated_ods, "not a readable workbook"),
    "one text in all rows": ("a.parquet", write_parquet(lambda: repeated("a" * 60), 1_500), "MiB or more"),
    "few rows of it": ("a.parquet", write_parquet(lambda: repeated("a" * 900), 150), "MiB or more"),
    "one long text": ("a.parquet", write_parquet(lambda: repeated("a" * 900_000), 1), "MiB or more"),
    "lists of one long text": (
        "a.parquet",
        write_parquet(lambda: pyarrow.ListArray.from_arrays([0, 1 << 16], repeated("a" * 900_000)), 1),
        "MiB or more",
    ),
    "rows of nothing": ("a.arrow", write_arrow(lambda: pyarrow.nulls(1 << 30), 8), "MiB or more"),
    "one long text in Arrow": ("a.feather", write_arrow(lambda: repeated("a" * 900_000)), "MiB or more"),
    "a zip": ("a.zip", write_zip, "MiB or more"),
    "a tar": ("a.tar.gz", write_tar, "MiB or more"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_little_memory_is_taken(tmp_path: Path, name: str) -> None:
    file, write, outcome = FILES[name]
    path = tmp_path / file
    write(path)
    assert path.stat().st_size < 2 << 20
    result = run_python(tmp_path, "-c", READ, str(path))
    printed, most = result.stdout.splitlines()
    assert outcome in printed
    assert str(path) in printed or outcome.endswith("rows")
    assert int(most) < MOST_MIB
    assert result.stderr == ""

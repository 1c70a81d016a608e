"""Tables are written as their ending says, and read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.errors import InputError
from classify.tables.formats.registry import read_table
from classify.tables.writers import WRITERS, find_writer

COLUMNS = ["text", "label", "confidence"]
ROWS = [["=1+2", "a\tb", "0.25"], ['quo"te, and\nline', "ü 中文", "1"], ["+3", "", "0.5"]]
ENDINGS = [suffix for writer in WRITERS for suffix in writer.suffixes]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_reads_back(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    with find_writer(path.name, "--out")(COLUMNS, {"confidence"}).open(path) as writer:
        writer.write(ROWS[:1])
        writer.write(ROWS[1:])
    table = read_table(str(path))
    assert table.columns == COLUMNS
    assert table.column("text") == [row[0] for row in ROWS]
    assert table.column("label") == [row[1] for row in ROWS]
    assert [float(cell) for cell in table.column("confidence")] == [0.25, 1.0, 0.5]


def test_numbers_have_their_type_in_parquet_and_workbooks(tmp_path: Path) -> None:
    import openpyxl
    import pyarrow.parquet as pq

    for ending in (".parquet", ".xlsx"):
        path = tmp_path / f"out{ending}"
        with find_writer(path.name, "--out")(COLUMNS, {"confidence"}).open(path) as writer:
            writer.write([*ROWS, ["\x0bcontrol", "x" * 40_000, ""]])
    assert pq.read_table(tmp_path / "out.parquet").column("confidence").to_pylist() == [0.25, 1.0, 0.5, None]
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert [cell.value for cell in sheet["C"]] == ["confidence", 0.25, 1, 0.5, None]
    assert sheet["A2"].data_type == "s", "no cell is a formula"
    assert sheet["A5"].value == "control"
    assert len(sheet["B5"].value) == 32_767


@pytest.mark.parametrize("name", ["p.xls", "p.docx", "p.xml"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"ends in \.csv, \.tsv, \.jsonl, \.json, \.parquet, \.xlsx"):
        find_writer(name, "--out")

"""Tables are written as their ending says, and read back as they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from classify.errors import InputError
from classify.evaluation.predictions_file import write_predictions
from classify.tables.formats.registry import read_table
from classify.tables.writers import WRITERS, find_writer

COLUMNS = ["text", "label", "confidence"]
ROWS = [["=1+2", "a\tb", "0.25"], ['quo"te, and\nline', "ü 中文", "1"], ["+3", "", "0.5"]]
ENDINGS = [suffix for writer in WRITERS for suffix in writer.suffixes]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_reads_back(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    with find_writer(path.name, "--out")(COLUMNS, {"confidence": "number"}).open(path) as writer:
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
        with find_writer(path.name, "--out")(COLUMNS, {"confidence": "number"}).open(path) as writer:
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


def test_a_workbook_comes_back_as_it_was(tmp_path: Path) -> None:
    """Numbers, dates and booleans keep their types, texts that look like numbers stay texts, the sheet its name."""
    import datetime

    import openpyxl

    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "Tickets"
    rows = [
        ["id", "code", "text", "price", "open", "day", "at", "mixed"],
        [1, "007", "=a text", 1.5, True, datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12, 30), 3],
        [2, "008", "another text", 2, False, datetime.date(2024, 5, 2), None, "three"],
    ]
    for row in rows:
        book.active.append(row)
    book.active["C2"].data_type = "s"
    book.save(tmp_path / "in.xlsx")
    table = read_table(str(tmp_path / "in.xlsx"))
    fields = [["a", "0.5", "true"], ["b", "0.25", "false"]]
    added = ["predicted_label", "confidence", "accepted"]
    for name in ("out.xlsx", "out.parquet", "out.csv"):
        write_predictions(tmp_path / name, table, np.arange(2), added, fields)
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx")["Tickets"]
    day = datetime.datetime(2024, 5, 1)
    assert [cell.value for cell in sheet[2]] == [
        1, "007", "=a text", 1.5, True, day, datetime.datetime(2024, 5, 1, 12, 30), "3", "a", 0.5, True,
    ]  # fmt: skip
    assert [cell.value for cell in sheet[3]][-4:] == ["three", "b", 0.25, False]
    assert sheet["C2"].data_type == "s"
    assert sheet["A1"].font.bold
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:K3"
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("1,007,=a text,1.5,true,2024-05-01,")
    again = read_table(str(tmp_path / "out.parquet"))
    assert again.kinds == {
        "id": "integer", "price": "number", "open": "boolean", "day": "date", "at": "time", "confidence": "number",
        "accepted": "boolean",
    }  # fmt: skip
    assert again.column("day") == ["2024-05-01", "2024-05-02"]
    assert again.column("accepted") == ["true", "false"]


def test_what_a_sheet_cannot_hold(tmp_path: Path) -> None:
    """Its name has forbidden characters, or too many; it knows no day before 1900, and no infinite number."""
    import datetime
    import json

    import openpyxl
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"text": ["a", "b"], "day": [datetime.date(1850, 1, 1), None], "n": [float("inf"), 1.5]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    table = read_table(str(tmp_path / "in.parquet"))
    table = dataclasses.replace(table, reading={"sheet": "Q1/Q2 [new] and a very long name of a sheet"})
    for name in ("out.xlsx", "out.json"):
        write_predictions(tmp_path / name, table, np.arange(2), ["confidence"], [["0.5"], ["1"]])
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert book.sheetnames == ["Q1_Q2 _new_ and a very long nam"]
    assert [cell.value for cell in book.worksheets[0][2]] == ["a", "1850-01-01", "inf", 0.5]
    rows = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert rows[0] == {"text": "a", "day": "1850-01-01", "n": "inf", "confidence": 0.5}


def test_a_number_that_would_change_stays_a_text(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"], "id": [2**60, 1], "n": [1, None]}), tmp_path / "in.parquet")
    table = read_table(str(tmp_path / "in.parquet"))
    write_predictions(tmp_path / "out.xlsx", table, np.arange(2), ["confidence"], [["0.5"], ["1"]])
    assert read_table(str(tmp_path / "out.xlsx")).column("id") == [str(2**60), "1"]
    assert read_table(str(tmp_path / "out.xlsx")).column("n") == ["1", ""]

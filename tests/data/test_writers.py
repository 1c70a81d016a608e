"""Predictions are columns added to the table as it came, in four formats, and read back as they were."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from classify.errors import InputError
from classify.tables.read import read_table
from classify.tables.table import Table
from classify.tables.writers import WRITERS, Added, check_size, find_writer, is_formula, write_csv

NAMES = ["predicted_label", "confidence", "accepted"]
CELLS = [["a", "0.5", "true"], ["=b", "0.25", "false"]]


def write(path: Path, table: Table, names: list[str] = NAMES, cells: list[list[str]] = CELLS) -> None:
    added = Added(names, cells, {"confidence": float, "accepted": bool})
    find_writer(path.name)(path, table, np.arange(len(table)), added)


@pytest.mark.parametrize("ending", WRITERS)
def test_what_is_written_reads_back(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in.csv").write_text('text,confidence\n"quo""te and\nline",1\n=1+2 ü 中文,2\n')
    write(tmp_path / f"out{ending}", read_table(str(tmp_path / "in.csv")))
    table = read_table(str(tmp_path / f"out{ending}"))
    assert table.columns == ["text", "confidence_input", *NAMES]
    assert table.column("text") == ['quo"te and\nline', "=1+2 ü 中文"]
    assert table.column("predicted_label") == ["a", "=b"]
    assert [float(cell) for cell in table.column("confidence")] == [0.5, 0.25]


def test_records_of_json_come_back_as_they_were(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"id": 0, "text": "one", "ok": True, "no": None, "tags": ["x"]},
        {"id": 1, "text": "two", "more": {"a": 1}},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    write(tmp_path / "out.jsonl", read_table(str(tmp_path / "in.jsonl")))
    added = [dict(zip(NAMES, row, strict=True)) for row in (["a", 0.5, True], ["=b", 0.25, False])]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [record | more for record, more in zip(records, added, strict=True)]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    columns = {"text": ["a", "b"], "id": [2**60, 1], "day": [datetime.date(1850, 1, 1), None], "tags": [["x"], []]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    write(tmp_path / "out.parquet", read_table(str(tmp_path / "in.parquet")))
    written = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert written.select(list(columns)).to_pydict() == columns
    assert written.column("confidence").to_pylist() == [0.5, 0.25]
    assert written.column("accepted").to_pylist() == [True, False]


def test_a_workbook_is_a_copy_with_more_columns(tmp_path: Path) -> None:
    """Numbers, dates, formats and other sheets stay; no text becomes a formula."""
    book = openpyxl.Workbook()
    book.create_sheet("notes")["B2"] = "kept"
    sheet = book.active
    assert sheet is not None
    sheet.title = "Tickets"
    for row in (["id", "text", "day"], [1, "a text", datetime.date(2024, 5, 1)], [2, "another text", None]):
        sheet.append(row)
    sheet["B2"].font = openpyxl.styles.Font(bold=True)
    book.save(tmp_path / "in.xlsx")
    write(tmp_path / "out.xlsx", read_table(str(tmp_path / "in.xlsx")))
    written = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert [cell.value for cell in written["Tickets"][1]] == ["id", "text", "day", *NAMES]
    day = datetime.datetime(2024, 5, 1)
    assert [cell.value for cell in written["Tickets"][2]] == [1, "a text", day, "a", 0.5, True]
    assert written["Tickets"]["B2"].font.bold
    assert written["Tickets"]["D3"].data_type == "s"
    assert written["notes"]["B2"].value == "kept"


def test_a_table_with_semicolons_comes_back_with_them(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text;n\none, two;1,5\nthree;2\n")
    write(tmp_path / "out.csv", read_table(str(tmp_path / "in.csv")))
    assert (tmp_path / "out.csv").read_text().splitlines()[:2] == [
        "text;n;predicted_label;confidence;accepted", "one, two;1,5;a;0.5;true",
    ]  # fmt: skip


def test_a_column_can_be_replaced_in_each_format(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,label\none,a\ntwo,b\n")
    before = read_table(str(tmp_path / "in.csv"))
    for ending, write_format in WRITERS.items():
        write_format(tmp_path / f"one{ending}", before, np.arange(2), Added((), [(), ()]))
        table = read_table(str(tmp_path / f"one{ending}"))
        changed = Added((), [(), ()], replaced={"label": {0: "b", 1: "c"}})
        write_format(tmp_path / f"two{ending}", table, np.arange(2), changed)
        assert read_table(str(tmp_path / f"two{ending}")).column("label") == ["b", "c"]


def test_a_changed_cell_keeps_the_type_of_the_others(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 1, "tags": ["x"]}, {"text": "two", "label": 2, "tags": []}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    book = openpyxl.Workbook()
    for row in (["text", "label", "tags"], ["one", 1, "=x"], ["two", 2, "y"]):
        book.active.append(row)  # type: ignore[union-attr]
    book.save(tmp_path / "in.xlsx")
    changed = Added((), [(), ()], replaced={"label": {1: "3"}, "tags": {1: '["y"]'}})
    for ending in (".jsonl", ".parquet", ".xlsx"):
        WRITERS[ending](tmp_path / f"out{ending}", read_table(str(tmp_path / f"in{ending}")), np.arange(2), changed)
    expected = [rows[0], {"text": "two", "label": 3, "tags": ["y"]}]
    assert list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())) == expected
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == expected
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert [[cell.value for cell in row] for row in sheet] == [  # type: ignore[union-attr]
        ["text", "label", "tags"], ["one", 1, "=x"], ["two", 3, '["y"]']
    ]  # fmt: skip


def test_changed_labels_of_nested_records_and_class_numbers(tmp_path: Path) -> None:
    """Readers take the names of a feature for its numbers; a nested label is a column of its own."""
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"text": "t{n}", "meta": {{"label": "{n % 2}"}}}}\n' for n in range(3))
    )
    write_format, changed = WRITERS[".jsonl"], Added((), [(), (), ()], replaced={"meta.label": {1: "0"}})
    write_format(tmp_path / "out.jsonl", read_table(str(tmp_path / "in.jsonl")), np.arange(3), changed)
    assert read_table(str(tmp_path / "out.jsonl")).column("meta.label") == ["0", "0", "0"]
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
    }
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [0, 1, 0], "n": [1, 2, 3]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    assert read_table(str(tmp_path / "in.parquet")).column("label") == ["neg", "pos", "neg"]
    changed = Added((), [(), (), ()], replaced={"label": {1: "neg"}, "n": {0: "1.5"}})
    WRITERS[".parquet"](tmp_path / "out.parquet", read_table(str(tmp_path / "in.parquet")), np.arange(3), changed)
    written = read_table(str(tmp_path / "out.parquet"))
    assert [written.column("label"), written.column("n")] == [["neg"] * 3, ["1.5", "2", "3"]]


@pytest.mark.parametrize("ending", WRITERS)
def test_predictions_of_predictions_have_names_of_their_own(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in.csv").write_text("text,predicted_label,predicted_label_input\none,a,b\ntwo,c,d\n")
    for name in ("one", "two"):
        write(tmp_path / f"{name}{ending}", read_table(str(tmp_path / ("in.csv" if name == "one" else f"one{ending}"))))
    columns = read_table(str(tmp_path / f"two{ending}")).columns
    assert len({*columns}) == len(columns) == 9
    assert columns[:3] == ["text", "predicted_label_input_input", "predicted_label_input"] or ending != ".csv"


def test_an_empty_row_below_the_header_of_a_workbook(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["text", "n"], [None, None], ["one text", 1], ["another text", 2]):
        book.active.append(row)  # type: ignore[union-attr]
    book.active.merge_cells("C1:D1")  # type: ignore[union-attr]
    book.save(tmp_path / "in.xlsx")
    write(tmp_path / "out.xlsx", read_table(str(tmp_path / "in.xlsx")))
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert [cell.value for cell in sheet[1]] == ["text", "n", None, None, *NAMES]  # type: ignore[index]
    assert read_table(str(tmp_path / "out.xlsx")).column("predicted_label") == ["a", "=b"]


def test_cells_that_a_spreadsheet_would_compute(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,n\n=1+2,-3\n@x,+4\n")
    table = read_table(str(tmp_path / "in.csv"))
    write_csv(tmp_path / "out.csv", table, np.arange(2), Added((), [(), ()]), for_excel=True)
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines() == ["\ufefftext,n", "'=1+2,-3", "'@x,+4"]
    assert is_formula("\tx")


@pytest.mark.parametrize("name", ["p.xls", "p.tsv", "p.xml"])
def test_other_endings_and_what_a_sheet_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"ends in \.csv, \.jsonl, \.parquet, \.xlsx"):
        find_writer(name)
    with pytest.raises(InputError, match="a sheet of Excel holds 1,048,575 rows"):
        check_size("p.xlsx", 2_000_000, 3)

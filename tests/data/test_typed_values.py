"""Values that are not text in Parquet files and workbooks: bytes, missing numbers, dates, booleans, merged cells."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow
import pytest
from pyarrow import parquet

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.errors import InputError
from classify.tables.formats.registry import read_table
from classify.tasks.registry import recognize

TEXTS = [f"façade {number} of the house" for number in range(20)]
LABELS = [("a", "b")[number % 2] for number in range(20)]


def test_bytes_are_text_where_they_are_utf8(tmp_path: Path) -> None:
    texts = pyarrow.array([text.encode() for text in TEXTS], pyarrow.binary())
    parquet.write_table(pyarrow.table({"text": texts, "label": LABELS}), tmp_path / "a.parquet")
    assert read_table(str(tmp_path / "a.parquet")).column("text") == TEXTS


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    texts = pyarrow.array([text.encode("cp1252") for text in TEXTS], pyarrow.binary())
    parquet.write_table(pyarrow.table({"text": texts, "label": LABELS}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'text' .* holds bytes that are not UTF-8"):
        read_table(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_is_an_empty_label(tmp_path: Path, kind: Any) -> None:
    labels = np.array([0, 1] * 9 + [np.nan] * 2, dtype=kind)
    parquet.write_table(pyarrow.table({"text": TEXTS, "label": labels}), tmp_path / "a.parquet")
    config = DataConfig(data=str(tmp_path / "a.parquet"))
    tables = read_tables(config)
    splits = split_table(tables, recognize(tables), seed=0)
    assert splits.labels == ["0.0", "1.0"]
    assert list(splits.unlabelled["unlabelled.csv"].rows) == [18, 19]


def write(path: Path, rows: list[list[Any]], merged: str = "") -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    if merged:
        book.active.merge_cells(merged)
    book.save(path)
    return path


def test_cells_are_written_as_a_person_reads_them(tmp_path: Path) -> None:
    day, moment = datetime.date(2026, 3, 1), datetime.datetime(2026, 3, 1, 14, 30)
    values = [day, moment, True, False, 3, 3.0, 2.5, -1, None, " padded "]
    path = write(tmp_path / "a.xlsx", [["text", "value"], *([f"text {n}", value] for n, value in enumerate(values))])
    expected = ["2026-03-01", "2026-03-01T14:30:00", "true", "false", "3", "3", "2.5", "-1", "", " padded "]
    assert read_table(str(path)).column("value") == expected


def test_a_merged_cell_counts_for_each_of_its_rows(tmp_path: Path) -> None:
    """Its value is that of each of its rows, though the file holds it in the first alone."""
    labels = ["x", None, None, *LABELS[3:]]
    rows = [["text", "label"], *([text, label] for text, label in zip(TEXTS, labels, strict=True))]
    path = write(tmp_path / "a.xlsx", rows, merged="B2:B4")
    assert read_table(str(path)).column("label") == ["x", "x", "x", *LABELS[3:]]


def test_a_title_over_merged_cells_is_no_header(tmp_path: Path) -> None:
    rows = [["Report of March", None], ["text", "label"]]
    rows += [[text, label] for text, label in zip(TEXTS, LABELS, strict=True)]
    table = read_table(str(write(tmp_path / "a.xlsx", rows, merged="A1:B1")))
    assert (table.columns, len(table)) == (["text", "label"], 20)

"""predictions.csv can be read again, whatever stands in the labels and the header."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from classify.tables.read import read_table
from classify.tables.source import ReadOptions
from classify.tables.table import Table
from classify.tasks import single_label
from classify.tasks.columns import PredictionColumns, read_predictions


def write(path: Path, table: Table, rows: np.ndarray, labels: list[str], probabilities: np.ndarray) -> None:
    PredictionColumns(single_label.make(labels)).write(path, table, rows, np.log(probabilities))


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl"])
@pytest.mark.parametrize("odd", ["carriage\rreturn", "line\nfeed", 'quo"te', "com,ma", "t\tab", " spaces "])
def test_what_is_written_reads_back_as_it_was(tmp_path: Path, name: str, odd: str) -> None:
    """Labels and column names, as a row of the table and as the program's own columns."""
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", f"x{odd}"), ("one", "1"), ("two", "2")])
    table = read_table(str(tmp_path / "in.csv"))
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    write(tmp_path / name, table, np.arange(2), [odd, "plain"], probabilities)
    again = read_table(str(tmp_path / name))
    assert again.columns == ["text", f"x{odd}", "predicted_label", "confidence", f"prob_{odd}", "prob_plain"]
    assert again.column("predicted_label") == [odd, "plain"]
    assert again.column(f"prob_{odd}") == ["0.9", "0.2"]
    assert again.column("text") == ["one", "two"]


def test_columns_that_pandas_numbered_are_read_back(tmp_path: Path) -> None:
    """The file is read as it was written: no guess whether its first row is a header."""
    rows = "".join(f"{number},text {number},{'ab'[number % 2]}\n" for number in range(30))
    (tmp_path / "in.csv").write_text(f"0,1,2\n{rows}")
    table = read_table(str(tmp_path / "in.csv"), options=ReadOptions(header=True))
    write(tmp_path / "p.csv", table, np.arange(30), ["a", "b"], np.full((30, 2), 0.5))
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "p.csv").rename(tmp_path / "predictions.csv")
    again = read_predictions(tmp_path)
    assert again.columns == ["0", "1", "2", "predicted_label", "confidence", "prob_a", "prob_b"]
    assert again.column("1") == table.column("1")


def test_many_rows_get_each_its_own_prediction(tmp_path: Path) -> None:
    """More rows than are written at once, and not all of the table's."""
    count = 9000
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text",), *((f"text {number}",) for number in range(count))])
    rows = np.arange(1, count)
    likely = rows / count
    write(
        tmp_path / "p.csv",
        read_table(str(tmp_path / "in.csv")),
        rows,
        ["less", "more"],
        np.stack([1 - likely, likely], axis=1),
    )
    again = read_table(str(tmp_path / "p.csv"))
    assert again.column("text") == [f"text {number}" for number in rows]
    assert [float(number) for number in again.column("prob_more")] == pytest.approx(likely.tolist(), abs=1e-7)
    assert again.column("predicted_label") == ["less" if number <= count / 2 else "more" for number in rows]


@pytest.mark.parametrize("escaped", [False, True])
def test_cells_that_look_like_formulas_are_escaped_on_request(tmp_path: Path, escaped: bool) -> None:
    (tmp_path / "in.csv").write_text("text,note\n=1+1,-1.5\ntwo,+3\n")
    table = read_table(str(tmp_path / "in.csv"))
    columns = PredictionColumns(single_label.make(["=x", "b"]), for_excel=escaped)
    columns.write(tmp_path / "p.csv", table, np.arange(2), np.eye(2, dtype=np.float32))
    assert (tmp_path / "p.csv").read_bytes().startswith(b"\xef\xbb\xbf") == escaped
    again, sign = read_table(str(tmp_path / "p.csv")), "'" if escaped else ""
    assert again.column("text") == [f"{sign}=1+1", "two"]
    assert again.column("predicted_label") == [f"{sign}=x", "b"]
    assert again.column("note") == ["-1.5", "+3"], "numbers stay numbers"

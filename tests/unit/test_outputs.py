"""predictions.csv can be read again, whatever stands in the labels and the header."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from classify.data.read import read_table
from classify.outputs import write_predictions


@pytest.mark.parametrize("name", ["p.csv", "p.tsv"])
@pytest.mark.parametrize("odd", ["carriage\rreturn", "line\nfeed", 'quo"te', "com,ma", "t\tab", " spaces "])
def test_what_is_written_reads_back_as_it_was(tmp_path: Path, name: str, odd: str) -> None:
    """Labels and column names, as a row of the table and as the program's own columns."""
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", f"x{odd}"), ("one", "1"), ("two", "2")])
    table = read_table(str(tmp_path / "in.csv"))
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    write_predictions(tmp_path / name, table, np.arange(2), [odd, "plain"], probabilities)
    again = read_table(str(tmp_path / name))
    assert again.columns == ["text", f"x{odd}", "predicted_label", "confidence", f"prob_{odd}", "prob_plain"]
    assert again.column("predicted_label") == [odd, "plain"]
    assert again.column(f"prob_{odd}") == ["0.9", "0.2"]
    assert again.column("text") == ["one", "two"]

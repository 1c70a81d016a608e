"""Rows without a label, and test texts that were trained on: what a run writes of them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.cli import main
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json


def parse_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def with_rows(table: Path, path: Path, rows: list[str]) -> Path:
    path.write_text(table.read_text(encoding="utf-8").rstrip("\n") + "\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def run(model: Path, table: Path, out: Path, **changes: Any) -> Path:
    return train(make_config(model, table, out, report_to="none", num_train_epochs=1.0, **changes))


def test_rows_without_a_label_are_predicted(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """In the order of the table, and as `classify predict` does for a table of the same texts."""
    texts = [text for text, _ in tiny.table_rows(15, seed=8)]
    more = with_rows(table, tmp_path / "more.csv", [f"{text}," for text in texts])
    result = run(model_folder, more, tmp_path / "out")
    rows = parse_rows(result / "unlabelled.csv")
    assert [(row["text"], row["label"]) for row in rows] == [(text, "") for text in texts]
    new = tmp_path / "new.csv"
    new.write_text("\n".join(["text", *texts]) + "\n", encoding="utf-8")
    words = ["predict", "--model", str(result), "--data", str(new), "--out", str(tmp_path / "predicted.csv"), "--cpu"]
    assert main(words) == 0
    expected = parse_rows(tmp_path / "predicted.csv")
    probabilities = [name for name in expected[0] if name.startswith("prob_")]
    assert len(probabilities) == 3
    for name in probabilities:
        values = [float(row[name]) for row in expected]
        assert np.ptp(values) > 0.05, "the order shows"
        assert [float(row[name]) for row in rows] == pytest.approx(values, abs=1e-4)
    assert [row["predicted_label"] for row in rows] == [row["predicted_label"] for row in expected]
    assert len(parse_rows(result / "predictions.csv")) == read_json(result / "metrics.json")["test"]["rows"] == 12
    plain = run(model_folder, table, tmp_path / "plain")
    assert parse_rows(plain / "predictions.csv") == parse_rows(result / "predictions.csv")


def test_a_run_is_the_same_however_labels_are_written(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Also in a test table; what was typed stays as it was in predictions.csv."""
    lines = table.read_text(encoding="utf-8").splitlines()
    typed = tmp_path / "typed.csv"
    slips = [line.replace(",card", ",Card ") if i % 9 == 1 else line for i, line in enumerate(lines)]
    assert slips != lines
    typed.write_text("\n".join(slips) + "\n", encoding="utf-8")
    result, plain = (run(model_folder, path, tmp_path / path.stem, test_data=str(path)) for path in (typed, table))
    scores = [read_json(folder / "metrics.json")["test"]["per_class"] for folder in (result, plain)]
    assert scores[0] == scores[1]
    assert set(scores[0]) == {"app", "card", "money"}
    assert {row["label"] for row in parse_rows(result / "predictions.csv")} == {"app", "card", "Card ", "money"}


def test_test_texts_that_were_trained_on_are_scored_apart(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = table.read_text(encoding="utf-8").splitlines()
    test = tmp_path / "test.csv"
    test.write_text("\n".join([known[0], *known[1:31], "my money is late,money", "the app is slow,app"]) + "\n")
    result = run(model_folder, table, tmp_path / "out", test_data=str(test))
    scored = read_json(result / "metrics.json")["test"]
    assert scored["rows"] == 32
    assert 2 <= scored["unseen"]["rows"] < 32
    right = [row["label"] == row["predicted_label"] for row in parse_rows(result / "predictions.csv")]
    assert scored["accuracy"] == pytest.approx(sum(right) / 32)
    seen = 32 - scored["unseen"]["rows"]
    assert f"with the {seen} test texts that are also in the training split: accuracy" in capsys.readouterr().out

"""With few rows a class the head is fitted again after the epochs, to drawn validation rows, too, once scored."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classify
from classify.data.split_record import SplitRecord
from classify.tasks.base import Head
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json

# 20 a class.
ROWS = tiny.table_rows(60)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each head that is fitted."""
    sizes, fit = list[int](), Head.fit

    def record(head: Head, rows: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(rows.targets))
        return fit(head, rows, *rest, **more)

    monkeypatch.setattr(Head, "fit", record)
    return sizes


def evaluated(folder: Path, rows: list[tuple[str, str]]) -> float:
    """The loss of the saved model on these rows."""
    with classify.load(folder, use_cpu=True) as run:
        probabilities = run.predict_proba([text for text, _ in rows])
        places = [run.labels.index(label) for _, label in rows]
    return -float(np.log(probabilities[np.arange(len(rows)), places]).mean())


def test_drawn_validation_rows_are_scored_and_then_learned_from(
    model_folder: Path, tmp_path: Path, fits: list[int]
) -> None:
    table = tiny.write_table(tmp_path / "my.csv", ROWS)
    folder = train(make_config(model_folder, table, tmp_path / "out"))
    assert fits == [51, 51, 57]  # 48 rows and 3 label names: at the start, after the epochs, with 6 validation rows
    record = SplitRecord.read(str(folder))
    assert int(record.find_trained(record.hashes).sum()) == 54
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        tested = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    metrics = read_json(folder / "metrics.json")
    assert evaluated(folder, tested) == pytest.approx(metrics["test"]["loss"], abs=1e-5)


def test_given_validation_rows_are_only_scored(model_folder: Path, tmp_path: Path, fits: list[int]) -> None:
    table, rows = tiny.write_table(tmp_path / "my.csv", ROWS), tiny.table_rows(12, seed=9)
    other = tiny.write_table(tmp_path / "eval.csv", rows)
    folder = train(make_config(model_folder, table, tmp_path / "out", eval_data=str(other)))
    assert fits == [63, 63]
    assert evaluated(folder, rows) == pytest.approx(read_json(folder / "metrics.json")["eval"]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "random"},
        {"num_train_epochs": 0.0},
        {"label_column": "score"},
        {"out_of_scope_label": "app"},
        {"loss": "focal"},
        {"sampler": "balanced"},
    ],
    ids=str,
)
def test_otherwise_it_is_not(model_folder: Path, tmp_path: Path, fits: list[int], changes: dict[str, Any]) -> None:
    rows = [(text, label, f"{len(text) / 7:.1f}") for text, label in ROWS]
    table = tmp_path / "my.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label", "score"), *rows])
    settings = {"label_column": "label", "folds": 0, **changes}
    train(make_config(model_folder, table, tmp_path / "out", **settings))
    assert len(fits) == (settings.get("head") != "random")


def test_of_many_rows_a_class_it_is_not(model_folder: Path, tmp_path: Path, fits: list[int]) -> None:
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(63))
    folder = train(make_config(model_folder, table, tmp_path / "out"))
    assert len(fits) == 1
    assert SplitRecord.read(str(folder)).learned == (0,)


def test_validation_rows_that_are_tested_are_not_learned(model_folder: Path, tmp_path: Path, fits: list[int]) -> None:
    table = tiny.write_table(tmp_path / "my.csv", ROWS)
    train(make_config(model_folder, table, tmp_path / "out", test_data=str(table)))
    assert fits == [57, 57]  # 54 rows and 3 names


def test_a_cap_on_training_rows_holds_for_the_head(model_folder: Path, tmp_path: Path, fits: list[int]) -> None:
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(300))
    train(make_config(model_folder, table, tmp_path / "out", max_train_samples=30))
    assert fits == [33, 33]

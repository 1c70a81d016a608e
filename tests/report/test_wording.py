"""Sentences of a report fit the numbers in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from classify.data.split_record import SplitRecord
from classify.evaluation.scored_rows import SignTest
from classify.report.comparison import ComparedRun, Comparison, verdict
from classify.report.page import write_report
from classify.report.result import Result
from classify.report.verdict import _of_100, find_steps, sentences
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("words") / "run"))


def test_an_evaluation_of_one_row(trained: Path, tmp_path: Path) -> None:
    """That is wrong: the flag for more rows is that of classify evaluate."""
    result = Result.read(trained)
    row = int((result.predicted == result.rows.targets).argmax())
    wrong = next(label for place, label in enumerate(result.task.labels) if place != result.predicted[row])
    path, out = tiny.write_table(tmp_path / "one.csv", [(result.texts[row], wrong)]), tmp_path / "e"
    words = ["evaluate", "--model", str(trained), "--data", str(path), "--output-dir", str(out), "--cpu"]
    assert main(words) == 0
    page = write_report(Result.read(out)).read_text()
    assert "It is right in 0 of 100 cases (1 row;" in page
    assert "(1 leaves a wide interval; --data)" in page
    assert "1 of 1 prediction is wrong." in page
    assert "1 rows" not in page
    assert "--test-data" not in page


def test_a_run_names_its_own_flag(trained: Path) -> None:
    result = Result.read(trained)
    rows = result.scores["rows"]
    steps = {step.text: step.command for step in find_steps(result)}
    (folds,) = (command for text, command in steps.items() if f"by cross-validation ({rows} leave a wide inter" in text)
    assert folds == f"classify train --like {trained} --folds 5"
    assert f"({rows} test rows; between" in sentences(result)[1]


@pytest.mark.parametrize(
    ("accuracy", "better", "worse", "p", "sentence"),
    [
        (0.0, 1, 1_200, 0.0, "better on 1 row, worse on 1,200, p < 0.001"),
        (1.0, 0, 3, 0.25, "It is not better than the simple baseline"),
        (1.0, 60, 5, 0.0, "better on 60 rows, worse on 5, p < 0.001, yet not on average."),
    ],
)
def test_the_sentence_on_the_baseline(
    trained: Path, accuracy: float, better: int, worse: int, p: float, sentence: str
) -> None:
    """It says better or worse only where rows and mean agree, by more than chance."""
    result = Result.read(trained)
    baseline = {**(result.baseline or {}), "accuracy": accuracy, "paired": {"better": better, "worse": worse, "p": p}}
    assert sentence in sentences(dataclasses.replace(result, baseline=baseline))[3]


def test_scores_of_rows_that_were_trained_on_are_called_too_high(trained: Path, tmp_path: Path) -> None:
    """Where all were; else the report is about the others alone."""
    table = Path(read_json(trained / "run.json")["data"]["path"])
    lines = table.read_text().splitlines()
    known = SplitRecord.find(str(trained)).find_trained(read_table(str(table)).text_hashes("text")).tolist()
    for name, chosen in {"seen": known, "all": [True] * len(known)}.items():
        kept = [line for line, is_chosen in zip(lines[1:], chosen, strict=True) if is_chosen]
        data, out = tmp_path / f"{name}.csv", tmp_path / name
        data.write_text("\n".join([lines[0], *kept]) + "\n")
        assert main(["evaluate", "--model", str(trained), "--data", str(data), "--output-dir", str(out), "--cpu"]) == 0
        assert (out / "report.html").exists()
    said = sentences(Result.read(tmp_path / "seen"))
    assert said[-1].endswith("of these, so the scores are too high.")
    assert not any("without a look" in sentence for sentence in said)
    assert "--min-confidence" not in write_report(Result.read(tmp_path / "seen")).read_text()
    result = Result.read(tmp_path / "all")
    assert len(result.texts) == len(result.rows.targets) == known.count(False) == result.scores["rows"]
    assert f"without {known.count(True)} rows whose text was trained on" in sentences(result)[1]


@pytest.mark.parametrize(
    ("share", "shown"), [(1.0, "100"), (0.9996, "99.9"), (0.96, "96.0"), (0.5, "50"), (0.004, "0.4"), (0.0, "0")]
)
def test_nearly_all_is_not_all(share: float, shown: str) -> None:
    assert _of_100(share) == shown


@pytest.mark.parametrize(
    ("rows", "left_out", "shown"),
    [
        (1, 1, ("1 row that all", "; 1 more has different labels and is left out", "better on 1 row, worse on 1,")),
        (2, 3, ("2 rows that all", "; 3 more have different labels and are left out", "better on 2 rows, worse on 2,")),
    ],
)
def test_a_comparison(rows: int, left_out: int, shown: tuple[Any, ...]) -> None:
    runs = ComparedRun("a", {"accuracy": 1.0}, None), ComparedRun("b", {"accuracy": 1.0}, SignTest(rows, rows, 1.0))
    comparison = Comparison(rows, left_out, runs=runs)
    assert shown[1] in "\n".join(comparison.lines())
    assert shown[2] in verdict(runs[1])

"""`classify inspect`: what a table holds, as text and in inspect.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.cli import main
from tests.support.runs import read_json

ROWS = [
    *((f"message number {number}", "xy"[number % 2]) for number in range(40)),
    ("The same  text", "x"),
    ("the same text", "y"),
    ("message number 1", "y"),
    ("", "x"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = ["id,text,label", *(f"{number},{text},{label}" for number, (text, label) in enumerate(ROWS))]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("text,label\nMESSAGE number 3,x\nnew,y\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_table_holds(folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--data", "my.csv", "--test-data", "test.csv", "--model", str(model_folder)]) == 0
    printed = capsys.readouterr().out
    found = read_json(folder / "inspect.json")
    assert found["rows"] == len(ROWS)
    assert found["columns"] == {
        "id": "not used",
        "text": "text: the name says so",
        "label": "label: the name says so",
    }
    assert found["classes"] == {"x": 22, "y": 22}
    assert (found["empty_texts"], found["copies"], found["leaks"]) == (1, 2, {"test": 1})
    (conflict,) = found["conflicts"]
    assert conflict == {"text": "The same  text", "labels": ["x", "y"], "where": "my.csv lines 42, 43"}
    assert "'The same  text' has the labels 'x', 'y' (my.csv lines 42, 43)" in printed
    assert "leak: 1 test texts are also in --data" in printed
    assert found["tokens"]["rows_cut"] == 0.0
    assert not (folder / "runs").exists()


def test_what_a_length_cuts(folder: Path, model_folder: Path) -> None:
    assert main(["inspect", "--data", "my.csv", "--model", str(model_folder), "--max-length", "4"]) == 0
    found = read_json(folder / "inspect.json")["tokens"]
    assert found["max_length"] == 4.0
    assert 0.5 < found["rows_cut"] <= 1.0
    assert 0.0 < found["tokens_cut"] < 1.0


def test_faults_are_those_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--data", "nothing.csv"]) == 2
    assert "nothing.csv: no such file" in capsys.readouterr().err
    assert not (folder / "inspect.json").exists()

"""`classify inspect`: what a table holds, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main

ROWS = [
    *((f"message number {number}", "xy"[number % 2]) for number in range(40)),
    ("The same  text", "x"),
    ("the same text", "y"),
    ("message number 1", "y"),
    ("", "x"),
]


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run `classify inspect --json` and return its object."""
    assert main(["inspect", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = ["id,text,label", *(f"{number},{text},{label}" for number, (text, label) in enumerate(ROWS))]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("text,label\nMESSAGE number 3,x\nnew,y\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_table_holds(folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "my.csv", "--test-data", "test.csv", "--model", str(model_folder)]
    assert main(["inspect", *words]) == 0
    printed = capsys.readouterr().out
    result = as_json(capsys, *words)
    assert result["rows"] == len(ROWS)
    assert result["columns"] == {"id": "neither text nor label", "text": "text: named so", "label": "label: named so"}
    assert result["classes"] == {"x": 21, "y": 22}
    assert (result["empty_texts"], result["copies"], result["leaks"]) == (1, 2, {"test": 1})
    (conflict,) = result["conflicts"]
    assert conflict == {"text": "The same  text", "labels": ["x", "y"], "where": "my.csv lines 42, 43"}
    assert "'The same  text' has the labels 'x', 'y' (my.csv lines 42, 43)" in printed
    assert "note: 1 of 2 test texts are also in the training split" in printed
    assert result["tokens"]["rows_cut"] == 0.0
    assert "(in place of" not in printed
    assert sorted(path.name for path in folder.iterdir()) == ["my.csv", "test.csv"], "it writes nothing"


def test_what_a_length_cuts(folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "my.csv", "--model", str(model_folder), "--max-length", "4"]
    result = as_json(capsys, *words)["tokens"]
    assert result["max_length"] == 4.0
    assert 0.5 < result["rows_cut"] <= 1.0
    assert result["recommended_max_length"] == 64.0
    assert 0.0 < result["tokens_per_character"] < 1.0
    assert 0.0 < result["tokens_cut"] < 1.0
    assert main(["inspect", *words]) == 0
    printed = capsys.readouterr().out
    assert "--max-length 64 is recommended" in printed
    assert "\ntask: one of 2 classes (one label per row" in printed
    assert "\nsplit: train 43, 5 folds, test 0 (" in printed


def test_one_object_of_json(folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--data", "my.csv", "--model", str(model_folder))
    assert result["task"] == "single_label"
    assert result["splits"] == {"train": 43, "validation": 43, "test": 0}, "few rows are cross-validated"
    assert result["reading"]["delimiter"] == ","
    findings = {(found["level"], found["where"]): found for found in result["findings"]}
    assert findings["decision", "task"]["text"] == "one of 2 classes"
    assert findings["note", "my.csv line 45"]["text"] == "the text is empty"
    assert all({"level", "where", "text", "flag"} <= found.keys() for found in result["findings"])


def test_faults_are_those_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--data", "nothing.csv"]) == 2
    assert "nothing.csv: no such file" in capsys.readouterr().err


def test_it_looks_in_one_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--data", "my.csv", "--nproc", "2"]) == 2
    assert "in one process" in capsys.readouterr().err


def test_a_terminal_obeys_no_text_of_the_table(
    folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters, and those that turn the direction of writing, in names, labels and texts."""
    red, turned = "\x1b[31mred", "\u202egnihsihp"
    rows = [f"message {number},{red if number % 2 else turned},{number}" for number in range(40)]
    rows += [f"{red} twice,{red},1", f"{red} twice,{turned},2"]
    (folder / "hostile.csv").write_text("\n".join([f"text,label,{red}\x9b", *rows]) + "\n", encoding="utf-8")
    words = ["--data", "hostile.csv", "--model", str(model_folder)]
    assert main(["inspect", *words]) == 0
    assert main(["train", *words, "--label-column", f"{red} none"]) == 2
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "\\x1b[31mred" in captured.out
    assert "\\x1b[31mred" in captured.err
    assert not set(printed) & set("\x1b\x9b\u202e")
    assert as_json(capsys, *words)["classes"] == {red: 21, turned: 21}


def test_a_model_whose_layers_are_spread(folder: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", "--data", "my.csv", "--model", str(model_folder), "--cpu", "--strategy", "model"]
    assert main(words) == 0, capsys.readouterr().err

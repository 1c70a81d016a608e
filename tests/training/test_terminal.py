"""What a run prints: seven lines of decisions where nothing is doubtful; more with --verbose, JSON with --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from classify.evaluation.metrics import Scores, table
from tests.support import tiny
from tests.support.runs import read_json


def train(data: Path, model: Path, out: Path, *more: str) -> int:
    words = f"train --data {data} --model {model} --cpu --output-dir {out} --max-steps 2 --contrastive-steps 0"
    return main([*words.split(), *more])


def decisions(printed: str) -> list[str]:
    """The lines before training."""
    lines = printed.split("\nhead: ")[0].splitlines()
    return [line for line in lines if not line.startswith("note: ")]


def test_six_lines_of_decisions(model_folder: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    assert train(table, model_folder, tmp_path / "a") == 0
    assert [line.split(":")[0] for line in decisions(capsys.readouterr().out)] == [
        "table", "task", "split", "model", "recipe", "device",
    ]  # fmt: skip
    assert train(table, model_folder, tmp_path / "b", "--verbose") == 0
    verbose = decisions(capsys.readouterr().out)
    recorded = read_json(tmp_path / "a" / "run.json")["guesses"]
    for decision in recorded:
        assert any(line.startswith(f"{decision['what']}: {decision['value']}") for line in verbose), decision
    assert any(line.startswith("classes: 3") for line in verbose)


def test_doubtful_decisions_are_printed(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """A column that no name matched, texts that are cut, labels that are merged, texts with several labels."""
    rows = [(f"{text} " * 12, "Card " if n % 9 == 0 else label) for n, (text, label) in enumerate(tiny.table_rows(60))]
    rows += [(rows[0][0], "money"), (rows[1][0], rows[1][1])]
    data = tiny.write_table(tmp_path / "my.csv", rows, ("what was written", "label"))
    assert train(data, model_folder, tmp_path / "a", "--folds", "0") == 0
    printed = [line.split(":")[0] for line in decisions(capsys.readouterr().out)]
    assert {"labels", "max length", "duplicates"} <= set(printed)
    assert "label column" not in printed


def test_json_lines(model_folder: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    assert train(table, model_folder, tmp_path / "a", "--json", "--logging-steps", "1") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_name.setdefault(event.pop("event"), []).append(event)
    assert by_name["decision"] == read_json(tmp_path / "a" / "run.json")["guesses"]
    logged = [json.loads(line) for line in (tmp_path / "a" / "train_log.jsonl").read_text().splitlines()]
    assert by_name["log"] == logged
    (result,) = by_name["result"]
    assert result["folder"] == str(tmp_path / "a")
    assert result["test"] == read_json(tmp_path / "a" / "metrics.json")["test"]
    assert set(by_name) == {"decision", "log", "message", "result"}


def test_quiet(model_folder: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    assert train(table, model_folder, tmp_path / "a", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert train(table, model_folder, tmp_path / "a", "--quiet") == 2
    assert "error: " in capsys.readouterr().err
    assert train(table, model_folder, tmp_path / "b", "--quiet", "--json") == 2
    assert "--quiet and --json" in capsys.readouterr().err
    # A resumed run prints as its own flags say.
    assert main(["train", "--resume", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("classes", "lines"), [(40, 41), (41, 42), (300, 42)])
def test_a_long_table_has_the_best_and_the_worst(classes: int, lines: int) -> None:
    per_class = {
        f"class {n}": {"precision": 0.5, "recall": 0.5, "f1": n / classes, "support": n % 7} for n in range(classes)
    }
    text = table(Scores({"accuracy": 0.5}, rows=9, per_class=per_class)).splitlines()
    assert len(text) == lines
    if classes > 40:
        assert text[1].startswith(f"class {classes - 1} ")
        assert text[-1].startswith("class 0 ")
        assert f"{classes - 40} classes between" in text[21]

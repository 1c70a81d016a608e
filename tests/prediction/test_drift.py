"""classify compare --model --data: a changed table is noticed, one like the run's is not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.cli import main
from classify.errors import InputError
from classify.prediction.drift import Properties, find_drift
from classify.training.run import train
from tests.support.runs import make_config


def _properties(seed: int, rows: int = 200, *, words: str = "alpha beta gamma delta", shift: float = 0.0) -> Properties:
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(words.split(), 4)) for _ in range(rows)]
    labels = draw.choice(["a", "b", "c"], rows, p=[0.5, 0.3 - shift / 4, 0.2 + shift / 4]).tolist()
    return Properties(texts, {"certainty": draw.normal(size=rows) + shift}, labels)


def test_equal_tables_are_alike() -> None:
    """Nine of ten at least; the test is at 5 %."""
    alarms = [
        any(change.is_clear for change in find_drift(_properties(seed), _properties(seed + 100), seed).changes)
        for seed in range(40)
    ]
    assert sum(alarms) <= 4


def test_changes_are_named() -> None:
    drift = find_drift(_properties(0), _properties(1, words="alpha beta gamma omega", shift=1.0), 0)
    clear = {change.name for change in drift.changes if change.is_clear}
    assert clear in ({"certainty", f"share of {label!r}", "distinguishable by words (AUROC)"} for label in "bc")
    assert drift.auroc > 0.7
    other = find_drift(_properties(0), _properties(1, words="alpha beta gamma omega"), 0)
    texts = _properties(1, words="alpha beta gamma omega").texts
    assert all("omega" in texts[row] for row in other.unlike)


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


def _write(path: Path, texts: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    return path


def test_the_command(trained: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["compare", "--model", str(trained), "--cpu", "--data"]
    other = _write(tmp_path / "other.csv", [f"zebra xylophone number {number} " * 9 for number in range(60)] + [""])
    assert main([*flags, str(other)]) == 0
    out = capsys.readouterr().out
    assert "characters (median)" in out
    assert "differs" in out
    assert "1 rows without a text, or in the table of the run, are left out" in out
    assert "unlike the run's: 'zebra" in out
    assert main([*flags, str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][1] == 60
    assert {change["name"] for change in found["changes"]} >= {"characters (median)", "certainty (median)"}


def test_what_does_not_apply(trained: Path, table: Path) -> None:
    from classify.commands.compare import run

    with pytest.raises(InputError, match="expected --model and --data"):
        run([str(trained), "--model", str(trained), "--data", str(table)], "classify compare")
    with pytest.raises(InputError, match="expected --model and --data"):
        run(["--model", str(trained)], "classify compare")
    with pytest.raises(InputError, match="no row has a text that is not in the table"):
        run(["--model", str(trained), "--data", str(table), "--cpu"], "classify compare")

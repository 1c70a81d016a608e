"""classify compare --model --data: a changed table is noticed, one like the run's is not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import load_classifier
from classify.cli import main
from classify.errors import InputError
from classify.prediction.drift import Properties, _compare_labels, _tell_apart, compare_with_run, find_drift
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config


def _properties(seed: int, rows: int = 200, *, words: str = "alpha beta gamma delta", shift: float = 0.0) -> Properties:
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(words.split(), 4)) for _ in range(rows)]
    labels = draw.choice(["a", "b", "c"], rows, p=[0.5, 0.3 - shift / 4, 0.2 + shift / 4]).tolist()
    return Properties(texts, {"certainty": draw.normal(size=rows) + shift}, {"": labels})


def test_equal_tables_are_alike() -> None:
    """Nine of ten at least; the test is at 5 %."""
    alarms = [
        any(change.clear for change in find_drift(_properties(seed), _properties(seed + 100), seed).changes)
        for seed in range(40)
    ]
    assert sum(alarms) <= 4


def test_halves_of_one_table_are_not_distinguished_too_often() -> None:
    """Scores of cross-validation are not independent: with those 9 in 60 were below 0.05."""
    alarms = [_tell_apart(_properties(seed).texts, _properties(seed + 500).texts, seed)[1] < 0.05 for seed in range(60)]
    assert sum(alarms) <= 6


def test_changes_are_named() -> None:
    drift = find_drift(_properties(0), _properties(1, words="alpha beta gamma omega", shift=1.0), 0)
    clear = {change.name for change in drift.changes if change.clear}
    assert clear in ({"certainty", f"share of {label!r}", "distinguishable by words (AUROC)"} for label in "bc")
    assert drift.auroc > 0.7
    assert all("omega" in text for text in drift.unlike)


@pytest.mark.parametrize("separate", [False, True])
def test_a_reply_that_comes_often_is_no_change(model_folder: Path, tmp_path: Path, separate: bool) -> None:
    """Rows of the run's texts are left out of the new table; the run's rows of the same kind are, too."""
    draw = np.random.default_rng(1)
    rows = [("thanks", "app") if draw.random() < 0.4 else row for row in tiny.table_rows(2_400)]
    parts = {name: tiny.write_table(tmp_path / f"{name}.csv", rows[at::4]) for at, name in enumerate(("my", "dev"))}
    parts["test"] = tiny.write_table(tmp_path / "test.csv", rows[2::4])
    more = {"eval_data": str(parts["dev"]), "test_data": str(parts["test"])} if separate else {"folds": 0}
    out = train(make_config(model_folder, parts["my"], tmp_path / "out", max_steps=2, **more))
    new = tiny.write_table(tmp_path / "new.csv", [*rows[3::4], *(["wait", "card"] for _ in range(40))])
    with load_classifier(str(out), use_cpu=True) as predictor:
        drift = compare_with_run(predictor, read_table(str(new)), predictor.texts)
    assert drift.left_out > 100, "and of the new reply, which comes 40 times, all rows"
    assert not any(change.clear for change in drift.changes), drift.changes


def test_predictions_of_folds_are_not_compared(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", folds=2, num_train_epochs=0.0))
    new = tiny.write_table(tmp_path / "new.csv", tiny.table_rows(60, seed=5))
    with load_classifier(str(out), use_cpu=True) as predictor, pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "table_outputs", None)  # nor computed
        drift = compare_with_run(predictor, read_table(str(new)), predictor.texts)
    names = {change.name for change in drift.changes}
    assert names == {"characters (median)", "tokens unknown to the model (mean)", "distinguishable by words (AUROC)"}


def test_many_and_rare_labels_raise_no_false_alarm() -> None:
    """Those of chi-square's distribution were 12 to 20 % here."""
    shares = 1 / np.arange(1, 61) ** 1.5
    alarms = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        drawn = (draw.choice(60, rows, p=shares / shares.sum()).astype(str).tolist() for rows in (80, 60))
        alarms += _compare_labels("", *drawn, seed).p < 0.05
    assert alarms <= 18


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


def _write(path: Path, texts: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    return path


def test_the_command(trained: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["compare", "--model", str(trained), "--cpu", "--data"]
    other = _write(tmp_path / "other.csv", ["", *(f"zebra xylophone number {number} " * 9 for number in range(60))])
    assert main([*flags, str(other)]) == 0
    out = capsys.readouterr().out
    assert "characters (median)" in out
    assert "differs" in out
    assert "1 rows without a text, or with one that recurs in both together, are left out" in out
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
    with pytest.raises(InputError, match="no text that occurs once in both tables together"):
        run(["--model", str(trained), "--data", str(table), "--cpu"], "classify compare")

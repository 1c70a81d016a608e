"""classify curve: the run is trained again on parts of its rows, and scored on the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from classify.commands.curve import run as run_curve
from classify.errors import InputError
from classify.training import curve
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config
from tests.support.tasks import CASES


@pytest.mark.parametrize(("name", "folds"), [("pair", 0), ("lists", 2), ("scores", 0)])
def test_the_command(name: str, folds: int, model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    case = CASES[name]
    data = case.write(tmp_path / "data.csv", 200)
    folder = train(make_config(model_folder, data, tmp_path / "out", folds=folds, **case.options))
    capsys.readouterr()
    assert main(["curve", "--model", str(folder), "--draws", "1"]) == 0
    out = capsys.readouterr().out
    found = json.loads((folder / "curve.json").read_text())
    rows = json.loads((folder / "run.json").read_text())["inspection"]["splits"]["train"]
    sizes = [size for share in (0.1, 0.25, 0.5) if (size := round(share * rows)) >= 16]
    assert [size for size, _ in found["points"]] == [*sizes, rows]
    assert "twice as many rows: " in out
    assert (folder / "report.html").read_text().count('id="curve"') == 1
    low, high = found["doubled"]["interval"]
    assert low <= found["doubled"]["score"] <= high


def test_the_fast_preset_drops_the_epochs_of_the_run(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its given epochs would make it another preset; and a run that is extended has no curve any more."""
    folder = train(make_config(model_folder, table, tmp_path / "out", num_train_epochs=1.0))
    before = (folder / "model.safetensors").stat().st_mtime
    configs = []
    monkeypatch.setattr(curve, "train", lambda config, inputs: configs.append(config) or train(config, inputs))
    assert main(["curve", "--model", str(folder), "--preset", "fast", "--draws", "1"]) == 0
    assert {config.training.num_train_epochs for config in configs} == {None}
    assert (folder / "model.safetensors").stat().st_mtime == before, "the run stays as it is"
    config = make_config(model_folder, table, folder, num_train_epochs=2.0, resume_from_checkpoint=True)
    assert not (train(config) / "curve.json").exists()


@pytest.mark.parametrize("kind", ["a column", "files", "a time"])
def test_the_splits_are_those_of_the_run(kind: str, model_folder: Path, tmp_path: Path) -> None:
    """However they were made: each part is scored on the same rows."""
    parts = ("test", "train", "validation", "train", "train")
    rows = [(*row, parts[number % 5], f"2024-01-01T{number:06}") for number, row in enumerate(tiny.table_rows(150))]
    header = {"a column": "text,label,split,x", "files": "text,label,a,b", "a time": "text,label,y,time"}[kind]
    (tmp_path / "my.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    more: dict[str, Any] = {}
    if kind == "files":
        for name, seed in (("eval_data", 5), ("test_data", 6)):
            more[name] = str(tiny.write_table(tmp_path / f"{name}.csv", tiny.table_rows(30, seed=seed)))
        more["split_column"] = "none"
    if kind == "a time":
        more |= {"split_by_time": "time", "split_column": "none", "time_format": "%Y-%m-%dT%f"}
    folder = train(make_config(model_folder, tmp_path / "my.csv", tmp_path / "out", max_steps=2, **more))
    assert main(["curve", "--model", str(folder), "--draws", "1"]) == 0
    assert json.loads((folder / "curve.json").read_text())["points"]


def test_a_run_whose_start_knew_the_rows_has_no_curve(model_folder: Path, table: Path, tmp_path: Path) -> None:
    first = train(make_config(model_folder, table, tmp_path / "first", max_steps=2))
    again = train(make_config(first, table, tmp_path / "again", max_steps=2))
    with pytest.raises(InputError, match=r"it started from .*first, which was trained on some of its rows"):
        run_curve(["--model", str(again)], "classify curve")


def test_a_table_that_changed_has_no_curve(model_folder: Path, tmp_path: Path) -> None:
    data = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(120))
    folder = train(make_config(model_folder, data, tmp_path / "out", max_steps=2))
    tiny.write_table(data, tiny.table_rows(121))
    with pytest.raises(InputError, match="the table has changed since the run"):
        run_curve(["--model", str(folder), "--draws", "1"], "classify curve")


def test_what_does_not_apply(tmp_path: Path, model_folder: Path, table: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        run_curve(["--model", str(tmp_path / "none")], "classify curve")
    folder = train(make_config(model_folder, table, tmp_path / "out", max_train_samples=20))
    with pytest.raises(InputError, match="too few for a curve"):
        run_curve(["--model", str(folder)], "classify curve")

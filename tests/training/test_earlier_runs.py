"""Run folders that an earlier version wrote still predict, and go on from their checkpoints.

`tests/fixtures/earlier_run` holds a tiny model, a table, a run of one epoch on them in fp32, and what that version
predicted for the whole table.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from classify.cli import main
from classify.training.inputs import check
from classify.training.run import train
from tests.support.runs import make_config, read_json

EARLIER = Path(__file__).parent.parent / "fixtures" / "earlier_run"
STEPS_PER_EPOCH = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in; the run named its files relative to it."""
    place = tmp_path / "earlier"
    shutil.copytree(EARLIER, place)
    monkeypatch.chdir(place)
    return place


def parse_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_predicts_what_the_earlier_version_predicted(folder: Path) -> None:
    words = ["predict", "--model", "run", "--data", "table.csv", "--out", "new.csv", "--cpu", "--precision", "fp32"]
    assert main(words) == 0
    for new, old in zip(parse_rows(folder / "new.csv"), parse_rows(folder / "predictions-of-all.csv"), strict=True):
        assert new.keys() == old.keys()
        assert new["predicted_label"] == old["predicted_label"]
        scores = [name for name in old if name.startswith("prob_") or name == "confidence"]
        assert [float(new[name]) for name in scores] == pytest.approx([float(old[name]) for name in scores], abs=1e-4)


def test_goes_on_from_the_earlier_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first epoch's steps stay in the log as they were, and the second one learns on from its weights."""
    log = folder / "run" / "train_log.jsonl"
    before = log.read_text(encoding="utf-8").splitlines()
    assert main(["train", "--resume", "run", "--epochs", "2"]) == 0
    assert f"resuming from step-{STEPS_PER_EPOCH:08}" in capsys.readouterr().out
    after = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert after[: len(before)] == list(map(json.loads, before))
    assert [line["step"] for line in after[len(before) :] if "loss" in line][-1] == 2 * STEPS_PER_EPOCH
    metrics = read_json(folder / "run" / "metrics.json")
    assert metrics["train"]["steps"] == 2 * STEPS_PER_EPOCH


def test_a_finished_earlier_run_is_left_as_it_is(folder: Path) -> None:
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    assert main(["train", "--resume", "run"]) == 0
    assert [path.read_bytes() for path in files] == before


def test_scores_on_rows_the_model_was_trained_on_are_noted(model_folder: Path, table: Path, tmp_path: Path) -> None:
    settings = {"num_train_epochs": 1.0, "contrastive_steps": 0}
    first = train(make_config(model_folder, table, tmp_path / "first", **settings, seed=1))
    for split_like, noted in ((None, True), (str(first), False)):
        inputs = check(make_config(first, table, tmp_path / "again", **settings, seed=2, split_like=split_like))
        assert any("was trained on" in note and "--split-like" in note for note in inputs.notes) == noted

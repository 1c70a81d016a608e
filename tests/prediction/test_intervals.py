"""predict --coverage for scores: an interval around each one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classify.cli import main
from classify.tables.read import read_table
from classify.training.run import train
from tests.support.runs import make_config
from tests.support.tasks import CASES


def test_intervals_of_scores(model_folder: Path, tmp_path: Path) -> None:
    table = CASES["scores"].write(tmp_path / "my.csv", 120)
    folder = train(make_config(model_folder, table, tmp_path / "out", num_train_epochs=0.0, folds=0))
    words = ["--model", str(folder), "--data", str(table), "--out", str(tmp_path / "p.csv"), "--cpu"]
    assert main(["predict", *words, "--coverage", "0.8"]) == 0
    predicted = read_table(str(tmp_path / "p.csv"))
    names = ("score_low", "predicted_score", "score_high")
    low, score, high = (np.array(predicted.column(name), float) for name in names)
    assert (low < score).all()
    assert high - score == pytest.approx(score - low, abs=1e-3)

"""A model that gives all texts the same probabilities is noticed, and its weights are not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import classify
from tests.support.runs import make_config, read_json


class Collapse(classify.TrainerCallback):
    """Sets the head to 0 in the last but one step of an epoch of three."""

    def on_step_end(self, state: classify.StepState) -> None:
        if state.step == 2:
            head = state.model.get_output_embeddings() or state.model.classifier
            with torch.no_grad():
                head.weight.zero_()


def train(model: Path, table: Path, out: Path, **changes: Any) -> Path:
    options = {"folds": 0, "head": "probe", "num_train_epochs": 3, **changes}
    return classify.train(make_config(model, table, out, **options), callbacks=[Collapse()])


def test_collapsed_weights_are_not_kept(model_folder: Path, table: Path, tmp_path: Path) -> None:
    metrics = read_json(train(model_folder, table, tmp_path / "out", num_train_epochs=1) / "metrics.json")
    assert metrics["best_epoch"] == 0
    assert metrics["train"]["collapsed_epoch"] == 1


def test_what_is_printed(model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(model_folder, table, tmp_path / "out")
    said = "training has collapsed by epoch 1: all validation texts get the same output"
    assert capsys.readouterr().out.count(f"note: {said}; use a lower --learning-rate\n") == 1
    assert any("training has collapsed" in finding["text"] for finding in read_json(out / "run.json")["findings"])
    classify.train(make_config(model_folder, table, tmp_path / "fine", folds=0, head="probe"))
    assert "has collapsed" not in capsys.readouterr().out

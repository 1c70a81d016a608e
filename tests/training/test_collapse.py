"""A model that gives all texts the same probabilities is noticed, and --on-collapse retry goes back once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import classify
from classify.errors import Interrupted
from tests.support.processes import run_distributed_test
from tests.support.runs import make_config, read_json, stop_at


class Collapse(classify.TrainerCallback):
    """Sets the head to 0 in the last but one step of an epoch of three, once, or whenever that comes."""

    def __init__(self, once: bool = True, step: int = 2):
        self.once, self.step, self.times = once, step, 0

    def on_step_end(self, state: classify.StepState) -> None:
        if state.step == self.step and not (self.once and self.times):
            self.times += 1
            head = state.model.get_output_embeddings() or state.model.classifier
            with torch.no_grad():
                head.weight.zero_()


def train(model: Path, table: Path, out: Path, *, once: bool = True, step: int = 2, **changes: Any) -> Path:
    options = {"folds": 0, "head": "probe", "logging_steps": 1, "num_train_epochs": 3, **changes}
    return classify.train(make_config(model, table, out, **options), callbacks=[Collapse(once, step)])


def read_log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]


def run_on_each_rank(model: Path, table: Path, out: Path) -> None:
    train(model, table, out, on_collapse="retry")


@pytest.mark.distributed
def test_a_collapsed_training_goes_back_once(model_folder: Path, table: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        out = tmp_path / str(processes)
        run_distributed_test(run_on_each_rank, processes, model_folder, table, out)
        assert read_json(out / "metrics.json")["train"]["collapsed_epoch"] == 1
        notes = [finding["text"] for finding in read_json(out / "run.json")["findings"]]
        assert sum("training has collapsed by epoch 1" in text and "went back" in text for text in notes) == 1
        rates = [line["learning_rate"] for line in read_log(out) if "learning_rate" in line]
        assert len(rates) == 9
        assert 0 < max(rates) <= 1e-3 / 2, rates  # the log is that of the second attempt
        newest = max((out / "checkpoints").glob("step-*"))
        assert read_json(newest / "state.json")["progress"]["retries"] == 1


def test_back_to_a_later_step_and_resumed_the_bits_are_the_same(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"head": "random", "on_collapse": "retry", "step": 5, "learning_rate": 1e-4}
    train(model_folder, table, tmp_path / "whole", **settings)
    steps = [line["step"] for line in read_log(tmp_path / "whole") if "learning_rate" in line]
    assert steps == list(range(1, 10))
    rates = [line["learning_rate"] for line in read_log(tmp_path / "whole") if "learning_rate" in line]
    assert rates[3] < rates[2] / 1.5  # from the first epoch's end on half of it
    with monkeypatch.context() as patch:
        stop_at(7, patch)
        with pytest.raises(Interrupted):
            train(model_folder, table, tmp_path / "parts", **settings)
    train(model_folder, table, tmp_path / "parts", resume_from_checkpoint=True, **settings)
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("parts", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_signal_at_the_collapse_saves_nothing_of_it(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"on_collapse": "retry", "num_train_epochs": 1, "learning_rate": 1e-4}
    train(model_folder, table, tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        with pytest.raises(Interrupted, match="after step 3, whose collapsed weights are not saved"):
            train(model_folder, table, tmp_path / "parts", **settings)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").glob("step-*")] == ["step-00000000"]
    train(model_folder, table, tmp_path / "parts", resume_from_checkpoint=True, **settings)
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("parts", "whole")]
    assert weights[0] == weights[1]


def test_nothing_better_to_go_back_to(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first epoch of a random head has collapsed, so its weights are no place to begin again."""
    train(model_folder, table, tmp_path / "out", head="random", on_collapse="retry")
    printed = capsys.readouterr().out
    assert "by epoch 1: all validation texts get the same output; use a lower --learning-rate\n" in printed
    assert "going back" not in printed


def test_the_second_attempt_counts(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends at the epoch at which the first one had collapsed."""
    settings: dict[str, Any] = {"num_train_epochs": 1, "on_collapse": "retry", "keep": "auto", "learning_rate": 1e-4}
    train(model_folder, table, tmp_path / "out", **settings)
    assert read_json(tmp_path / "out" / "metrics.json")["best_epoch"] == 1
    assert capsys.readouterr().out.count("has collapsed") == 1


def test_collapsed_weights_are_not_kept(model_folder: Path, table: Path, tmp_path: Path) -> None:
    train(model_folder, table, tmp_path / "out", num_train_epochs=1)
    assert read_json(tmp_path / "out" / "metrics.json")["best_epoch"] == 0


def test_what_is_printed(model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(model_folder, table, tmp_path / "continued")
    said = "note: training has collapsed by epoch 1: all validation texts get the same output; "
    assert f"{said}use a lower --learning-rate, or --on-collapse retry\n" in capsys.readouterr().out
    train(model_folder, table, tmp_path / "back", once=False, on_collapse="retry")
    printed = capsys.readouterr().out
    assert f"{said}going back once to the weights of the start, at half the learning rate" in printed
    assert printed.count("has collapsed") == 1
    classify.train(make_config(model_folder, table, tmp_path / "fine", folds=0, head="probe"))
    assert "has collapsed" not in capsys.readouterr().out

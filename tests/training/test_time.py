"""--max-minutes: the learning rate falls with the time, and the run ends at the limit with its scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.tasks import single_label
from classify.training import contrastive
from classify.training.run import train
from classify.training.terminal import Timeline
from tests.support.runs import data_and_model, make_config, make_trainer, read_json
from tests.support.worlds import start_world


def steps_of(folder: Path) -> int:
    return int(read_json(folder / "metrics.json")["train"]["steps"])


def test_too_late_already_is_one_step_and_a_result(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", max_minutes=1e-6))
    assert steps_of(out) == 1
    assert read_json(out / "run.json")["status"] == "finished"


def test_the_learning_rate_falls_with_the_time(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand epochs some steps fit; a resumed run with the same limit is finished."""
    clock = iter(range(1000))
    monkeypatch.setattr(Timeline, "elapsed", property(lambda _: float(next(clock))))
    settings = {"num_train_epochs": 1e3, "max_minutes": 20 / 60, "logging_steps": 1}
    config = make_config(model_folder, table, tmp_path / "out", **settings)
    out = train(config)
    assert 1 < steps_of(out) < 20
    lines = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[-1] < max(rates) / 2
    files = {path: path.read_bytes() for path in out.glob("*.json")}
    assert train(config.replace(resume_from_checkpoint=True)) == out
    assert files == {path: path.read_bytes() for path in out.glob("*.json")}, "finished; nothing is trained"
    assert read_json(out / "run.json")["status"] == "finished"


class _Clock:
    """Stands in for `time`; `spend` moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("first", "steps"), [(0.02, 100), (1.0, 51), (5.0, 1)])
def test_a_slow_first_step_on_pairs_cuts_no_others(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, first: float, steps: int
) -> None:
    """Of 100 steps that fit into 2 seconds."""
    data, model = data_and_model(model_folder)
    config, clock, taken = TrainingConfig(use_cpu=True), _Clock(), []
    monkeypatch.setattr(contrastive, "time", clock)

    def take(*_: object) -> torch.Tensor:
        clock.spend(0.02 if taken else first)
        taken.append(True)
        return torch.zeros(())

    monkeypatch.setattr(contrastive, "contrastive_step", take)
    strategy = make_trainer(model, data, config, start_world(config), 8).strategy
    result = contrastive.contrastive_warmup(strategy, data, single_label.make("abc"), 100, seconds=2.0)
    assert result.steps == pytest.approx(steps, abs=1)

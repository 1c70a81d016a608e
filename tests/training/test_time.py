"""--max-minutes: how long to train is planned from a measured rate, and the learning rate falls to its end then."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import TrainingConfig
from classify.errors import Interrupted
from classify.tasks.single_label import SingleLabel
from classify.training import contrastive, dry_run
from classify.training.run import train
from classify.training.timeline import Timeline
from tests.support.runs import data_and_model, make_config, make_trainer, read_json, stop_at


def steps_of(folder: Path) -> int:
    return int(read_json(folder / "metrics.json")["train"]["steps"])


def test_time_enough_for_all_epochs(model_folder: Path, table: Path, tmp_path: Path) -> None:
    assert steps_of(train(make_config(model_folder, table, tmp_path / "out", max_minutes=10.0))) == 6


def test_a_plan_that_fits_and_a_run_that_resumes_to_it(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100,000 epochs some fit; the checkpoint knows how many, whatever is measured later.

    The clock stands still: a model as tiny as this one spends its time on checkpoints, which no plan foresees.
    """
    monkeypatch.setattr(Timeline, "elapsed", property(lambda _: 6.0))

    def config(**changes: Any) -> Any:
        return make_config(
            model_folder, table, tmp_path / "out", num_train_epochs=1e5, max_minutes=8 / 60, logging_steps=1, **changes
        )

    with monkeypatch.context() as patch:
        stop_at(2, patch)
        with pytest.raises(Interrupted):
            train(config())
    with monkeypatch.context() as patch:
        patch.setattr(dry_run, "measure", lambda *_: pytest.fail("measured again"))
        out = train(config(resume_from_checkpoint=True))
    steps = steps_of(out)
    assert 3 <= steps < 5e4
    lines = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert len(rates) == steps
    assert rates[-1] == pytest.approx(max(rates) / (steps - math.ceil(0.1 * steps)), rel=0.01), "the last but zero"
    (guess,) = [guess for guess in read_json(out / "run.json")["guesses"] if guess["what"] == "epochs"]
    assert float(guess["value"]) == pytest.approx(steps / 3, rel=0.01)


def test_too_late_already_is_one_step_and_a_result(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", max_minutes=1e-6))
    assert steps_of(out) == 1
    assert read_json(out / "run.json")["status"] == "finished"


def test_a_rate_that_was_too_good_ends_at_the_limit(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is for thousands of epochs; the clock says otherwise after some steps."""
    clock = iter(range(1000))
    monkeypatch.setattr(Timeline, "elapsed", property(lambda _: float(next(clock))))
    monkeypatch.setattr(dry_run, "measure", lambda *_: 1e6)
    config = make_config(model_folder, table, tmp_path / "out", num_train_epochs=1e3, max_minutes=10.5 / 60)
    out = train(config)
    assert 1 < steps_of(out) <= 11
    files = {path: path.read_bytes() for path in out.glob("*.json")}
    config = config.replace(resume_from_checkpoint=True)
    assert train(config) == out
    assert files == {path: path.read_bytes() for path in out.glob("*.json")}, "finished; nothing is trained"
    assert read_json(out / "run.json")["status"] == "finished"


def test_steps_on_pairs_take_half_of_the_time(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = 100_000
    train(make_config(model_folder, table, tmp_path / "out", max_minutes=0.1, contrastive_steps=steps))
    pairs = re.search(
        r"contrastive: (\d+) steps of 100000 \(limited by --max-minutes\), loss [\d.]+, \d+ rows/s \(([\d.]+) s",
        capsys.readouterr().out,
    )
    assert pairs is not None
    assert int(pairs[1]) < steps
    assert float(pairs[2]) < 5.0, "6 seconds, of which the start has taken some"


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

    def take(trainer: contrastive.ContrastiveTrainer, *_: object) -> bool:
        clock.spend(0.02 if taken else first)
        taken.append(True)
        return True

    monkeypatch.setattr(contrastive.ContrastiveTrainer, "train_step", take)
    strategy = make_trainer(model, data, config, config.start(), 8).strategy
    result = contrastive.contrastive_warmup(strategy, data, SingleLabel("abc"), 100, seconds=2.0)
    assert result.steps == pytest.approx(steps, abs=1)


@pytest.mark.parametrize("batch_size", [19, 40, 56])
def test_a_small_last_batch_is_measured_as_part_of_an_epoch(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """Steps that take a tenth of a second each, but the first, which takes more."""
    data, model = data_and_model(model_folder)
    config, clock = TrainingConfig(use_cpu=True), _Clock()
    trainer = make_trainer(model, data, config, config.start(), batch_size)
    monkeypatch.setattr(dry_run, "time", clock)

    def take(*_: object) -> tuple[float, ...]:
        clock.spend(0.1 if clock.now else 3.0)
        return (0.0, 0.0)

    monkeypatch.setattr(trainer, "train_step", take)
    rows = len(data.rows)
    assert dry_run.measure(trainer) == pytest.approx(rows / (0.1 * math.ceil(rows / batch_size)), rel=0.01)

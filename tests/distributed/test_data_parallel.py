"""DataParallel without GPUs: two replicas on the CPU, see tests.support.replicas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classify
from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.data.sampler import BatchSampler
from classify.data.tokenize import TokenizedSplit
from classify.distributed.world import World
from classify.evaluation.inference import compute_logits
from classify.launch.launch import Launch
from classify.launch.plan import DevicePlan, Hardware, plan_devices
from classify.training.schedule import StepEnd
from classify.training.strategies.base import Strategy
from classify.training.strategies.registry import make_strategy
from tests.support.replicas import two_device_world
from tests.support.runs import LEARNING_RATE, ROWS, SEED, STEPS, data_and_model, make_trainer
from tests.support.worlds import start_world

BATCH = 7  # cut unequally between two, and the last one of an epoch holds a single row


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> World:
    return two_device_world(monkeypatch)


def train(model_folder: Path, world: World, packed: bool, micro: int) -> tuple[Strategy, TokenizedSplit, list[StepEnd]]:
    data, model = data_and_model(model_folder)
    model.use_packing(packed)
    config = TrainingConfig(
        use_cpu=True, learning_rate=LEARNING_RATE, max_steps=STEPS, gradient_accumulation_steps=micro, seed=SEED,
        logging_steps=1,
    )  # fmt: skip
    trainer = make_trainer(model, data, config, world, BATCH)
    events = list(trainer.steps())
    return trainer.strategy, data, events


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("micro", [1, 2])
def test_the_same_weights_as_one_device(two_devices: World, model_folder: Path, packed: bool, micro: int) -> None:
    """The loss is weighted by rows: a mean of the replicas' means would differ where they hold unequal numbers."""
    strategy, data, events = train(model_folder, two_devices, packed, micro)
    other, _, alone = train(model_folder, start_world(TrainingConfig(use_cpu=True)), packed, micro)
    two, one = strategy.classifier, other.classifier
    a, b = (
        torch.cat([p.detach().flatten() for n, p in model.model.named_parameters() if not n.endswith("key.bias")])
        for model in (two, one)
    )
    assert float((a - b).norm() / b.norm()) <= 1e-5
    np.testing.assert_allclose(
        [e.loss for e in events if e.loss], [e.loss for e in alone if e.loss], rtol=2e-5, atol=2e-6
    )
    sizes: Any = strategy.module.sizes
    rows = BatchSampler(ROWS, BATCH, SEED)
    assert sum(map(sum, sizes)) == sum(len(step.indices) for step in rows.steps(0, rows.compute_end(99, STEPS)))
    assert any(len(set(pair)) == 2 for pair in sizes), "some batches are cut unequally"
    assert [1] in sizes, "the last batch of an epoch has a row for one replica only"
    np.testing.assert_allclose(
        compute_logits(two, data.tokens, data.rows, two_devices),
        compute_logits(one, data.tokens, data.rows, two_devices),
        atol=1e-4,
    )


def test_logits_come_back_in_the_order_of_the_batches(two_devices: World, model_folder: Path) -> None:
    data, model = data_and_model(model_folder)
    model.use_packing(True)
    strategy = make_strategy(model, TrainingConfig(), two_devices)
    strategy.setup()
    module: Any = strategy.module.eval()
    batches = [model.batch(data.tokens, rows) for rows in (np.arange(0, 5), np.arange(5, 7))]
    with torch.no_grad():
        got = strategy.forward(batches)
        want = model(model.batch(data.tokens, np.arange(7)))
    assert module.sizes == [[5, 2]]
    assert (got - want).abs().max() < 1e-6


@pytest.mark.slow
def test_a_whole_run_says_that_ddp_is_faster(
    two_devices: World,
    table: Path,
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, and the folder tells what was done."""
    training = TrainingConfig(output_dir=str(tmp_path / "out"), max_steps=3, batch_size=32, report_to="none")
    monkeypatch.setattr("classify.training.run._start", lambda settings, launch: two_devices)
    folder = classify.train(RunConfig(DataConfig(data=str(table)), ModelConfig(model=str(model_folder)), training))
    printed = capsys.readouterr().out
    assert printed.count("--nproc 2 (or torchrun) is faster") == 1
    assert "2 devices with DataParallel" in printed
    run = json.loads((folder / "run.json").read_text())
    assert (run["strategy"], run["status"]) == ("dp", "finished")
    assert [entry["rows_per_step"] for entry in run["topology"]] == [32]


def test_a_plan_with_one_device_is_no_data_parallel() -> None:
    plan: DevicePlan = plan_devices(Launch(), Hardware("cuda", 1))
    assert World(dataclasses.replace(plan), torch.device("cpu")).replicas == 1


def test_rows_per_device_are_counted_for_each_of_them(two_devices: World) -> None:
    config = TrainingConfig(per_device_train_batch_size=8)
    assert config.rows_per_step(two_devices.num_devices) == 16

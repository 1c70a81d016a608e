"""DataParallel without GPUs: two replicas on the CPU, see tests.support.replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler
from classify.data.tokenize import TokenizedSplit
from classify.distributed.world import World
from classify.evaluation.inference import compute_logits
from classify.training.progress import StepEnd
from classify.training.strategies.base import Strategy
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


@pytest.mark.parametrize(("packed", "micro"), [(True, 1), (False, 2)], ids=["packed", "padded"])
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


def test_rows_per_device_are_counted_for_each_of_them(two_devices: World) -> None:
    config = TrainingConfig(per_device_train_batch_size=8)
    assert config.rows_per_step(two_devices.num_devices) == 16

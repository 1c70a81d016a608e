"""BatchNorm over ranks: 2 processes with 2 rows each have the statistics, and the weights, of 1 process with 4."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.evaluation.inference import compute_logits
from classify.modeling.classifier import Classifier
from tests.support import tiny
from tests.support.processes import run_distributed_test
from tests.support.runs import SEED, data_and_model, make_trainer

pytestmark = pytest.mark.distributed


def with_batch_norm(model: Classifier) -> Classifier:
    """The tiny BERT with a BatchNorm over texts between its pooled output and its classes."""
    torch.manual_seed(SEED)
    norm = torch.nn.BatchNorm1d(model.hidden_size)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    model.model.classifier = torch.nn.Sequential(norm, model.model.classifier)
    return model


def train_with_batch_norm(model_folder: Path, results: Path, way: str) -> None:
    """One step of 4 rows, and one of 8; then steps of 3, of which one of two ranks gets two, and the last of 4 none.

    By itself a rank needs two rows, so several get steps of 8 only.
    """
    # With AdamW's usual epsilon a gradient that is rounding alone (a key's bias) would move as far as any other.
    settings = {"use_cpu": True, "seed": SEED, "learning_rate": 1e-3, "adam_epsilon": 1e-3}
    config = TrainingConfig(sync_batch_norm=way == "synchronized", **settings)
    several = config.world_size > 1 and not config.sync_batch_norm
    world = config.start()
    for batch_size, steps in ((8, 1),) if several else ((8, 1), (4, 1), (3, 6)):
        data, model = data_and_model(model_folder)
        with_batch_norm(model).use_packing(True)
        trainer = make_trainer(model, data, dataclasses.replace(config, max_steps=steps), world, batch_size)
        list(trainer.steps())
        logits = compute_logits(model, data.tokens, data.rows, world)
        if world.is_main:
            tensors = {name: tensor.numpy() for name, tensor in model.model.state_dict().items()}
            np.savez(results / f"{way}-{world.world_size}-{batch_size}.npz", logits=logits, **tensors)
    if config.sync_batch_norm:  # a rank of two rows has two micro-batches, one of one row a single one
        data, model = data_and_model(model_folder)
        with_batch_norm(model).use_packing(True)
        config = dataclasses.replace(config, max_steps=2, gradient_accumulation_steps=2)
        trainer = make_trainer(model, data, config, world, 3)
        assert all(event.metrics is None or np.isfinite(event.metrics.loss) for event in trainer.steps())
    world.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Weights, buffers and logits by "way-processes-rows of a step"."""
    folder = tmp_path_factory.mktemp("norms")
    model = tiny.make_model(folder / "model", spread=0.1)
    for way, world in (("alone", 1), ("alone", 2), ("synchronized", 2), ("synchronized", 4)):
        run_distributed_test(train_with_batch_norm, world, model, folder, way)
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


STATISTICS = ("classifier.0.running_mean", "classifier.0.running_var", "classifier.0.num_batches_tracked", "logits")


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of two runs: of all weights together, of each statistic, and of the logits."""
    assert set(one) == set(other)
    parts = [[name for name in one if name not in STATISTICS], *([name] for name in STATISTICS)]
    joined = [[np.concatenate([run[name].ravel() for name in part]) for part in parts] for run in (one, other)]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(*joined, strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_synchronized_processes_are_one(results: dict[str, dict[str, Any]], world: int) -> None:
    """Of a step of three rows the ranks have different numbers, and with four ranks one has none."""
    # Six steps divide by the small variances of three rows each, which enlarges rounding.
    for rows, bound in ((8, 1e-5), (4, 1e-5), (3, 1e-4)):
        assert difference(results[f"synchronized-{world}-{rows}"], results[f"alone-1-{rows}"]) < bound


def test_without_it_each_rank_has_its_own_statistics(results: dict[str, dict[str, Any]]) -> None:
    assert difference(results["alone-2-8"], results["alone-1-8"]) > 1e-3

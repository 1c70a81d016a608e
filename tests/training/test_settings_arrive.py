"""Settings reach what they are for, and numbers are what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.data.split_rows import cap_rows
from classify.evaluation.bootstrap import macro_f1_interval
from classify.evaluation.metrics import INDEPENDENT
from classify.tasks import single_label
from classify.training import contrastive
from classify.training.optimizer import make_optimizer
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import data_and_model, make_config, make_trainer
from tests.support.worlds import start_world

TASK = single_label.make("abc")


@pytest.mark.parametrize(
    ("setting", "value", "key", "expected"),
    [
        ("adam_beta1", 0.5, "betas", (0.5, 0.999)),
        ("adam_beta2", 0.5, "betas", (0.9, 0.5)),
        ("adam_epsilon", 1e-3, "eps", 1e-3),
        ("learning_rate", 0.25, "lr", 0.25),
        ("weight_decay", 0.5, "weight_decay", 0.5),
    ],
)
def test_the_optimizers_settings(model_folder: Path, setting: str, value: float, key: str, expected: object) -> None:
    _, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True, **{setting: value})
    groups = make_optimizer(model, dict(model.named_parameters()), config, torch.device("cpu")).param_groups
    assert groups[0][key] == expected


def weights_after_pairs(folder: Path, **changes: Any) -> list[torch.Tensor]:
    data, model = data_and_model(folder)
    config = TrainingConfig(use_cpu=True, learning_rate=1e-3, **changes)
    contrastive.contrastive_warmup(make_trainer(model, data, config, start_world(config), 8).strategy, data, TASK, 2)
    return [parameter.detach().clone() for parameter in model.model.parameters()]


def test_the_seed_draws_the_pairs(model_folder: Path) -> None:
    first, again, other = (weights_after_pairs(model_folder, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


def test_the_rate_of_steps_on_pairs_rises_and_falls(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True, learning_rate=1e-3)
    strategy = make_trainer(model, data, config, start_world(config), 8).strategy
    step = strategy.optimizer_step
    monkeypatch.setattr(strategy, "optimizer_step", lambda rate: (rates.append(rate), step(rate)))
    contrastive.contrastive_warmup(strategy, data, TASK, 20)
    highest = rates.index(max(rates))
    assert 0 < highest < 5
    assert max(rates) <= 1e-3
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[-1] < 1e-4


def test_the_seed_chooses_the_rows_of_a_cap_and_the_resamples() -> None:
    labels, rows = np.arange(100) % 3, np.arange(100)
    first, again, other = (cap_rows(labels, 30, seed=seed).tolist() for seed in (1, 1, 2))
    assert first == again != other
    targets, predicted = labels, np.where(rows % 4, labels, 0)
    one, same, another = (macro_f1_interval(targets, predicted, seed, INDEPENDENT) for seed in (1, 1, 2))
    assert one == same != another


@pytest.mark.parametrize(
    ("beside", "change"),
    [({}, {"freeze_embeddings": True}), ({"lora": True}, {"lora_alpha": 2}), ({}, {"label_separator": "#"})],
)
def test_settings_that_a_whole_run_shows(
    model_folder: Path, tmp_path: Path, beside: dict[str, Any], change: dict[str, Any]
) -> None:
    rows = [(text, f"{label}#all" if n % 3 else label) for n, (text, label) in enumerate(tiny.table_rows(60))]
    table = tiny.write_table(tmp_path / "my.csv", rows)
    weights = []
    for name, settings in (("without", {}), ("with", change)):
        config = make_config(model_folder, table, tmp_path / name, max_steps=2, folds=0, **beside, **settings)
        weights.append((train(config) / "model.safetensors").read_bytes())
    assert weights[0] != weights[1]

"""What a run is estimated to take, before its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from classify.modeling.loading import freeze, load_pretrained
from classify.training import estimate
from classify.training.estimate import Estimate, Rates
from classify.training.inputs import check
from tests.support.runs import make_config

STEPS = {"num_train_epochs": 2.0, "contrastive_steps": 10, "folds": 0}


@pytest.fixture
def expect(model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that estimates a run with these settings, on a device of known rates."""
    monkeypatch.setattr(estimate, "measure_rates", lambda *_: Rates(1e9, 1e9, 0.0))

    def run(length: float = 20, **settings: Any) -> Estimate:
        inputs = check(make_config(model_folder, table, tmp_path / "out", **{**STEPS, **settings}))
        with inputs.config.training.start() as world:
            return estimate.estimate(inputs, world, length)

    return run


def test_parts_grow_with_what_they_do(expect: Any) -> None:
    once = expect().seconds
    assert expect(num_train_epochs=4.0).seconds["epochs"] == pytest.approx(2 * once["epochs"])
    assert expect(contrastive_steps=20).seconds["contrastive steps"] == pytest.approx(2 * once["contrastive steps"])
    longer = expect(length=40).seconds
    assert all(longer[part] > once[part] for part in once)
    assert expect(folds=3).seconds["contrastive steps"] == pytest.approx(4 * once["contrastive steps"])
    assert expect(head="random").seconds["head"] == 0
    assert sum(once.values()) == expect().total_seconds > expect().fast_seconds > 0


def test_steps_that_are_given_count(expect: Any) -> None:
    """A table of 96 training rows in batches of 32 takes three steps an epoch."""
    batch = {"batch_size": 32, "folds": 0}
    assert expect(max_steps=6, **batch).seconds["epochs"] == pytest.approx(
        expect(num_train_epochs=2.0, **batch).seconds["epochs"]
    )


def test_without_steps_it_is_the_fast_preset(expect: Any) -> None:
    for folds in (0, 4):
        expected = expect(num_train_epochs=0.0, contrastive_steps=0, folds=folds)
        assert expected.total_seconds == pytest.approx(expected.fast_seconds)


def test_a_kernel_takes_time_to_start(expect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "measure_rates", lambda *_: Rates(1e15, 1e15, 1e-5))
    once = expect().seconds["epochs"]
    assert once > 0
    assert expect(length=40).seconds["epochs"] == pytest.approx(once, rel=0.01)


@pytest.mark.parametrize("frozen", [{}, {"freeze_embeddings": True}, {"freeze_layers": 1}])
def test_weights_are_counted_from_the_names_in_the_file(
    model_folder: Path, table: Path, tmp_path: Path, frozen: dict[str, Any]
) -> None:
    """The model itself has the head besides."""
    inputs = check(make_config(model_folder, table, tmp_path / "out", **STEPS, **frozen))
    model = load_pretrained(inputs.model, inputs.task.labels, seed=0, pad_token_id=0).model
    freeze(model, embeddings=frozen.get("freeze_embeddings", False), layers=frozen.get("freeze_layers", 0))
    head = sum(parameter.numel() for parameter in model.classifier.parameters())
    left = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    every = sum(parameter.numel() for parameter in model.parameters())
    assert estimate._count_weights(inputs) == (every - head - left, left)
    assert (left > 0) == bool(frozen)


def test_rates_of_this_device_are_measured() -> None:
    rates = estimate.measure_rates(torch.device("cpu"), 64, torch.float32, 100_000)
    assert rates.operations > 1e6
    assert rates.bytes > 1e6
    assert 0 < rates.launch < 1

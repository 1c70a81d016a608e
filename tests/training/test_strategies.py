"""The strategies that the flags offer: each is implemented, and layers on several devices learn as on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from classify.distributed.world import World
from classify.errors import InputError
from classify.launch.devices import STRATEGIES
from classify.launch.launch import Launch
from classify.launch.plan import plan_devices
from classify.training.run import train
from classify.training.strategies.base import Strategy
from classify.training.strategies.registry import find_strategy
from tests.support.runs import make_config


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_is_implemented(name: str) -> None:
    plan = replace(plan_devices(Launch(), use_cpu=True), strategy=name)
    assert issubclass(find_strategy(World(plan, torch.device("cpu"))), Strategy)


def test_synchronized_batch_norm_needs_gpus(model_folder: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--sync-batch-norm: torch's SyncBatchNorm works on GPUs alone"):
        train(make_config(model_folder, table, tmp_path / "out", sync_batch_norm=True))


def test_on_one_device_all_layers_are_there(model_folder: Path, table: Path, tmp_path: Path) -> None:
    runs = {name: train(make_config(model_folder, table, tmp_path / name, strategy=name)) for name in ("none", "model")}
    one, other = ((folder / "model.safetensors").read_bytes() for folder in runs.values())
    assert one == other


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_layers_on_two_gpus(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"use_cpu": False, "precision": "fp32", "dropout": 0.0}
    runs = {
        name: train(make_config(model_folder, table, tmp_path / name, strategy=name, **settings))
        for name in ("none", "model")
    }
    assert " on cuda:1 (the devices take turns" in capsys.readouterr().out
    one, other = (load_file(folder / "model.safetensors") for folder in runs.values())
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4

"""Losses that are not finite never reach the weights; checkpoints within an epoch by time."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import classify
from classify.errors import ClassifyError, InputError
from classify.training import callbacks
from tests.support.runs import make_config, read_json


class BadSteps:
    """Cross-entropy that is NaN in some calls, on rank 1 alone where there is one."""

    def __init__(self, *steps: int):
        self.steps, self.calls = steps, 0

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        losses = functional.cross_entropy(logits, targets, reduction="none")
        is_here = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
        return losses * math.nan if is_here and self.calls in self.steps else losses


def train(model: Path, table: Path, out: Path, loss: BadSteps, **changes: Any) -> Path:
    options = {"folds": 0, "head": "random", "logging_steps": 1, **changes}
    return classify.train(make_config(model, table, out, **options), loss=loss)


def test_training_stops_at_the_step_itself(model_folder: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(ClassifyError, match=r"step 3: the gradient.s norm is nan at the learning rate "):
        train(model_folder, table, tmp_path / "out", BadSteps(3), logging_steps=100)
    assert not list((tmp_path / "out" / "checkpoints").glob("step-*"))


def test_checkpoints_by_time(model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an epoch of a few seconds none; with no time between them, and whatever they cost, one a step."""
    counts = {}
    for name, minutes in (("default", 10.0), ("often", 1e-9)):
        monkeypatch.setattr(callbacks, "_SAVING_SHARE", 0.02 if name == "default" else math.inf)
        out = train(model_folder, table, tmp_path / name, BadSteps(), save_minutes=minutes, save_total_limit=100)
        counts[name] = len(list((out / "checkpoints").glob("step-*")))
    steps = read_json(tmp_path / "often" / "metrics.json")["train"]["steps"]
    assert counts == {"default": 2, "often": steps}
    assert steps > 2


def test_saving_within_an_epoch_stays_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint that took 30 s the next one is due after 25 minutes, not 10."""
    clock = [0.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock[0])
    context: Any = type("", (), {"config": type("", (), {"training": type("", (), {"save_minutes": 10.0})})})
    saver = callbacks.Checkpointer(context)
    clock[0] = 601.0
    assert saver.is_due()
    saver._saved_at, saver._cost = 601.0, 30.0
    clock[0] = 601.0 + 1_499.0
    assert not saver.is_due()
    clock[0] = 601.0 + 1_501.0
    assert saver.is_due()


@pytest.mark.parametrize("head", ["probe", "random"])
def test_a_model_without_finite_outputs_is_named(model_folder: Path, table: Path, tmp_path: Path, head: str) -> None:
    """Its weights are damaged, or its activations overflow; not an internal error after the first steps."""
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if name.endswith("attention.output.dense.weight"))
    save_file({**weights, name: weights[name] * math.inf}, broken / "model.safetensors", metadata={"format": "pt"})
    config = make_config(broken, table, tmp_path / "out", folds=0, head=head)
    with pytest.raises(InputError, match=r"--model .*broken: its outputs are not finite in fp32; give another model"):
        classify.train(config)

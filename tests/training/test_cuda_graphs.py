"""Recorded passes train as passes that are computed one kernel after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.modeling.packing import MOST_ROUNDED, pad_packed, round_tokens
from classify.modeling.precision import choose_precision
from classify.training.contrastive import contrastive_step
from classify.training.strategies.cuda_graphs import GraphStrategy
from classify.training.trainer import Trainer
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.processes import SCRIPT, free_port
from tests.support.runs import data_and_model, make_trainer
from tests.support.worlds import start_world

GPU = torch.device("cuda")


def test_batches_have_few_sizes() -> None:
    sizes = [round_tokens(tokens) for tokens in range(1, 2 * MOST_ROUNDED)]
    rounded = sizes[:MOST_ROUNDED]
    assert len(set(rounded)) < 40
    assert all(tokens <= size <= max(64, 1.25 * tokens + 64) for tokens, size in enumerate(rounded, start=1))
    assert sizes[MOST_ROUNDED:] == list(range(MOST_ROUNDED + 1, 2 * MOST_ROUNDED))


def test_padding_to_a_size_changes_no_logit(model_folder: Path) -> None:
    data, model = data_and_model(model_folder)
    model.use_packing(True)
    model.rounds_tokens = True
    plain = model.eval().batch(data.tokens, data.rows[:19])
    rounded = model.train().batch(data.tokens, data.rows[:19])
    assert plain.boundaries is not None
    assert rounded.boundaries is not None
    assert rounded.boundaries.tokens == round_tokens(plain.boundaries.tokens) > plain.boundaries.tokens
    model.eval()
    torch.testing.assert_close(model(rounded), model(plain))
    assert pad_packed(plain, plain.boundaries.tokens) is plain


def make(folder: Path, **settings: Any) -> Trainer:
    data, model = data_and_model(folder)
    model.use_packing(True)
    config = TrainingConfig(max_steps=40, logging_steps=1, learning_rate=1e-3, seed=3, strategy="none", **settings)
    model.to(GPU)
    model.install_kernels(GPU)
    model.use_packing(True)  # by the kernels
    model.set_precision(choose_precision("bf16", GPU))
    return make_trainer(model, data, config, start_world(config), 19)


def losses(trainer: Trainer) -> list[float]:
    return [event.loss or 0.0 for event in trainer.steps()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}], ids=["whole steps", "micro-batches"])
def test_replayed_steps_are_those_computed_kernel_by_kernel(
    model_folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same dropout: a replay draws the numbers that its step's seed gives."""
    recorded = make(model_folder, **settings)
    got = losses(recorded)
    assert isinstance(recorded.strategy, GraphStrategy)
    assert recorded.strategy.recordings
    monkeypatch.setattr("classify.training.strategies.cuda_graphs._MOST_GRAPHS", 0)
    plain = make(model_folder, **settings)
    want = losses(plain)
    assert isinstance(plain.strategy, GraphStrategy)
    assert not plain.strategy.recordings
    assert sum(got[-5:]) < 0.8 * sum(got[:5])
    assert got[:8] == pytest.approx(want[:8], abs=2e-3)  # atomic additions of flash attention differ, later by more
    assert got == pytest.approx(want, abs=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_means_are_those_of_the_texts_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an architecture that averages the tokens of each text."""
    folder, found = tiny.make_model(tmp_path / "model", "modernbert-mean"), []
    for most in (48, 0):
        monkeypatch.setattr("classify.training.strategies.cuda_graphs._MOST_GRAPHS", most)
        trainer = make(folder)
        found.append(losses(trainer))
        assert isinstance(trainer.strategy, GraphStrategy)
        assert bool(trainer.strategy.recordings) == bool(most)
    assert found[0][:8] == pytest.approx(found[1][:8], abs=5e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_contrastive_steps_leave_the_head_of_later_ones_alone(model_folder: Path) -> None:
    from classify.tasks import single_label

    trainer = make(model_folder)
    strategy, task = trainer.strategy, single_label.make(["a", "b", "c"])
    rows = torch.arange(16).numpy()
    strategy.module.train()
    head = strategy.classifier.output_layer.weight.detach().clone()
    found = []
    for _ in range(12):
        found.append(float(contrastive_step(strategy, trainer.data, task, rows, 1e-3)))
    assert isinstance(strategy, GraphStrategy)
    assert len(strategy.recordings) == 1
    assert found[-1] < 0.8 * found[0]
    assert torch.equal(strategy.classifier.output_layer.weight, head)
    strategy.reset_optimizer()
    found = losses(trainer)
    assert sum(found[-5:]) < 0.9 * sum(found[:5])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_passes_of_a_process_behind_a_launcher(
    model_folder: Path, table: Path, tmp_path: Path, python: Callable[..., CompletedProcess[str]]
) -> None:
    """Its gradients are exchanged between the graphs, with nobody here: the weights of a process alone."""
    flags = [
        "--data",
        str(table),
        "--model",
        str(model_folder),
        "--epochs",
        "2",
        "--batch-size",
        "32",
        "--dropout",
        "0",
    ]
    folders = [tmp_path / name for name in ("alone", "launched")]
    for folder, place in zip(folders, [{}, launched_alone()], strict=True):
        done = python(SCRIPT, *flags, "--output-dir", str(folder), **place)
        assert done.returncode == 0, done.stderr
        assert "CUDA graphs: off" not in done.stdout
    assert difference(*folders) < 1e-2  # bf16; atomic additions of flash attention differ


def launched_alone() -> dict[str, str]:
    """The variables of torchrun for one process."""
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

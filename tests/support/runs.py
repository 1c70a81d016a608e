"""Runs of a tiny model within the test's own process: their settings, and what to look at in their folders."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.data.sampler import BatchSampler
from classify.data.tokenize import TokenizedSplit, load_tokenizer, tokenize
from classify.distributed.world import World
from classify.modeling.classifier import Classifier
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.tasks.base import Loss
from classify.tasks.losses import CrossEntropy
from classify.training.log import Log
from classify.training.progress import StepEnd
from classify.training.strategies.registry import make_strategy
from classify.training.trainer import Trainer
from tests.support import tiny

# What the output folder of a run holds.
FILES = {
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "metrics.json",
    "run.json",
    "train_log.jsonl",
    "predictions.csv",
    "evaluation.parquet",
    "features.safetensors",
    "split.parquet",
    "classify.json",
    "checkpoints",
    "tensorboard",
}
# The same where the command has run.
COMMAND_FILES = FILES | {"report.html", "README.md", "explanations.json"}
EPOCHS = 8  # of `worse_in_the_end`
ROWS = 57  # with a batch of 8, the last one of an epoch holds a single row
SEED = 3
STEPS = 20
LEARNING_RATE = 1e-3


def make_config(model: Path, table: Path, out: Path, **changes: Any) -> RunConfig:
    """A run of two epochs in batches of 32 on the tiny model, without steps on pairs, changed as asked."""
    data = {key: changes.pop(key) for key in list(changes) if key in DataConfig.__dataclass_fields__}
    start = {key: changes.pop(key) for key in list(changes) if key in ModelConfig.__dataclass_fields__}
    training = {"num_train_epochs": 2.0, "learning_rate": 1e-3, "use_cpu": True, "logging_steps": 5, "verbose": True}
    training |= {"contrastive_steps": 0, **changes}
    if "per_device_train_batch_size" not in changes:
        training.setdefault("batch_size", 32)
    return RunConfig(
        DataConfig(data=str(table), **data),
        ModelConfig(model=str(model), **start),
        TrainingConfig(output_dir=str(out), **training),
    )


def make_trainer(
    model: Classifier,
    data: TokenizedSplit,
    config: TrainingConfig,
    world: World,
    batch_size: int,
    loss: Loss | None = None,
) -> Trainer:
    """Training of a model that is in its place, begun as a run begins it."""
    batches = BatchSampler(len(data.rows), batch_size, config.seed)
    trainer = Trainer(make_strategy(model, config, world), data, batches, loss or CrossEntropy())
    trainer.strategy.setup()
    return trainer


def worse_in_the_end(folder: Path) -> dict[str, Any]:
    """Settings of a run whose best epoch is not the last: learning is of no use for evaluation rows of other labels.

    Without dropout, so that it is the same run on every processor.
    """
    crossed = tiny.write_table(folder / "crossed.csv", tiny.crossed_rows(30, seed=1))
    steps = {"num_train_epochs": float(EPOCHS), "learning_rate": 5e-4, "lr_scheduler_type": "constant", "seed": 2}
    return {"eval_data": str(crossed), "dropout": 0.0, "head": "random", "keep": "best", "calibrate": "none", **steps}


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a real signal while the given step is being logged."""
    at_step(step, monkeypatch, lambda: signal.raise_signal(number))


def at_step(step: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something in the middle of a run, while it logs a step."""
    log_step = Log.on_step_end

    def log_and_act(log: Log, trainer: Trainer, event: StepEnd) -> None:
        log_step(log, trainer, event)
        if trainer.progress.step == step:
            action()

    monkeypatch.setattr(Log, "on_step_end", log_and_act)


def data_and_model(folder: Path, off: Container[str] = ()) -> tuple[TokenizedSplit, Classifier]:
    """The rows and the model that every case begins with, with all kernels but those `off`; dropout 0."""
    rows = tiny.table_rows(ROWS)
    labels = sorted({label for _, label in rows})
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in rows], 64)
    numbers = np.array([labels.index(label) for _, label in rows])
    model = load_pretrained(resolve_model(str(folder)), labels, seed=SEED, pad_token_id=0, dropout=0.0)
    model.install_kernels(torch.device("cpu"), off)
    return TokenizedSplit(tokens, np.arange(ROWS), numbers), model

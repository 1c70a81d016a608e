"""The program on XLA, as on a TPU: on XLA's own CPU device, in the environment that `make test-xla` makes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.comparison import SETTINGS, difference
from tests.support.processes import SCRIPT
from tests.support.runs import make_trainer, read_json
from tests.support.worlds import start_world

pytest.importorskip("torch_xla", reason="torch_xla is not here; make test-xla sets up an environment with it")


@pytest.fixture
def train(
    python: Callable[..., CompletedProcess[str]], model_folder: Path, table: Path, tmp_path: Path
) -> Callable[..., tuple[Path, str]]:
    """Train in a folder on XLA's CPU device; returns the folder and what was printed."""
    (tmp_path / "settings.yaml").write_text(SETTINGS + "epochs: 2\n")

    def run(name: str, *flags: str, code: int = 0, **environment: str) -> tuple[Path, str]:
        words = ["--config", "settings.yaml", "--data", str(table), "--model", str(model_folder), "--verbose"]
        done = python(
            SCRIPT, *words, "--output-dir", name, *flags, timeout=220,
            **{"PJRT_DEVICE": "CPU", **environment},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return tmp_path / name, done.stdout + done.stderr

    return run


def test_the_weights_are_those_of_the_cpu(train: Callable[..., tuple[Path, str]]) -> None:
    """Padded to a few shapes, compiled, one process: the same result as packed and not compiled."""
    folder, printed = train("xla")
    assert "device: xla:0 (local_rank is -1" in printed
    assert "packing: off; padded (to powers of two, to avoid recompilation" in printed
    assert read_json(folder / "run.json")["topology"][0]["device"] == "xla:0"
    other, _ = train("cpu", "--cpu")
    assert difference(folder, other) < 1e-5
    scores = [read_json(path / "metrics.json")["test"]["accuracy"] for path in (folder, other)]
    assert scores[0] == scores[1]


def test_steps_on_pairs_are_those_of_the_cpu(train: Callable[..., tuple[Path, str]]) -> None:
    steps = ("--head", "probe", "--contrastive-steps", "3", "--max-steps", "1")
    assert difference(train("xla", *steps)[0], train("cpu", *steps, "--cpu")[0]) < 1e-5


def test_a_run_goes_on_from_a_checkpoint_of_the_cpu(train: Callable[..., tuple[Path, str]]) -> None:
    """At a constant rate, since a shorter run has another schedule: the weights are those of a run on XLA alone."""
    constant = ("--lr-scheduler-type", "constant")
    train("moved", "--cpu", "--epochs", "1", *constant)
    folder, printed = train("moved", "--resume", *constant)
    assert "resuming from step-00000003" in printed
    whole, _ = train("whole", *constant)
    assert difference(folder, whole) < 1e-5


def test_nothing_is_compiled_once_the_shapes_are_known(model_folder: Path) -> None:
    """The second epoch of the same rows, with dropout and a falling learning rate, meets no new program."""
    os.environ["PJRT_DEVICE"] = "CPU"

    from classify.config.schema import TrainingConfig
    from tests.support.runs import data_and_model

    config = TrainingConfig(max_steps=24, learning_rate=1e-3, seed=3, logging_steps=100)
    world = start_world(config)
    assert world.device.type == "xla"
    data, model = data_and_model(model_folder)
    model.use_packing(False, world.accelerator)
    model.to(world.device)
    trainer = make_trainer(model, data, config, world, 19)
    seen = [compilations() for _ in trainer.steps()]
    # 57 rows of up to 27 tokens: batches of 16 or 32 tokens, of 8, 16 or 32 rows.
    print(json.dumps(seen))
    assert seen[-1] - seen[11] <= 1
    assert seen[-1] < 24


def compilations() -> int:
    """Programs compiled so far in this process."""
    import torch_xla.debug.metrics

    return int(torch_xla.debug.metrics.counter_value("UncachedCompile") or 0)


def test_several_processes_are_refused(train: Callable[..., tuple[Path, str]]) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    _, printed = train("two", code=2, **place)
    assert "on XLA devices one process trains" in printed

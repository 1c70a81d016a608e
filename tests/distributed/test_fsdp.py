"""`--strategy fsdp`: each process holds a part of the weights, and the folder is the one that ddp writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.processes import run_ranks
from tests.support.runs import read_json

pytestmark = pytest.mark.distributed

STEPS = 6  # two epochs of three


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, table: Path, model_folder: Path) -> Path:
    """A folder with the same run once as ddp/ and once as fsdp/, every second step saved."""
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "c.yaml").write_text("dropout: 0.0\nadam_epsilon: 1.0e-5\nsave_total_limit: 9\n")
    for strategy in ("ddp", "fsdp"):
        train(folder, table, model_folder, strategy, strategy)
    return folder


def train(folder: Path, table: Path, model: Path, strategy: str, out: str, *more: str) -> str:
    """Train on two ranks; returns what the first printed. Neither says anything on stderr."""
    printed = run_ranks(
        2, "run_classify.py", "--data", str(table), "--model", str(model), "--cpu",
        "--contrastive-steps", "4", "--epochs", "2", "--batch-size",
        "32", "--learning-rate", "1e-3", "--save-steps", "2", "--config", "c.yaml", "--report-to", "none",
        "--strategy", strategy, "--output-dir", out, *more, folder=folder,
    )  # fmt: skip
    assert printed[1] == ""
    return printed[0]


def distance(one: Path, other: Path) -> float:
    """Norm of the difference of all tensors of two files, as a share of the second's norm."""
    import torch
    from safetensors.torch import load_file

    a, b = load_file(one), load_file(other)
    assert {name: tensor.shape for name, tensor in a.items()} == {name: tensor.shape for name, tensor in b.items()}
    flat_a, flat_b = (torch.cat([t.flatten().double() for _, t in sorted(x.items())]) for x in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


@pytest.mark.parametrize(
    "file",
    [
        "model.safetensors",
        f"checkpoints/step-{STEPS:08d}/model.safetensors",
        f"checkpoints/step-{STEPS:08d}/optimizer.safetensors",
    ],
)
def test_the_same_weights_as_ddp(runs: Path, file: str) -> None:
    assert distance(runs / "fsdp" / file, runs / "ddp" / file) <= 1e-5


def test_the_same_folder_as_ddp(runs: Path) -> None:
    names = {way: sorted(str(p.relative_to(runs / way)) for p in (runs / way).rglob("*")) for way in ("ddp", "fsdp")}
    assert names["fsdp"] == names["ddp"]
    assert read_json(runs / "fsdp" / "run.json")["strategy"] == "fsdp"
    from transformers import AutoModelForSequenceClassification

    AutoModelForSequenceClassification.from_pretrained(runs / "fsdp")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("fsdp", "ddp"), ("ddp", "fsdp")])
def test_a_run_goes_on_in_the_other_strategy(
    runs: Path, table: Path, model_folder: Path, before: str, after: str
) -> None:
    copy = runs / f"{before}-{after}"
    shutil.copytree(runs / before, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if checkpoint.name != "step-00000002":
            shutil.rmtree(checkpoint)
    record = read_json(copy / "run.json")
    (copy / "run.json").write_text(json.dumps({**record, "status": "interrupted"}))
    printed = train(runs, table, model_folder, after, copy.name, "--resume")
    assert "resuming from step-00000002" in printed
    assert distance(copy / "model.safetensors", runs / "ddp" / "model.safetensors") <= 1e-5
    last = f"checkpoints/step-{STEPS:08d}/model.safetensors"
    assert distance(copy / last, runs / "ddp" / last) <= 1e-5

"""ZeRO, stages 1 and 2, by DeepSpeed itself on CPUs: the weights and the checkpoints of any other mode."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.comparison import SETTINGS, difference, drift
from tests.support.processes import SCRIPT, run, run_python_ranks
from tests.support.runs import read_json

pytestmark = pytest.mark.distributed
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed; make test-deepspeed does it"
)


Train = Callable[..., Path]


@pytest.fixture
def train(model_folder: Path, table: Path, tmp_path: Path) -> Train:
    """Train in a folder with so many processes, under ZeRO where a stage is given."""

    def run(name: str, *flags: str, processes: int = 2, stage: int | None = None, **file: Any) -> Path:
        (tmp_path / "settings.yaml").write_text(SETTINGS)
        (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": stage}, **file}))
        words = ["--config", "settings.yaml", "--data", str(table), "--model", str(model_folder), "--cpu"]
        words += ["--output-dir", name, *(["--deepspeed", "zero.json"] if stage is not None else []), *flags]
        run_python_ranks(processes, SCRIPT, *words, folder=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path))
        return tmp_path / name

    return run


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_the_weights_and_the_checkpoint_are_those_of_ddp(train: Train, stage: int) -> None:
    flags = ("--epochs", "2", "--gradient-accumulation-steps", "2", "--layerwise-lr-decay", "0.9")
    zero, plain = train("zero", *flags, stage=stage), train("plain", *flags)
    assert read_json(zero / "run.json")["strategy"] == "deepspeed"
    assert difference(zero, plain) < 1e-5
    last = Path("checkpoints") / "step-00000006"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert difference(zero / last, plain / last, file) < 1e-5
    assert (zero / "predictions.csv").read_text().count("\n") == (plain / "predictions.csv").read_text().count("\n")


@needs_deepspeed
def test_a_run_goes_on_from_ddp_to_zero_and_back(train: Train) -> None:
    whole = train("whole", "--epochs", "3", "--lr-scheduler-type", "constant")
    steps = ("--lr-scheduler-type", "constant", "--resume")
    for epochs, stage in (("1", None), ("2", 2), ("3", None)):
        moved = train("moved", "--epochs", epochs, *steps, stage=stage)
    assert difference(moved, whole) < 1e-5


@needs_deepspeed
def test_half_weights_by_the_file_end_in_full_precision(train: Train, model_folder: Path) -> None:
    """What is frozen keeps its bits, and the folder is fp32."""
    half = train("half", "--epochs", "1", "--freeze-layers", "1", stage=1, bf16={"enabled": True})
    plain = train("plain", "--epochs", "1", "--freeze-layers", "1")
    assert read_json(half / "run.json")["precision"] == "bf16"
    # DeepSpeed computes norms in bf16, too; a run that did not train would be at 1.
    assert 0 < drift(half, plain, model_folder) < 0.4
    before, after = (load_file(folder / "model.safetensors") for folder in (model_folder, half))
    frozen = [name for name in before if "layer.0." in name]
    assert frozen
    for name in frozen:
        np.testing.assert_array_equal(after[f"bert.{name}"], before[name])


def test_what_cannot_be_is_told(model_folder: Path, table: Path, tmp_path: Path) -> None:
    words = ["run_classify.py", "--data", str(table), "--model", str(model_folder), "--nproc", "2"]
    file = tmp_path / "zero.json"

    def told(content: str | None, *flags: str) -> str:
        if content is not None:
            file.write_text(content)
        done = run(tmp_path, *words, "--deepspeed", str(file), *flags)
        assert done.returncode == 2
        return done.stderr

    assert "cannot be read" in told(None)
    assert "not a DeepSpeed JSON file" in told("stage 2")
    assert "must have stage 1 or 2 here. Got 3 instead; --strategy fsdp" in told('{"zero_optimization": {"stage": 3}}')
    said = told('{"zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam"}}')
    assert "AdamW is this program's own; drop 'optimizer'" in said
    said = told(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": true}}'
    )
    assert "'offload_optimizer' takes an optimizer of DeepSpeed's own; drop it" in said
    assert "not a DeepSpeed JSON file" in told('{"bf16": true}')
    if importlib.util.find_spec("deepspeed") is None:
        assert "the package deepspeed is not installed; pip install deepspeed, or drop the flag" in said
    assert "--deepspeed and --strategy fsdp do not go together" in told("{}", "--strategy", "fsdp")
    alone = [word for word in words if word not in ("--nproc", "2")]
    done = run(tmp_path, *alone, "--deepspeed", str(file))
    assert "--deepspeed needs one process per device" in done.stderr

"""Model parallelism on a CPU: frozen layers on disk give the weights of a run that has them all in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

import classify.training.run as run
from classify.errors import InputError, Interrupted
from classify.files import TEMPORARY
from classify.training.strategies.device_map import DispatchedLayers, choose_places
from tests.support import tiny
from tests.support.runs import make_config, read_json, stop_at

ROOM = 0.6 / 1024  # GiB: holds what is trained of the model below, and not all of it


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of six layers."""
    return tiny.make_model(tmp_path_factory.mktemp("deep") / "bert", num_hidden_layers=6)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_pairs_are_trained_on_wherever_the_layers_lie(deep: Path, table: Path, tmp_path: Path) -> None:
    changes = {"freeze_layers": 5, "batch_size": 8, "contrastive_steps": 4, "num_train_epochs": 0.0}
    folders = [
        run.train(make_config(deep, table, tmp_path / name, **changes, **spread))
        for name, spread in (("whole", {}), ("spread", {"strategy": "model", "device_memory": ROOM}))
    ]
    assert weights(folders[0]) == weights(folders[1])
    untrained = run.train(make_config(deep, table, tmp_path / "none", **{**changes, "contrastive_steps": 0}))
    assert weights(folders[0]) != weights(untrained)


@pytest.mark.slow
def test_frozen_layers_on_disk_change_no_bit(
    deep: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, **changes: Any) -> Any:
        return make_config(deep, table, tmp_path / name, freeze_layers=5, batch_size=8, **changes)

    whole = run.train(config("whole"))
    spread = {"strategy": "model", "device_memory": ROOM}
    capsys.readouterr()
    folder = run.train(config("spread", **spread))
    printed = capsys.readouterr().out
    assert "with model parallelism (local_rank is -1; layers of one model spread over main memory and disk" in printed
    assert "on disk, " in printed
    assert weights(folder) == weights(whole)
    assert (folder / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
    assert not list(folder.glob(f"{TEMPORARY}*"))
    assert read_json(folder / "run.json")["strategy"] == "model"
    with monkeypatch.context() as patch:
        stop_at(14, patch)
        with pytest.raises(Interrupted):
            run.train(config("cut", **spread))
    assert not list((tmp_path / "cut").glob(f"{TEMPORARY}*"))
    # Where the layers lay is not part of a run: it goes on in memory.
    assert weights(run.train(config("cut", resume_from_checkpoint=True))) == weights(whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_frozen_layers_in_main_memory_beside_a_gpu(
    deep: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    settings = {"freeze_layers": 5, "batch_size": 8, "use_cpu": False, "precision": "fp32", "dropout": 0.0}
    whole = run.train(make_config(deep, table, tmp_path / "whole", strategy="none", **settings))
    capsys.readouterr()
    spread = {"strategy": "model", "device_memory": ROOM}
    folder = run.train(make_config(deep, table, tmp_path / "spread", **spread, **settings))
    assert " on cpu, " in capsys.readouterr().out
    one, other = (load_file(path / "model.safetensors") for path in (folder, whole))
    assert max(float((one[name] - other[name]).abs().max()) for name in other) < 1e-4


def test_what_is_trained_must_fit(deep: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--strategy model: the trained layers need about \d+ MiB, but cpu may use"):
        run.train(make_config(deep, table, tmp_path / "out", strategy="model", device_memory=ROOM / 8))


def test_placing_and_taking_back(deep: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(deep, num_labels=3).eval()
    ids = torch.arange(12).view(2, 6) + 5
    before, stored = model(input_ids=ids).logits, {name: t.clone() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.5" in name or "classifier" in name)
    placement = DispatchedLayers(model, choose_places(model, ["cpu"], tokens=10, length=5, gib=0.28 / 1024), tmp_path)
    assert "disk" in placement.places.values()
    assert any(parameter.is_meta for parameter in model.parameters())
    left = placement.offloaded_params()
    assert left
    assert all(torch.equal(tensor, stored[name]) for name, tensor in left.items())
    torch.testing.assert_close(model(input_ids=ids).logits, before)
    placement.undo()
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(model(input_ids=ids).logits, before)


def test_the_plan_says_what_memory_it_takes(
    command: Callable[..., CompletedProcess[str]], deep: Path, table: Path
) -> None:
    for flags in ((), ("--opt-level", "O2"), ("--strategy", "model")):
        done = command("classify", "train", "--data", str(table), "--model", str(deep), "--plan", "--cpu", *flags)
        assert done.returncode == 0, done.stderr
        assert "memory: about " in done.stdout
        assert "AdamW" in done.stdout

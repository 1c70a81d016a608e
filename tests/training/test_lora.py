"""LoRA: what it trains, what it leaves alone, and a folder that knows nothing of it."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from classify.errors import InputError, Interrupted
from classify.training.run import train
from tests.support.runs import make_config, read_json, stop_at


def lora_config(model: Path, table: Path, out: Path, **changes: Any) -> Any:
    config = make_config(model, table, out, learning_rate=1e-3, **changes)
    return config.replace(lora=True, lora_rank=2, head="random")


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(lora_config(model_folder, table, tmp_path_factory.mktemp("lora") / "out"))


def test_linear_layers_moved_by_a_product_of_rank_two_and_the_rest_not_at_all(
    finished: Path, model_folder: Path
) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (model_folder, finished))
    after = {name.removeprefix("bert."): value for name, value in after.items()}
    shared = [name for name in after if name in before and "pooler" not in name]
    linear = [name for name in shared if "layer." in name and after[name].ndim == 2]
    assert len(linear) == 12, "six of each of the two layers"
    for name in shared:
        if name in linear:
            values = torch.linalg.svdvals(after[name].double() - before[name].double())
            assert values[1] > 1e-6, name
            assert values[2] < 1e-3 * values[0], name
        else:
            assert torch.equal(after[name], before[name]), name
    assert not torch.equal(after["pooler.dense.weight"], before["pooler.dense.weight"])


def test_the_folder_is_stock_and_scores_what_it_says(finished: Path) -> None:
    """The adapters are merged: a stock model gives the probabilities that stand in predictions.csv."""
    from transformers import AutoModelForSequenceClassification, pipeline

    _, loading = AutoModelForSequenceClassification.from_pretrained(finished, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert not list(finished.glob("adapter*"))
    run = read_json(finished / "run.json")
    assert any(guess["what"] == "weights" and "trained" in guess["value"] for guess in run["guesses"])
    with (finished / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = pipeline("text-classification", model=str(finished), top_k=None, device="cpu")([r["text"] for r in rows])
    for row, own in zip(rows, scores, strict=True):
        assert {s["label"]: s["score"] for s in own} == pytest.approx(
            {name.removeprefix("prob_"): float(p) for name, p in row.items() if name.startswith("prob_")}, abs=1e-5
        )
    right = sum(row["predicted_label"] == row["label"] for row in rows)
    assert right / len(rows) == read_json(finished / "metrics.json")["test"]["accuracy"]


def test_a_resumed_run_ends_with_the_same_bits(
    finished: Path, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        with pytest.raises(Interrupted):
            train(lora_config(model_folder, table, out))
    train(lora_config(model_folder, table, out, resume_from_checkpoint=True))
    one, two = (load_file(folder / "model.safetensors") for folder in (finished, out))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_another_rank_is_not_resumed(model_folder: Path, table: Path, finished: Path) -> None:
    config = lora_config(model_folder, table, finished, resume_from_checkpoint=True, num_train_epochs=9.0)
    with pytest.raises(InputError, match="lora was"):
        train(config.replace(lora_rank=4))


def test_without_peft_one_line_says_so(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(InputError, match=r"--lora: the package peft \(extra lora\) is not installed; pip install peft"):
        train(lora_config(model_folder, table, tmp_path / "out"))


def test_what_contradicts_lora_is_refused(model_folder: Path, table: Path, tmp_path: Path) -> None:
    config = lora_config(model_folder, table, tmp_path / "out", strategy="fsdp", freeze_layers=1)
    with pytest.raises(InputError) as caught:
        config.validate()
    assert len(caught.value.faults) == 2

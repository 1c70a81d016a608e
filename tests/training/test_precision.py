"""Apex's levels: what each becomes, what it does to a tiny task, and that nothing of them reaches the output folder."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import classify.training.run as run
from classify.config.run_config import RunConfig
from classify.config.schema import TrainingConfig
from classify.distributed.torch_settings import get_products, set_products
from classify.errors import InputError, Interrupted
from classify.modeling.precision import (
    FP32,
    Precision,
    agree_on_precision,
    choose_cpu_precision,
    choose_precision,
    for_prediction,
)
from classify.prediction.predictor import load_classifier
from classify.training.strategies.half_weights import MasterWeights
from classify.training.trainer import Trainer
from tests.support import tiny
from tests.support.runs import data_and_model, make_config, make_trainer, read_json, stop_at
from tests.support.worlds import start_world

CPU = torch.device("cpu")
GPU = torch.device("cuda")
STEPS = 30


def trained(folder: Path, device: torch.device = CPU, **settings: Any) -> tuple[list[float], Trainer]:
    """Losses of thirty steps on 57 rows, batch 19, and the trainer behind them."""
    data, model = data_and_model(folder)
    model.use_packing(True)
    steps = {"max_steps": STEPS, "logging_steps": 1, "learning_rate": 1e-3, "seed": 3}
    config = TrainingConfig(use_cpu=device == CPU, strategy="none", **steps, **settings)
    model.to(device)
    model.set_precision(choose_precision(config.precision, device, config.opt_level))
    trainer = make_trainer(model, data, config, start_world(config), 19)
    return [event.loss or 0.0 for event in trainer.steps()], trainer


@pytest.mark.parametrize(
    ("level", "requested", "device", "name", "scaled"),
    [
        ("O0", "auto", GPU, "fp32", False),
        ("O1", "auto", GPU, "fp16", True),
        ("O2", "auto", GPU, "fp16 weights, fp32 masters", True),
        ("O3", "auto", GPU, "fp16 throughout", False),
        ("O1", "bf16", GPU, "bf16", False),
        ("O2", "bf16", GPU, "bf16 weights, fp32 masters", False),
        ("O0", "fp32", CPU, "fp32", False),
        ("O1", "auto", CPU, "bf16", False),
        ("O2", "auto", CPU, "bf16 weights, fp32 masters", False),
        ("O3", "bf16", CPU, "bf16 throughout", False),
    ],
)
def test_each_level_says_what_it_became(
    level: str, requested: str, device: torch.device, name: str, scaled: bool
) -> None:
    precision = choose_precision(requested, device, level)
    assert precision.name == name
    assert f"--opt-level {level}" in precision.why
    assert precision.scales_gradients is scaled
    if device == CPU and level != "O0" and requested == "auto":
        assert "a CPU has no fast fp16" in precision.why


def test_wide_models_train_in_bf16_and_are_scored_in_full_precision() -> None:
    for width, name in ((384, "bf16"), (256, "bf16"), (128, "fp32")):
        precision = choose_cpu_precision(width)
        assert precision.name == name
        result = []
        for training in (True, False):
            with precision.autocast(training):
                result.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        assert result == [torch.bfloat16 if name == "bf16" else torch.float32, torch.float32]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("choose", "words", "half"),
    [
        (choose_precision, ("bf16", GPU), False),
        (choose_precision, ("fp16", GPU), False),
        (choose_precision, ("fp16", GPU, "O1"), False),
        (choose_precision, ("bf16", GPU, "O2"), False),  # once its weights are whole again
        (choose_precision, ("bf16", CPU), False),
        (choose_precision, ("auto", GPU), False),
        (for_prediction, ("auto", GPU), False),
        (for_prediction, ("bf16", GPU), True),
        (for_prediction, ("fp32", GPU), False),
    ],
)
def test_scores_are_computed_in_full_precision_unless_asked(
    choose: Callable[..., Precision], words: tuple[Any, ...], half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any device; `classify predict --precision bf16` asks for it."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    precision = choose(*words)
    assert isinstance(precision.autocast(training=False), contextlib.nullcontext) is not half
    assert isinstance(precision.autocast(training=True), contextlib.nullcontext) is (precision.half_dtype is None)


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"opt_level": "O2"}])
def test_what_stands_in_the_files_is_what_the_folder_gives(
    model_folder: Path, table: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    _agree(run.train(make_config(model_folder, table, tmp_path / "out", max_steps=3, **settings)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_scores_of_a_gpu_are_those_of_the_folder_on_a_cpu(model_folder: Path, table: Path, tmp_path: Path) -> None:
    _agree(run.train(make_config(model_folder, table, tmp_path / "out", max_steps=3, use_cpu=False)))


def _agree(out: Path) -> None:
    """A run's predictions.csv and its folder, on the CPU in full precision."""
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classifier = load_classifier(str(out), use_cpu=True)
    given = classifier.probabilities([row["text"] for row in rows])
    written = [[float(row[f"prob_{label}"]) for label in classifier.labels] for row in rows]
    assert np.abs(given - written).max() < 1e-5
    assert [row["predicted_label"] for row in rows] == [classifier.labels[best] for best in given.argmax(axis=1)]


@pytest.mark.parametrize("processor", ["avx512_bf16", "avx2"])
def test_a_run_begun_on_one_processor_goes_on_on_another(
    model_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    processor: str,
) -> None:
    """In the precision it began in; and what stands in its files is what the folder gives in full precision."""
    out, begun = tmp_path / "out", "fp32" if processor == "avx2" else "bf16"
    monkeypatch.setattr("classify.modeling.precision._WIDE", 1)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {processor: True}, raising=False)
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        with pytest.raises(Interrupted):
            run.train(make_config(model_folder, table, out))
    assert read_json(out / "run.json")["precision"] == begun
    capsys.readouterr()
    other = "avx512_bf16" if processor == "avx2" else "avx2"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {other: True}, raising=False)
    run.train(make_config(model_folder, table, out, resume_from_checkpoint=True))
    record = read_json(out / "run.json")
    assert record["precision"] == begun
    assert begun in [guess["value"] for guess in record["guesses"] if guess["what"] == "precision"]
    assert f"precision: {begun} (as in the resumed run; --precision)" in capsys.readouterr().out
    _agree(out)


def test_padded_texts_train_in_full_precision_unless_asked(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classify.modeling.precision._WIDE", 1)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    run.train(make_config(model_folder, table, tmp_path / "out", max_steps=1, packing="padded"))
    assert read_json(tmp_path / "out" / "run.json")["precision"] == "fp32"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["bert", "modernbert", "modernbert-mean"])
def test_half_precision_fills_batches_up_and_changes_no_logit(tmp_path: Path, kind: str, training: bool) -> None:
    data, model = data_and_model(tiny.make_model(tmp_path / "model", kind))
    model.use_packing(True)
    model.train(training)
    plain = model.batch(data.tokens, data.rows[:19])
    model.set_precision(choose_precision("bf16", CPU))
    filled = model.batch(data.tokens, data.rows[:19])
    assert plain.boundaries is not None
    assert filled.boundaries is not None
    assert plain.boundaries.tokens % 16
    assert filled.tensors["input_ids"].shape[1] == filled.boundaries.tokens == -(-plain.boundaries.tokens // 16) * 16
    model.precision = FP32  # as exact as the comparison
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(model(filled), model(plain))


def test_a_batch_norm_sees_no_filling(model_folder: Path) -> None:
    _, model = data_and_model(model_folder)
    model.model.norm = torch.nn.BatchNorm1d(2)
    model.set_precision(choose_precision("bf16", CPU))
    assert model._token_multiple == 1


def test_half_precision_of_a_cpu_is_not_fp16() -> None:
    with pytest.raises(InputError, match="--precision fp16 needs a GPU"):
        choose_precision("fp16", CPU, "O1")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"opt_level": "O0", "precision": "bf16"}, "--opt-level O0 and --precision bf16 contradict"),
        ({"opt_level": "O2", "precision": "fp32"}, "--opt-level O2 and --precision fp32 contradict"),
        ({"opt_level": "O2", "strategy": "fsdp"}, "--opt-level O2 and --strategy fsdp contradict"),
        ({"opt_level": "O4"}, "--opt-level must be one of O0, O1, O2, O3"),
    ],
)
def test_contradictions_are_told(values: dict[str, str], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        RunConfig.from_values({"data": "x.csv", **values})


def test_loss_curves_of_the_levels(model_folder: Path) -> None:
    """O0 is fp32 to the last bit; the others differ from it by rounding, the more the less is kept in fp32."""
    plain, _ = trained(model_folder, precision="fp32")
    for level, most in (("O0", 0.0), ("O1", 0.15), ("O2", 0.15), ("O3", 0.4)):
        curve, _ = trained(model_folder, opt_level=level)
        assert (curve == plain) is (level == "O0")
        assert sum(curve[-3:]) < 0.8 * sum(curve[:3])
        assert curve == pytest.approx(plain, rel=0, abs=most), level


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "settings", [{"opt_level": "O1"}, {"opt_level": "O2"}, {"opt_level": "O3", "precision": "bf16"}]
)
def test_levels_on_a_gpu(settings: dict[str, Any], model_folder: Path) -> None:
    plain, _ = trained(model_folder, GPU, precision="fp32")
    curve, _ = trained(model_folder, GPU, **settings)
    assert sum(curve[-3:]) < 0.8 * sum(curve[:3])
    assert max(abs(a - b) for a, b in zip(curve, plain, strict=True)) < 0.4


def test_masters_keep_what_half_weights_would_lose(model_folder: Path) -> None:
    _, trainer = trained(model_folder, opt_level="O2")
    weights = trainer.strategy.weights
    assert isinstance(weights, MasterWeights)
    for name, parameter in trainer.classifier.model.named_parameters():
        if "LayerNorm" in name:
            assert parameter.dtype is torch.float32, name
            assert parameter not in weights.masters, name
        else:
            master = weights.masters[parameter]
            assert (parameter.dtype, master.dtype) == (torch.bfloat16, torch.float32), name
            assert torch.equal(parameter, master.bfloat16()), name
    # A step below half a unit of bfloat16's last place is lost on the weight and kept by its master.
    weight, master = next(iter(weights.masters.items()))
    with torch.no_grad():
        master.fill_(1.0)
        weights.round()
        master.add_(1e-3)
    weights.round()
    assert torch.equal(weight, torch.ones_like(weight))
    assert float(master.detach().min()) > 1


def test_masters_add_the_gradients_of_micro_batches_in_full_precision(model_folder: Path) -> None:
    """A sum in bfloat16 would have bfloat16's bits."""
    _, trainer = trained(model_folder, opt_level="O2", gradient_accumulation_steps=4)
    assert isinstance(trainer.strategy.weights, MasterWeights)
    trainer.compute_gradients(trainer.batches.step_at(0))
    masters = trainer.strategy.weights.masters
    gradients = [master.grad for master in masters.values() if master.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert not all(torch.equal(gradient, gradient.bfloat16().float()) for gradient in gradients)
    assert all(weight.grad is None for weight in masters)


def test_half_throughout_has_no_full_precision_anywhere(model_folder: Path) -> None:
    _, trainer = trained(model_folder, opt_level="O3")
    assert isinstance(trainer.strategy.weights, MasterWeights)
    assert not trainer.strategy.weights.masters
    assert {parameter.dtype for parameter in trainer.classifier.model.parameters()} == {torch.bfloat16}
    assert {state["exp_avg"].dtype for state in trainer.strategy.optimizer.state.values()} == {torch.bfloat16}


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_what_is_frozen_keeps_its_bits(level: str, model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Half precision rounds what is computed with; what is not trained is saved as it was."""
    settings = {"max_steps": 2, "opt_level": level, "freeze_layers": 2, "head": "random"}
    after = load_file(run.train(make_config(model_folder, table, tmp_path / "out", **settings)) / "model.safetensors")
    before = load_file(model_folder / "model.safetensors")
    same = [name for name in before if torch.equal(before[name], after[f"bert.{name}"])]
    assert [name for name in before if name not in same] == ["pooler.dense.bias", "pooler.dense.weight"]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_run_ends_stock_and_resumes_to_the_last_bit(
    level: str, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = functools.partial(make_config, model_folder, table, num_train_epochs=2.0, opt_level=level)
    whole = run.train(config(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(Interrupted):
            run.train(config(tmp_path / "cut"))
    cut = run.train(config(tmp_path / "cut", resume_from_checkpoint=True))
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert {weight.dtype for weight in load_file(whole / "model.safetensors").values()} == {torch.float32}
    assert read_json(whole / "run.json")["precision"].startswith("bf16 ")


def test_tf32_is_for_training_alone() -> None:
    """Scores are those of the saved folder, which `classify predict` computes in full precision."""
    precision, before = Precision("tf32", None, "", "cuda"), get_products()
    set_products(("tf32", "tf32"))
    try:
        for training, products in ((True, "tf32"), (False, "ieee")):
            with precision.autocast(training):
                assert get_products() == (products, products)
        with dataclasses.replace(precision, rounds_scores=True).autocast(training=False):
            assert get_products() == ("tf32", "tf32")
    finally:
        set_products(before)


def test_bf16_is_refused_where_a_gpu_would_emulate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(InputError, match=r"--precision bf16: this GPU computes it by emulation.* use fp16 or fp32"):
        choose_precision("bf16", GPU)
    assert choose_precision("auto", GPU).name == "fp32"


@pytest.mark.parametrize(
    ("lacking", "before", "name"),
    [
        ((), None, "bf16"),
        ((), "fp32", "fp32"),  # a run that began on an older card
        ((0,), "bf16", "fp32"),  # which has no bf16 to keep: the checkpoint's identity refuses it
        ((1,), None, "fp32"),  # another rank's card
        ((1,), "fp32", "fp32"),
    ],
)
def test_all_ranks_train_in_one_precision(
    monkeypatch: pytest.MonkeyPatch, lacking: tuple[int, ...], before: str | None, name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: 0 not in lacking)
    world: Any = SimpleNamespace(all_reduce_any=lambda flag: flag or 1 in lacking)
    agreed = agree_on_precision(choose_precision("auto", GPU), world, before)
    assert (agreed.name, agreed.half_dtype) == (name, torch.bfloat16 if name == "bf16" else None)
    requested = choose_precision("fp16", GPU)
    assert agree_on_precision(requested, world, before) is requested

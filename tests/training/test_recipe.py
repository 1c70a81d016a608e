"""The recipe: what it depends on, and that whatever is given stands."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from classify.config.recipe import FOLDS, Recipe, choose_recipe, takes_fewer_folds
from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.training.inputs import check
from classify.training.run import train
from tests.support import tiny
from tests.support.findings import decisions_of
from tests.support.runs import make_config, read_json

SIZES = [8, 50, 300, 1_000, 2_000, 3_999, 4_000, 9_999, 10_000, 50_000, 1_000_000]


def test_more_rows_are_seen_less_often_in_larger_batches() -> None:
    """Except tables so small that contrastive steps replace epochs."""
    for contrastive, sizes in ((False, SIZES), (True, SIZES[2:])):
        for fewer, more in itertools.pairwise(choose_recipe(rows, 384, contrastive=contrastive) for rows in sizes):
            assert fewer.num_train_epochs * fewer.learning_rate >= more.num_train_epochs * more.learning_rate
            assert fewer.batch_size <= more.batch_size
    assert choose_recipe(299, 384) == Recipe(8, 0, 5e-5, 100)
    assert [choose_recipe(rows, 384).contrastive_steps for rows in (8, 25, 40, 50, 60)] == [50, 50, 80, 100, 100]
    assert choose_recipe(240, 384, labelled=300) == choose_recipe(3_999, 384) == Recipe(16, 3, 7e-5, 50)
    assert choose_recipe(2_000, 768) == Recipe(8, 3, 3e-5, 100), "measured with narrow encoders only"
    assert choose_recipe(4_000, 384) == choose_recipe(4_000, 384, contrastive=False) == Recipe(16, 3, 5e-5, 0)
    assert choose_recipe(1_000_000, 384) == Recipe()
    assert choose_recipe(2_000, 1_024).learning_rate < choose_recipe(2_000, 384).learning_rate
    assert choose_recipe(2_000, 384, lora=True).learning_rate == 5e-4
    assert choose_recipe(2_000, 384, preset="fast") == Recipe(16, 0, 7e-5, 0)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"loss": "focal", "sampler": "balanced", "learning_rate": 1e-4}, ["--loss", "--sampler"]),
        ({"preset": "fast", "lora": True, "learning_rate": 1e-4}, ["--learning-rate", "--lora"]),
        ({"loss": "focal", "num_train_epochs": 1.0}, []),
        ({"class_weights": "balanced"}, []),
        ({"gradient_accumulation_steps": 2, "save_steps": 50}, ["--gradient-accumulation-steps", "--save-steps"]),
        ({"max_grad_norm": 0.5, "gradient_checkpointing": True}, []),  # contrastive steps use both
        (
            {"max_grad_norm": 0.5, "gradient_checkpointing": True, "preset": "fast"},
            ["--gradient-checkpointing", "--max-grad-norm"],
        ),
    ],
)
def test_flags_of_steps_that_are_not_taken_are_named(given: dict[str, Any], flags: list[str]) -> None:
    config = RunConfig(DataConfig(data="a.csv")).replace(**given).resolve(100, 384)
    notes = config.notes_without_effect(fits_head=config.model.head != "keep")
    named = re.findall(r"--[a-z-]+", "".join(notes).partition(";")[0])
    assert sorted(named) == flags


PAIRS, STEPS = ", 50 contrastive steps", ", --contrastive-steps"
WHY = "400 training rows, hidden size 32"


@pytest.mark.parametrize(
    ("given", "chosen", "flags"),
    [
        ({}, f"batch size 16, 3 epochs, learning rate 7e-05{PAIRS}", f"--batch-size, --epochs, --learning-rate{STEPS}"),
        (
            {"num_train_epochs": 2.0},
            f"batch size 16, learning rate 7e-05{PAIRS}",
            f"--batch-size, --learning-rate{STEPS}",
        ),
        (
            {"per_device_train_batch_size": 4},
            f"3 epochs, learning rate 7e-05{PAIRS}",
            f"--epochs, --learning-rate{STEPS}",
        ),
        ({"contrastive_steps": 0, "learning_rate": 1e-4}, "batch size 8, 6 epochs", "--batch-size, --epochs"),
        ({"num_train_epochs": 2.0, "batch_size": 4, "learning_rate": 1e-4, "contrastive_steps": 0}, None, None),
    ],
)
def test_what_is_given_stands(
    model_folder: Path, tmp_path: Path, given: dict[str, float], chosen: str | None, flags: str | None
) -> None:
    table = tiny.write_table(tmp_path / "rows.csv", tiny.table_rows(500))
    training = TrainingConfig(output_dir=str(tmp_path / "out"), **given)  # type: ignore[arg-type]
    checked = check(RunConfig(DataConfig(data=str(table)), ModelConfig(model=str(model_folder)), training))
    lines = [guess.line() for guess in decisions_of(checked) if guess.where == "recipe"]
    assert lines == ([] if chosen is None else [f"recipe: {chosen} ({WHY}; {flags})"])
    training = checked.config.training
    for name, value in given.items():
        assert getattr(training, name) == value
    assert (training.batch_size is None) is ("per_device_train_batch_size" in given)


@pytest.mark.parametrize(
    ("given", "epochs", "steps"),
    [
        ({}, 0, 100),
        ({"num_train_epochs": 2.0}, 2, 100),
        ({"contrastive_steps": 0}, 17, 0),
        ({"head": "random"}, 17, 0),
        ({"strategy": "model"}, 0, 100),
        ({"opt_level": "O2"}, 0, 100),
        ({"preset": "fast"}, 0, 0),
    ],
)
def test_few_rows_are_trained_on_in_pairs_alone(
    model_folder: Path, tmp_path: Path, given: dict[str, Any], epochs: float, steps: int
) -> None:
    few = tiny.write_table(tmp_path / "few.csv", tiny.table_rows(60))
    head = given.pop("head", "probe")
    training = TrainingConfig(output_dir=str(tmp_path / "out"), **given)
    checked = check(RunConfig(DataConfig(data=str(few)), ModelConfig(model=str(model_folder), head=head), training))
    training = checked.config.training
    assert (training.epochs, training.contrastive_steps) == (epochs, steps)
    (line,) = (guess.line() for guess in decisions_of(checked) if guess.where == "recipe")
    assert ("100 contrastive steps" in line) is (steps > 0)


def test_the_fast_preset_keeps_a_head_that_has_seen_all_rows(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder comes out as it went in; fine-tuning would start from a head of 1,000 rows."""
    table = tiny.write_table(tmp_path / "rows.csv", tiny.table_rows(1_500))
    out = train(make_config(model_folder, table, tmp_path / "out", preset="fast", num_train_epochs=None))
    printed = capsys.readouterr().out
    assert "logistic regression fitted on the features of 1,200 rows" in printed
    assert "recipe: 0 epochs (1,200 training rows" in printed
    before, after = (load_file(folder / "model.safetensors") for folder in (model_folder, out))
    shared = [name for name in before if f"bert.{name}" in after]
    assert len(shared) > 10
    for name in shared:
        assert torch.equal(before[name], after[f"bert.{name}"]), name
    assert read_json(out / "metrics.json")["train"]["steps"] == 0


def test_folds_are_fewer_where_contrastive_steps_take_long() -> None:
    """By the length of texts and the size of the encoder, the same on any machine."""
    assert RunConfig().choose_folds(299) == FOLDS
    assert RunConfig().choose_folds(300) == 0
    assert not takes_fewer_folds(40, 6, 384)
    assert takes_fewer_folds(80, 6, 384)
    assert takes_fewer_folds(1_000, 6, 384)
    assert takes_fewer_folds(80, 12, 768)
    assert takes_fewer_folds(10**6, 12, 768), "capped by the tokens of a step"


def test_several_columns_take_larger_steps() -> None:
    """Each has its share of the loss; of many the rate grows no further."""
    rates = [choose_recipe(2_000, 384, columns=columns).learning_rate for columns in (1, 2, 3, 4, 12)]
    assert rates == [7e-5, 9.9e-5, 1.2e-4, 1.4e-4, 1.4e-4]

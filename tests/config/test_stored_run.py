"""`--resume FOLDER` alone: the settings come from the folder's run.json, which is checked like any other input."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from classify.config.parser import parse_training
from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.errors import InputError

FOLDER = "runs/my-1"


def parse(*words: str) -> RunConfig:
    return parse_training(words, "run_classify.py")


def store(content: Any, folder: str = FOLDER) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (Path(folder) / "run.json").write_text(text, encoding="utf-8")


def of(config: RunConfig, **more: Any) -> dict[str, Any]:
    return {"config": config.to_dict(), "cwd": os.getcwd(), **more}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The settings of a run in runs/my-1 of the working directory."""
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        DataConfig(data="my.csv", test_data="test.csv", max_length=64),
        ModelConfig(dropout=0.2, freeze_layers=1),
        TrainingConfig(
            num_train_epochs=5.0, batch_size=16, precision="bf16", use_cpu=True, nproc=2, save_total_limit=4
        ),
    )
    config = config.replace(overwrite_output_dir=True)
    config = config.replace(output_dir="elsewhere")
    store(of(config))
    return config


@pytest.mark.parametrize(
    "words",
    [
        ("--resume", FOLDER),
        ("--resume", f"{FOLDER}/checkpoints"),
        ("--resume", f"{FOLDER}/checkpoints/step-00000003"),
        ("--resume", "--output-dir", FOLDER),
    ],
)
def test_all_settings_are_the_runs(run: RunConfig, words: tuple[str, ...]) -> None:
    result = parse(*words)
    assert result.training.resume_from_checkpoint
    assert result.training.overwrite_output_dir is False
    assert result.training.output_dir == (FOLDER if "--output-dir" in words else None)
    expected, got = run.flat(), result.flat()
    for name in ("resume_from_checkpoint", "overwrite_output_dir", "output_dir"):
        expected.pop(name)
        got.pop(name)
    assert got == expected
    stored = {name: source for name, source in result.sources.items() if source.startswith("earlier run ")}
    assert {*stored.values()} == {f"earlier run {FOLDER}/run.json"}
    assert "num_train_epochs" in stored
    assert "learning_rate" not in stored


def test_a_run_is_repeated_with_its_tables_and_settings(run: RunConfig) -> None:
    """In a new folder, and with what is given beside it."""
    config = parse("--like", FOLDER, "--folds", "5", "--epochs", "2")
    assert config.data == dataclasses.replace(run.data, folds=5)
    assert (config.model.dropout, config.model.freeze_layers, config.training.batch_size) == (0.2, 1, 16)
    assert (config.training.num_train_epochs, config.training.output_dir) == (2.0, None)
    assert not config.training.resume_from_checkpoint
    with pytest.raises(InputError, match=r"--like nowhere: no such folder"):
        parse("--like", "nowhere")


def test_the_record_of_a_run_is_no_settings_file(run: RunConfig) -> None:
    store(of(run, command=["run_classify.py"], versions={}))
    with pytest.raises(InputError, match=r"this is the record of a run; give --like runs/my-1\.$"):
        parse("--config", f"{FOLDER}/run.json")


def test_what_is_given_beside_it_wins(run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("save_total_limit: 1\nepochs: 9\n")
    result = parse(
        "--resume", FOLDER, "--epochs", "7", "--config", "more.yaml", "--per-device-train-batch-size", "4", "--bf16"
    )  # fmt: skip
    training = result.training
    assert (training.num_train_epochs, training.save_total_limit) == (7, 1)
    assert (training.batch_size, training.per_device_train_batch_size) == (None, 4)
    assert training.precision == "bf16"
    assert result.data.data == "my.csv"
    assert result.sources["num_train_epochs"] == "flag"


def test_a_switch_of_other_scripts_that_is_turned_off_wins(run: RunConfig) -> None:
    result = parse("--resume", FOLDER, "--bf16", "False")
    assert (run.training.precision, result.training.precision, result.ignored) == ("bf16", "auto", ())
    result = parse("--resume", FOLDER, "--fp16", "False")
    assert (result.training.precision, result.ignored) == ("bf16", ())


def test_a_command_that_names_a_table_keeps_the_other_settings(run: RunConfig) -> None:
    result = parse("--resume", FOLDER, "--data", "my.csv")
    assert result.training.num_train_epochs == 5
    assert (result.data.data, result.data.test_data) == ("my.csv", "test.csv")


def test_processes_of_a_launcher_start_no_more(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("--resume", FOLDER).training.nproc == 2
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert parse("--resume", FOLDER).training.nproc is None


def test_paths_are_relative_to_where_the_run_was_started(run: RunConfig, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my.csv").write_text("text,label\n")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    result = parse("--resume", f"../{FOLDER}")
    assert result.data.data == str(tmp_path / "my.csv")
    assert result.data.test_data == "test.csv", "it is gone, or the whole project was moved"
    assert result.model.model == ModelConfig().name


BROKEN = {
    "not JSON": ("{", r"run\.json: expected the settings of a run under 'config'\. Got something else"),
    "a list": ([1], "expected the settings of a run"),
    "no config": ({}, "expected the settings of a run"),
    "deep": ("[" * 100_000, "expected the settings of a run"),
    "a part is text": ({"config": {"data": "x", "model": {}, "training": {}}}, "expected the settings of a run"),
    "cwd": (
        {"config": {"data": {"data": "a"}, "model": {}, "training": {}}, "cwd": 3},
        "expected the settings of a run",
    ),
    "unknown": (
        {"config": {"data": {"data": "a", "evil": 1}, "model": {}, "training": {}}},
        r"run\.json: unknown setting 'evil' under 'config'",
    ),
    "type": (
        {"config": {"data": {"data": "a"}, "model": {}, "training": {"num_train_epochs": "many"}}},
        r"runs/my-1/run\.json: num_train_epochs must be a number of at least 0\. Got 'many' instead",
    ),
    "no table": ({"config": {"data": {}, "model": {}, "training": {}}}, "--data must be given"),
}


def test_an_option_that_is_gone_since_is_no_reason_to_refuse_where_it_was_off(run: RunConfig) -> None:
    store({"config": {"data": {"data": "a.csv"}, "model": {}, "training": {"cuda_graphs": False, "seed": 7}}})
    assert parse("--resume", FOLDER).training.seed == 7


@pytest.mark.parametrize(("content", "line"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_line(run: RunConfig, content: Any, line: str) -> None:
    store(content)
    with pytest.raises(InputError, match=line) as caught:
        parse("--resume", FOLDER)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (False, "--resume nowhere: no such folder. Expected a run's folder, or a checkpoint in it."),
        (
            True,
            "--resume nowhere: no run.json there, so the run's settings are unknown; give --data and the other flags "
            "of the run.",
        ),
    ],
)
def test_a_folder_that_knows_nothing(tmp_path: Path, monkeypatch: Any, make: bool, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    if make:
        Path("nowhere").mkdir()
    with pytest.raises(InputError) as caught:
        parse("--resume", "nowhere")
    assert str(caught.value) == line

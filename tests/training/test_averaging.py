"""Several trainings from one start, whose weights are averaged."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from classify.errors import CheckpointError, InputError, Interrupted
from classify.training.averaging import WeightAverage
from classify.training.run import train
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.processes import run_ranks
from tests.support.runs import make_config, read_json, stop_at


def test_the_mean_of_what_has_a_fraction() -> None:
    average = WeightAverage()
    draws = [torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)) for seed in range(3)]
    for number, drawn in enumerate(draws):
        average.add({"weight": drawn, "steps": torch.tensor(number)})
    again = WeightAverage()
    again.restore({"other": draws[0], **average.for_checkpoint()}, 3)
    for one in (average, again):
        torch.testing.assert_close(one.tensors["weight"], sum(draws) / 3)
        assert (int(one.tensors["steps"]), one.count, set(one.tensors)) == (0, 3, {"weight", "steps"})


def config(model_folder: Path, table: Path, out: Path, **changes: Any) -> Any:
    """Two epochs, each in three steps."""
    return make_config(model_folder, table, out, **{"average_seeds": 3, "save_total_limit": 99, **changes})


def optimizer_moments(checkpoint: Path) -> list[str]:
    return [name for name in load_file(checkpoint / "optimizer.safetensors") if "exp_avg" in name]


def test_the_weights_are_the_mean_of_trainings_that_begin_alike(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is the run that one training would have been; what the others begin with is the start, too."""
    one = train(make_config(model_folder, table, tmp_path / "one", keep="last"))
    out = train(config(model_folder, table, tmp_path / "out"))
    said = capsys.readouterr().out
    assert "the average of 3 trainings:" in said
    checkpoints = {path.name: load_file(path / "model.safetensors") for path in (out / "checkpoints").iterdir()}
    assert set(checkpoints) == {f"step-{step:08d}" for step in (0, 3, 6, 9, 12, 15, 18)}
    start, first, second = (checkpoints[f"step-{step:08d}"] for step in (0, 6, 12))
    once = load_file(one / "checkpoints" / "step-00000006" / "model.safetensors")
    del once["vocabulary"]  # an id map, not a weight
    for name, tensor in once.items():
        assert torch.equal(first[f"average/{name}"], tensor), name
        assert torch.equal(first[name], start[name]), name
        assert torch.equal(second[name], start[name]), name
    final = load_file(out / "model.safetensors")["classifier.weight"]
    third = checkpoints["step-00000018"]
    assert torch.equal(final, third["average/classifier.weight"])
    # Each training ends elsewhere, about as far from the start as the first: what counts once, as one of three.
    averages = [one["average/classifier.weight"] for one in (first, second, third)]
    ends = [averages[0], 2 * averages[1] - averages[0], 3 * averages[2] - 2 * averages[1]]
    ways = [float((end - start["classifier.weight"]).norm()) for end in ends]
    assert ways == pytest.approx([ways[0]] * 3, rel=0.3)
    assert min(float((ends[one] - ends[other]).norm()) for one, other in ((0, 1), (0, 2), (1, 2))) > 0.01 * ways[0]
    # AdamW's moments are those of the training alone.
    moments = {step: optimizer_moments(out / "checkpoints" / f"step-{step:08d}") for step in (0, 3, 6, 12)}
    assert [bool(moments[step]) for step in (0, 3, 6, 12)] == [False, True, False, False]
    log = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    scored = [line["eval"] for line in log if "eval" in line]
    assert len(scored) == 7, "six epochs and the average"
    found = read_json(out / "metrics.json")
    assert found["eval"]["loss"] == scored[-1]["loss"]
    assert found["train"]["steps"] == 18


@pytest.mark.parametrize("step", [4, 6, 8, 12, 17])
def test_resumed_anywhere_it_is_the_same(
    step: int,
    model_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = train(config(model_folder, table, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        stop_at(step, patched, signal.SIGTERM)
        with pytest.raises(Interrupted):
            train(config(model_folder, table, tmp_path / "out", logging_steps=1, save_total_limit=1))
    out = train(config(model_folder, table, tmp_path / "out", save_total_limit=1, resume_from_checkpoint=True))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    train(config(model_folder, table, out, save_total_limit=1, resume_from_checkpoint=True))
    assert "An average cannot be extended" in capsys.readouterr().out


def test_two_processes_average_as_one_does(model_folder: Path, table: Path, tmp_path: Path) -> None:
    words = [
        "run_classify.py",
        "--data",
        str(table),
        "--model",
        str(model_folder),
        "--cpu",
        "--contrastive-steps",
        "0",
        "--average-seeds",
        "2",
    ]
    words += ["--learning-rate", "1e-3", "--batch-size", "32", "--epochs", "1", "--precision", "fp32"]
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nadam_epsilon: 1.0e-5\n")
    for count, out in ((1, "one"), (2, "two")):
        run_ranks(count, *words, "--config", "c.yaml", "--report-to", "none", "--output-dir", out, folder=tmp_path)
    assert difference(tmp_path / "two", tmp_path / "one") <= 1e-5


def test_another_number_of_epochs_is_another_run(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(config(model_folder, table, tmp_path / "out", num_train_epochs=1.0, average_seeds=2))
    with pytest.raises(InputError, match=r"average was \[2, 1.0\] and is \[2, 2.0\]"):
        train(config(model_folder, table, out, average_seeds=2, resume_from_checkpoint=True))


def test_without_its_start_a_run_cannot_go_on(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(4, monkeypatch, signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(config(model_folder, table, tmp_path / "out", logging_steps=1))
    (tmp_path / "out" / "checkpoints" / "step-00000000" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="the start of all 3 trainings cannot be read any more"):
        train(config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True))


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"num_train_epochs": 1.5}, "--epochs 1.5"),
        ({"max_steps": 5}, "--max-steps 5"),
        ({"max_minutes": 1.0}, "--max-minutes 1.0"),
        ({"patience": 1}, "--patience 1"),
        ({"keep": "best"}, "--keep best"),
        ({"lora": True}, "--lora"),
        ({"num_train_epochs": 0.0}, "--epochs 0.0"),
        ({"opt_level": "O2"}, "--opt-level O2"),
        ({"preset": "best", "average_seeds": None, "max_steps": 5}, "--max-steps 5"),
    ],
)
def test_what_does_not_go_with_it(changes: dict[str, Any], other: str, model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"averages their ends, and {other} does not go with that"):
        config(model_folder, tiny.write_table(tmp_path / "t.csv", tiny.table_rows(30)), tmp_path, **changes).validate()

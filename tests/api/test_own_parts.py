"""A caller's callbacks, loss and metrics: exact on any topology, recorded, refused if wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import classify
from classify.cli import main
from classify.errors import InputError
from tests.support.processes import run_distributed_test
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, reduction="none")


def mean_binary(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)


def squared(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits[:, 0] - targets) ** 2


def falling(probabilities: Any, targets: Any) -> float:
    """Worse with each call, so that the first score is the best."""
    falling.calls -= 1.0  # type: ignore[attr-defined]
    return float(falling.calls)  # type: ignore[attr-defined]


class Recorder(classify.TrainerCallback):
    def __init__(self, last: int | None = None):
        self.seen: list[tuple[Any, ...]] = []
        self.last = last

    def on_step_end(self, state: classify.StepState) -> bool:
        assert state.is_main
        self.seen.append(("step", state.step))
        return state.step == self.last

    def on_evaluate(self, state: classify.StepState, metrics: Mapping[str, float]) -> None:
        self.seen.append(("evaluate", state.step, metrics["macro_f1"]))

    def on_save(self, state: classify.StepState, folder: Path) -> None:
        self.seen.append(("save", state.step))
        assert (folder / "manifest.json").exists()

    def on_train_end(self, folder: Path) -> None:
        self.seen.append(("end",))
        assert (folder / "metrics.json").exists()


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same(first: Path, second: Path) -> None:
    one, two = weights_of(first), weights_of(second)
    assert one.keys() == two.keys()
    for name in one:
        if not name.endswith("key.bias"):  # whose gradient is 0 but for rounding, which AdamW scales up
            torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("case", "loss"),
    [("joined", cross_entropy), pytest.param("lists", mean_binary, marks=pytest.mark.slow), ("scores", squared)],
    ids=["classes", "labels", "scores"],
)
def test_the_programs_own_loss_gives_the_same_model(model_folder: Path, tmp_path: Path, case: str, loss: Any) -> None:
    # Of fewer rows a class the head would be fitted again, but not under a loss of one's own.
    table, options = CASES[case].write(tmp_path / "my.csv", 63), {**CASES[case].options, "folds": 0}
    given = classify.train(make_config(model_folder, table, tmp_path / "given", **options), loss=loss)
    assert_same(given, classify.train(make_config(model_folder, table, tmp_path / "own", **options)))
    parts = {"loss": f"{__name__}.{loss.__name__}"}
    assert read_json(given / "run.json")["parts"] == parts
    assert read_json(tmp_path / "own" / "run.json")["parts"] is None


def train_with_own_loss(model: Path, table: Path, out: Path) -> None:
    config = make_config(model, table, out, folds=0, dropout=0.0)
    classify.train(config, loss=lambda logits, targets: 2 * cross_entropy(logits, targets))


@pytest.mark.distributed
def test_a_loss_is_averaged_over_all_rows_on_two_processes(model_folder: Path, table: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        run_distributed_test(train_with_own_loss, processes, model_folder, table, tmp_path / str(processes))
    assert_same(tmp_path / "1", tmp_path / "2")


def test_callbacks_see_steps_scores_checkpoints_and_the_end(model_folder: Path, table: Path, tmp_path: Path) -> None:
    seen = Recorder()
    config = make_config(model_folder, table, tmp_path / "out", folds=0)
    classify.train(config, callbacks=[seen])
    steps = [entry[1] for entry in seen.seen if entry[0] == "step"]
    assert steps == list(range(1, steps[-1] + 1))
    scored = [entry[1:] for entry in seen.seen if entry[0] == "evaluate"]
    assert [step for step, _ in scored] == [steps[-1] // 2, steps[-1]]
    assert [entry[1] for entry in seen.seen if entry[0] == "save"] == [step for step, _ in scored]
    assert seen.seen[-1] == ("end",)


def test_a_callback_ends_the_training(model_folder: Path, table: Path, tmp_path: Path) -> None:
    seen = Recorder(last=3)
    folder = classify.train(make_config(model_folder, table, tmp_path / "out", folds=0), callbacks=[seen])
    assert [entry[1] for entry in seen.seen if entry[0] == "step"] == [1, 2, 3, 4]
    assert read_json(folder / "run.json")["status"] == "finished"


def test_a_metric_selects_and_is_written(model_folder: Path, table: Path, tmp_path: Path) -> None:
    falling.calls = 0.0  # type: ignore[attr-defined]
    options = {"metric_for_best_model": "falling", "keep": "best", "head": "random", "folds": 0}
    folder = classify.train(make_config(model_folder, table, tmp_path / "out", **options), metrics={"falling": falling})
    metrics = read_json(folder / "metrics.json")
    assert metrics["best_epoch"] == 1.0
    assert metrics["test"]["falling"] < metrics["eval"]["falling"] < 0


def only_on_many_rows(probabilities: Any, targets: Any) -> float:
    if len(targets) < 15:
        raise ValueError("too few rows")
    return 0.5


def test_a_run_that_a_callback_ended_is_finished(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"folds": 0, "num_train_epochs": 3.0}
    classify.train(make_config(model_folder, table, tmp_path / "out", **options), callbacks=[Recorder(last=2)])
    capsys.readouterr()
    classify.train(make_config(model_folder, table, tmp_path / "out", **options, resume_from_checkpoint=True))
    assert "this run is finished; nothing to do" in capsys.readouterr().out


def test_a_resumed_run_wants_the_same_parts(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    classify.train(make_config(model_folder, table, out, folds=0, max_steps=2), loss=cross_entropy)
    words = f"train --data {table} --model {model_folder} --cpu --output-dir {out} --resume --batch-size 32 --folds 0"
    assert main([*words.split(), "--max-steps", "4"]) == 2
    assert "the functions that were given from Python (loss, metrics) differ" in capsys.readouterr().err
    longer = make_config(model_folder, table, out, folds=0, max_steps=4, resume_from_checkpoint=True)
    assert classify.train(longer, loss=cross_entropy) == out


def confident(probabilities: Any, targets: Any) -> float:
    return float((probabilities.max(axis=1) > 0.5).mean())


class Enough(classify.TrainerCallback):
    def on_step_end(self, state: classify.StepState) -> bool:
        return not state.is_main and state.step == 2


def train_with_own_parts(model: Path, table: Path, out: Path) -> None:
    config = make_config(model, table, out, folds=0, dropout=0.0)
    parts = {"metrics": {"confident": confident}}
    classify.train(config, callbacks=[classify.TrainerCallback()], **parts)


def end_early(model: Path, table: Path, out: Path) -> None:
    classify.train(make_config(model, table, out, folds=0, num_train_epochs=8.0), callbacks=[Enough()])


@pytest.mark.distributed
def test_parts_do_the_same_on_two_processes(model_folder: Path, table: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        run_distributed_test(train_with_own_parts, processes, model_folder, table, tmp_path / str(processes))
    assert_same(tmp_path / "1", tmp_path / "2")
    one, two = (read_json(tmp_path / name / "metrics.json")["test"]["confident"] for name in "12")
    assert one == two
    run_distributed_test(end_early, 2, model_folder, table, tmp_path / "early")
    assert read_json(tmp_path / "early" / "metrics.json")["train"]["steps"] <= 13  # of 24


@pytest.mark.parametrize(
    ("parts", "options", "error", "words"),
    [
        ({"loss": lambda logits, targets: logits.sum()}, {}, TypeError, "expected one value per row"),
        ({"metrics": {"half": lambda p, t: np.nan}}, {"metric_for_best_model": "half"}, InputError, "is not defined"),
        ({"metrics": {"macro_f1": lambda p, t: 0.0}}, {}, InputError, "is a name of the program's"),
        ({"metrics": {"my_interval": lambda p, t: 0.0}}, {}, InputError, "is a name of the program's"),
        ({"metrics": {"mine": 3}}, {}, TypeError, "mine: expected a function"),
        ({"metrics": {"mine": lambda p, t: "x"}}, {}, TypeError, "'mine' must return a number. Got 'x'"),
        ({"metrics": {"mine": lambda p, t: np.ones(3)}}, {}, TypeError, "'mine' must return a number"),
        ({"metrics": [cross_entropy]}, {}, TypeError, "expected a dictionary of functions"),
        ({"callbacks": Recorder()}, {}, TypeError, "expected a list"),
        ({"loss": lambda logits, targets: logits.detach()[:, 0]}, {}, TypeError, "expected a tensor with a gradient"),
        ({"loss": lambda logits, targets: logits.detach().numpy()[:, 0]}, {}, TypeError, "expected a tensor"),
        ({"loss": 3.5}, {}, TypeError, "loss: expected a function"),
        ({"callbacks": [Recorder]}, {}, TypeError, "expected objects of classify.TrainerCallback"),
        ({"loss": cross_entropy}, {"loss": "focal"}, InputError, "takes the place of loss='focal'"),
        ({"metrics": {"mine": lambda p, t: 0.0}}, {"metric_for_best_model": "yours"}, InputError, "mine for this"),
    ],
)
def test_what_does_not_fit_is_refused(
    model_folder: Path, table: Path, tmp_path: Path, parts: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        classify.train(make_config(model_folder, table, tmp_path / "out", folds=0, max_steps=1, **options), **parts)

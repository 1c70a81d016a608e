"""Steps on pairs of rows: the loss, the draw of a batch, and that they bring texts of a class together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from classify.config.schema import TrainingConfig
from classify.errors import ClassifyError, InputError
from classify.evaluation.inference import compute_logits
from classify.tasks import single_label
from classify.training import contrastive
from classify.training.run import train
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.processes import run_ranks
from tests.support.runs import FILES, data_and_model, make_config, make_trainer, read_json
from tests.support.worlds import start_world

TASK = single_label.make("abc")


def alike(labels: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(TASK.targets.similarity(labels.numpy()))


def test_the_loss_is_the_mean_over_pairs_of_each_kind() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    half = 0.5**0.5
    within = ((0 - 1) ** 2 + (-half - 1) ** 2) / 2  # rows 0, 1 and 2, 3
    between = (half**2 + (-1) ** 2 + half**2 + 0**2) / 4
    assert float(contrastive.contrastive_loss(features, alike(labels))) == pytest.approx((within + between) / 2)
    assert float(contrastive.contrastive_loss(features[:2], alike(labels[:2]))) == pytest.approx(1.0)  # one kind alone


@pytest.mark.parametrize(("classes", "count"), [(3, 32), (20, 32), (2, 8), (77, 32)])
def test_classes_are_drawn_alike_and_each_has_a_pair(classes: int, count: int) -> None:
    draw = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(classes), 5), np.zeros(100, dtype=np.int64)])
    for _ in range(20):
        chosen = contrastive.draw_rows(labels, count, draw)
        assert len(set(chosen.tolist())) == len(chosen) <= count + classes
        present, counts = np.unique(labels[chosen], return_counts=True)
        assert len(present) == min(classes, count // 2)
        assert counts.min() >= 2
        assert (counts[1:] <= counts[0]).all() if present[0] == 0 else counts.max() == counts.min()


def test_a_rare_class_weighs_no_more_than_its_rows() -> None:
    """One row in a hundred is no third of a step; where all classes are small, none is rare."""
    draw, labels = np.random.default_rng(0), np.repeat([0, 1, 2], [60, 39, 1])
    drawn = np.concatenate([labels[contrastive.draw_rows(labels, 32, draw)] for _ in range(300)])
    assert 0 < np.mean(drawn == 2) < 2 / 100
    few = np.repeat(np.arange(5), 2)
    assert sorted(contrastive.draw_rows(few, 32, draw).tolist()) == list(range(10))


def spread(folder: Path, steps: int) -> tuple[float, Any]:
    """Mean cosine of two rows of one class less that of two of different ones, after so many steps."""
    data, model = data_and_model(folder)
    model.use_packing(True)
    config = TrainingConfig(use_cpu=True, learning_rate=1e-3, seed=1)
    if steps:
        contrastive.contrastive_warmup(
            make_trainer(model, data, config, start_world(config), 8).strategy, data, TASK, steps
        )
    features = compute_logits(model, data.tokens, data.rows, start_world(config), features=True)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    same = data.targets[:, None] == data.targets[None, :]
    cosines, apart = unit @ unit.T, ~np.eye(len(unit), dtype=bool)
    return float(cosines[same & apart].mean() - cosines[~same].mean()), model


def test_texts_of_a_class_come_together(model_folder: Path) -> None:
    before, untrained = spread(model_folder, 0)
    after, model = spread(model_folder, 30)
    assert before < 0.1
    assert after > before + 0.1
    for name, parameter in untrained.model.classifier.named_parameters():
        assert torch.equal(parameter, dict(model.model.classifier.named_parameters())[name]), "the head is not touched"


def test_steps_hold_fewer_rows_where_memory_runs_out(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps stay as small; with no rows left to halve the error is raised."""
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True, learning_rate=1e-3, seed=1)
    strategy = make_trainer(model, data, config, start_world(config), 8).strategy
    step, room, taken = contrastive.contrastive_step, 17, []

    def short_of_memory(*arguments: Any) -> torch.Tensor:
        taken.append(len(arguments[3]))
        if taken[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(*arguments)

    monkeypatch.setattr(contrastive, "contrastive_step", short_of_memory)
    contrastive.contrastive_warmup(strategy, data, TASK, 3)
    assert [count > room for count in taken] == [True, False, False, False]
    room = 1
    with pytest.raises(torch.OutOfMemoryError):
        contrastive.contrastive_warmup(strategy, data, TASK, 3)


def test_a_gradient_that_is_not_finite_ends_the_run(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True)
    strategy = make_trainer(model, data, config, start_world(config), 8).strategy
    monkeypatch.setattr(contrastive, "contrastive_loss", lambda features, _: features.sum() * np.nan)
    with pytest.raises(ClassifyError, match="the gradient's norm is nan in a contrastive step; training has diverged"):
        contrastive.contrastive_warmup(strategy, data, TASK, 1)


def test_the_start_does_not_depend_on_the_number_of_ranks(model_folder: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "few.csv", tiny.table_rows(60))
    words = ["run_classify.py", "--data", str(table), "--model", str(model_folder), "--cpu", "--max-steps", "1"]
    words += ["--learning-rate", "1e-3", "--batch-size", "8", "--precision", "fp32", "--report-to", "none"]
    (tmp_path / "c.yaml").write_text("dropout: 0.0\nadam_epsilon: 1.0e-5\n")
    for count, out in ((1, "one"), (2, "two")):
        run_ranks(count, *words, "--config", "c.yaml", "--output-dir", out, folder=tmp_path)
    assert difference(tmp_path / "two", tmp_path / "one") <= 1e-5


def test_a_run_says_it_and_its_start_has_it(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tiny.write_table(tmp_path / "few.csv", tiny.table_rows(60))
    starts = {}
    for steps in (0, 10):
        settings = {"contrastive_steps": steps, "save_total_limit": 9, "num_train_epochs": 1.0}
        out = train(make_config(model_folder, table, tmp_path / str(steps), **settings))
        assert ("contrastive: 10 steps" in capsys.readouterr().out) is (steps == 10)
        starts[steps] = load_file(out / "checkpoints" / "step-00000000" / "model.safetensors")
    moved = [name for name, tensor in starts[0].items() if not torch.equal(tensor, starts[10][name])]
    assert any("encoder.layer.0" in name for name in moved)


def test_zero_epochs_keep_the_start(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With few rows that is all; the folder is a whole one, and predicts."""
    table = tiny.write_table(tmp_path / "few.csv", tiny.table_rows(60))
    few = {"num_train_epochs": None, "contrastive_steps": 20, "calibrate": "none"}
    out = train(make_config(model_folder, table, tmp_path / "out", **few))
    result = read_json(out / "metrics.json")
    assert (result["train"]["steps"], result["train"]["epochs"], result["best_epoch"]) == (0, 0, 0)
    assert result["eval"]["method"] == "5-fold cross-validation"
    assert {path.name for path in out.iterdir()} == FILES
    log = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    assert [line["contrastive_step"] for line in log] == list(range(5, 21, 5)), "contrastive steps are training, too"
    assert set(result["pairs"]) == {"steps", "rows", "seconds", "loss"}
    assert (result["pairs"]["steps"], result["pairs"]["loss"]) == (20, log[-1]["loss"])
    start = load_file(out / "checkpoints" / "step-00000000" / "model.safetensors")
    assert torch.equal(load_file(out / "model.safetensors")["classifier.weight"], start["classifier.weight"])
    train(make_config(model_folder, table, tmp_path / "out", **few, resume_from_checkpoint=True))
    assert "this run is finished" in capsys.readouterr().out
    with pytest.raises(InputError, match="--epochs 0 and --head random contradict"):
        train(make_config(model_folder, table, tmp_path / "other", num_train_epochs=0.0, head="random"))

"""Nothing is lost: resumed equals uninterrupted to the last bit, and damaged checkpoints are never trusted."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import classify.training.run as run
from classify.cli import main
from classify.config.schema import TrainingConfig
from classify.errors import CheckpointError, DiskError, Interrupted
from classify.training import finish
from classify.training.checkpoint import find_newest
from classify.training.log import Log
from tests.support.runs import EPOCHS, data_and_model, make_config, make_trainer, read_json, stop_at, worse_in_the_end
from tests.support.worlds import start_world

STEPS = 9  # three epochs of three


def whole_config(model: Path, table: Path, out: Path, **changes: Any) -> Any:
    settings = {"num_train_epochs": 3.0, "save_total_limit": 9, "label_smoothing_factor": 0.1, **changes}
    return make_config(model, table, out, **settings)


@pytest.fixture(scope="module")
def uninterrupted(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.train(whole_config(model_folder, table, tmp_path_factory.mktemp("runs") / "whole"))


def without_times(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "rows_per_second"} for line in lines]


@pytest.mark.parametrize("head", ["probe", "random"])
def test_a_run_that_was_killed_before_its_first_epoch_ended(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """The start is a checkpoint where it is a candidate for the best; it has no moments yet."""

    def killed(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "on_step_end", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run.train(make_config(model_folder, table, tmp_path / "out", head=head))
    kept = [path.name for path in (tmp_path / "out" / "checkpoints").glob("*")]
    assert kept == (["step-00000000"] if head == "probe" else [])
    out = run.train(make_config(model_folder, table, tmp_path / "out", head=head, resume_from_checkpoint=True))
    whole = run.train(make_config(model_folder, table, tmp_path / "whole", head=head))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("step", "number", "code"), [(1, signal.SIGTERM, 143), (3, signal.SIGINT, 130), (7, signal.SIGTERM, 143)]
)
def test_resumed_is_uninterrupted_to_the_last_bit(
    uninterrupted: Path,
    model_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
    number: signal.Signals,
    code: int,
) -> None:
    with monkeypatch.context() as patch:
        stop_at(step, patch, number)
        with pytest.raises(Interrupted, match=f"continue with --resume {tmp_path}/out$") as caught:
            run.train(whole_config(model_folder, table, tmp_path / "out"))
    assert caught.value.exit_code == code
    assert read_json(tmp_path / "out" / "run.json")["status"] == "interrupted"
    saved, _ = find_newest(tmp_path / "out" / "checkpoints")
    assert saved is not None
    assert saved.step == step + 1, "the step after the signal is the last, and it is saved"
    capsys.readouterr()
    out = run.train(whole_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True))
    assert " from step " not in capsys.readouterr().out, "no setting has changed"
    for name in ("model.safetensors", "predictions.csv"):
        assert (out / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    last = f"checkpoints/step-{STEPS:08d}/optimizer.safetensors"
    assert (out / last).read_bytes() == (uninterrupted / last).read_bytes()
    got, wanted = (
        [line for line in without_times(folder / "train_log.jsonl") if "eval" in line]
        for folder in (out, uninterrupted)
    )
    assert got == wanted
    assert read_json(out / "metrics.json")["train"]["loss"] == pytest.approx(
        read_json(uninterrupted / "metrics.json")["train"]["loss"], rel=1e-6
    )


def test_a_finished_run_is_left_as_it_is(
    uninterrupted: Path, model_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in uninterrupted.rglob("*")}
    run.train(whole_config(model_folder, table, uninterrupted, resume_from_checkpoint=True))
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in uninterrupted.rglob("*")} == before
    assert "this run is finished" in capsys.readouterr().out


def test_more_epochs_extend_a_finished_run(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "out")
    again = {"resume_from_checkpoint": True, "num_train_epochs": 4.0}
    run.train(whole_config(model_folder, table, tmp_path / "out", **again))
    assert read_json(tmp_path / "out" / "metrics.json")["train"]["steps"] == 12
    steps = [line["step"] for line in without_times(tmp_path / "out" / "train_log.jsonl") if "eval" in line]
    assert steps == [3, 6, 9, 12]


def test_without_a_checkpoint_it_starts_afresh_and_says_so(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "out" / "checkpoints" / ".making-step-00000003"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    unfinished = tmp_path / "out" / "checkpoints" / "step-00000002"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    run.train(make_config(model_folder, table, tmp_path / "out", max_steps=1, resume_from_checkpoint=True))
    assert "no checkpoint to resume from; starting from the beginning" in capsys.readouterr().out


def test_resume_and_the_folder_say_enough(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are those of the run, relative paths those of its working directory."""
    (tmp_path / "then").mkdir()
    (tmp_path / "now").mkdir()
    shutil.copy(table, tmp_path / "then" / "my.csv")
    shutil.copytree(model_folder, tmp_path / "then" / "bert")
    monkeypatch.chdir(tmp_path / "then")
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(Interrupted):
            run.train(whole_config(Path("bert"), Path("my.csv"), tmp_path / "out"))
    monkeypatch.chdir(tmp_path / "now")
    assert main(["--resume", str(tmp_path / "out")], program="run_classify.py") == 0
    assert list((tmp_path / "now").iterdir()) == []
    for name in ("model.safetensors", "predictions.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert main(["train", "--resume", str(tmp_path / "out"), "--epochs", "4"]) == 0
    assert read_json(tmp_path / "out" / "metrics.json")["train"]["epochs"] == 4


def test_a_changed_setting_is_told_and_no_command_forgotten(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        patch.setattr(sys, "orig_argv", ["first"])
        with pytest.raises(Interrupted):
            run.train(whole_config(model_folder, table, tmp_path / "out"))
    assert read_json(tmp_path / "out" / "run.json")["commands"] == [
        {"command": ["first"], "from_step": 0, "status": "interrupted"}
    ]
    stopped = int(find_newest(tmp_path / "out" / "checkpoints")[0].step)  # type: ignore[union-attr]
    changes = {"learning_rate": 1e-4, "weight_decay": 0.1, "save_steps": 100}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "orig_argv", ["second"])
        run.train(whole_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **changes))
    assert (
        f"note: --learning-rate was 0.001 and is 0.0001; --weight-decay was 0.01 and is 0.1 from step {stopped} on\n"
        in capsys.readouterr().out
    )
    result = read_json(tmp_path / "out" / "run.json")
    assert result["command"] == ["second"]
    assert result["commands"] == [
        {"command": ["first"], "from_step": 0, "status": "interrupted"},
        {"command": ["second"], "from_step": stopped, "status": "finished"},
    ]


def test_scores_of_earlier_weights_are_not_left_beside_new_ones(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full at the end of a run that was extended; it can be resumed."""
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    config = whole_config(model_folder, table, out, num_train_epochs=4.0, resume_from_checkpoint=True)

    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(finish, "WRITERS", (finish.WRITERS[0], ("predictions.csv", fail)))
        with pytest.raises(DiskError, match=r"predictions\.csv could not be written: No space left"):
            run.train(config)
    assert not (out / "metrics.json").exists()
    assert not (out / "evaluation.parquet").exists()
    run.train(config)
    assert read_json(out / "metrics.json")["train"]["epochs"] == 4


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_the_newest_that_verifies_is_taken(uninterrupted: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(uninterrupted / "checkpoints", folder)
    harm(folder / "step-00000009", damage)
    result, problems = find_newest(folder)
    assert result is not None
    assert result.step == 6
    assert len(problems) == 1
    assert "step-00000009" in problems[0]


def harm(path: Path, damage: str) -> None:
    weights = path / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flip":
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 1
        weights.write_bytes(bytes(data))
    elif damage == "remove":
        weights.unlink()
    else:
        (path / "manifest.json").write_text("{}")


def test_if_none_can_be_trusted_the_exit_is_3(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "out")
    for path in (tmp_path / "out" / "checkpoints").iterdir():
        harm(path, "flip")
    with pytest.raises(CheckpointError, match="no checkpoint is valid"):
        find_newest(tmp_path / "out" / "checkpoints")
    done = command(
        "classify", "train", "--data", str(table), "--model", str(model_folder), "--output-dir", "out",
        "--resume", "--epochs", "4", "--cpu",
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_named_checkpoint_that_is_damaged_is_refused_with_the_way_on(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "out")
    named = tmp_path / "out" / "checkpoints" / "step-00000003"
    harm(named, "flip")
    config = whole_config(model_folder, table, tmp_path / "out").replace(output_dir=None)
    with pytest.raises(CheckpointError, match=rf"SHA-256 differs.* --resume {tmp_path / 'out'} takes the newest valid"):
        run.train(config.replace(resume_from_checkpoint=str(named)))


def test_a_named_checkpoint(uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "out")
    (tmp_path / "out" / "run.json").unlink()
    named = str(tmp_path / "out" / "checkpoints" / "step-00000003")
    config = whole_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=named)
    out = run.train(config.replace(output_dir=None))
    assert out.resolve() == (tmp_path / "out").resolve()
    assert (out / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_and_the_last_checkpoint_outlive_the_limit(
    model_folder: Path, table: Path, tmp_path: Path, limit: int
) -> None:
    settings = {"learning_rate": 0.05, "save_total_limit": limit, "save_steps": 1, "keep": "best"}
    out = run.train(make_config(model_folder, table, tmp_path / "out", num_train_epochs=6.0, **settings))
    kept = {int(path.name[5:]) for path in (out / "checkpoints").iterdir()}
    needed = {round(read_json(out / "metrics.json")["best_epoch"] * 3), 18}
    assert needed <= kept
    assert len(kept) == max(limit, len(needed))


def test_going_back_leaves_the_later_course_behind(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    """From step 3 with steps 6 and 9 of the old course beside it: the new step 6 must not lose against the old 9."""
    shutil.copytree(uninterrupted, tmp_path / "out")
    (tmp_path / "out" / "run.json").unlink()
    named = str(tmp_path / "out" / "checkpoints" / "step-00000003")
    config = whole_config(model_folder, table, tmp_path / "out", save_steps=1, resume_from_checkpoint=named)
    run.train(config.replace(num_train_epochs=4 / 3, output_dir=None))
    result, _ = find_newest(tmp_path / "out" / "checkpoints")
    assert result is not None
    assert result.step == 4


def test_nothing_left_to_train_is_still_finished(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within the first epoch, then asked for fewer steps than it has: no epoch has been evaluated yet."""
    with monkeypatch.context() as patch:
        stop_at(2, patch)
        with pytest.raises(Interrupted):
            run.train(whole_config(model_folder, table, tmp_path / "out"))
    out = run.train(whole_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, max_steps=1))
    assert read_json(out / "run.json")["status"] == "finished"
    assert read_json(out / "metrics.json")["train"]["steps"] == 3


def test_weights_of_a_lost_best_epoch_are_not_kept(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last epoch is not the best; and the best is damaged."""
    changes = worse_in_the_end(tmp_path)
    out = run.train(make_config(model_folder, table, tmp_path / "out", **changes))
    result, kept = read_json(out / "metrics.json"), sorted((out / "checkpoints").iterdir())
    best = round(result["best_epoch"] * result["train"]["steps"] / result["train"]["epochs"])
    assert result["best_epoch"] < EPOCHS, "the test needs a run that gets worse"
    assert kept[0].name == f"step-{best:08d}"
    harm(kept[0], "flip")
    changes |= {"num_train_epochs": EPOCHS + 1.0, "resume_from_checkpoint": True}
    run.train(make_config(model_folder, table, out, **changes))
    assert f"the checkpoint of step {best} is not valid, so the last weights are kept" in capsys.readouterr().out
    assert read_json(out / "metrics.json")["best_epoch"] == EPOCHS + 1
    last = max((out / "checkpoints").iterdir())
    final, checkpoint = (load_file(folder / "model.safetensors") for folder in (out, last))
    assert torch.equal(final["classifier.weight"], checkpoint["classifier.weight"])


def test_a_finished_run_without_checkpoints_is_left_as_it_is(
    uninterrupted: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    run.train(whole_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_epochs_without_improvement_are_counted_across_an_interruption(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted between the first and the second of two such epochs, the run ends where a whole one does."""
    settings = {**worse_in_the_end(tmp_path), "keep": "auto", "patience": 2, "logging_steps": 1}
    whole = run.train(make_config(model_folder, table, tmp_path / "whole", **settings))
    ended = read_json(whole / "metrics.json")["train"]
    assert 2 < ended["epochs"] < EPOCHS, "the test needs a run that ends early"
    steps = ended["steps"] // ended["epochs"]
    with monkeypatch.context() as patch:
        stop_at(int(ended["steps"] - steps + 1), patch)
        with pytest.raises(Interrupted):
            run.train(make_config(model_folder, table, tmp_path / "out", **settings))
    out = run.train(make_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **settings))
    assert read_json(out / "metrics.json")["train"]["epochs"] == ended["epochs"]
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_a_tensor_of_another_name_is_refused(model_folder: Path, part: str) -> None:
    """Another version of a library may name parameters otherwise; a moment that is dropped would start at zero."""
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True, max_steps=1)
    trainer = make_trainer(model, data, config, start_world(config), 8)
    trainer.fit()
    weights, moments, values = trainer.state_dict(keep=True)
    tensors = weights if part == "weights" else moments
    name = next(name for name in tensors if "query.weight" in name)
    tensors[name.replace("query", "q")] = tensors.pop(name)
    load = {
        "weights": trainer.strategy.weights.load,
        "optimizer": functools.partial(trainer.strategy.load_optimizer, values=values),
    }
    with pytest.raises(CheckpointError, match=r"(no weight|optimizer state of) '.*\.q(uery)?\.weight'"):
        load[part](tensors)


def test_the_gradient_scaler_goes_on_where_it_was(model_folder: Path) -> None:
    """Its scale and how many steps it has grown for, else fp16 loses the first steps after a resume."""
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True, max_steps=3)
    trainer = make_trainer(model, data, config, start_world(config), 8)
    trainer.strategy.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=7)
    trainer.fit()
    _, moments, values = trainer.state_dict(keep=True)
    again = make_trainer(model, data, config, start_world(config), 8)
    again.strategy.scaler = torch.amp.GradScaler("cpu")
    again.strategy.load_optimizer(moments, values)
    assert again.strategy.scaler.state_dict() == trainer.strategy.scaler.state_dict()
    assert again.strategy.scaler.get_scale() == 8.0
    assert again.strategy.scaler.state_dict()["_growth_tracker"] == 3

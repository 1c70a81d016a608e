"""A disk that is full, and a process that dies while it writes: what was there before is still there."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from classify.cli import main
from classify.errors import CheckpointError, DiskError
from classify.tasks import baseline
from classify.tasks.columns import PredictionColumns
from classify.training import checkpoint, result_files
from classify.training.log import Log
from classify.training.optimizer import collect_state, load_state
from classify.training.run import train
from classify.training.weights import Weights
from tests.support.processes import Process, finish, not_here, rank_environments, unlaunched
from tests.support.runs import FILES, make_config, read_json


class Small(nn.Module):
    """A classifier's shape: a model inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 3)


def small(kind: Any = torch.optim.AdamW) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: Any = Small()
    optimizer = kind(model.parameters())
    model.model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 1, kind: Any = torch.optim.AdamW) -> Path:
    model, optimizer = small(kind)
    optimizer.param_groups[0].update(k=7, weight_decay=0.5)
    weights = Weights(model)
    moments, rest = collect_state(optimizer, weights.named(), True)
    values = {"x": step, "optimizer": rest}
    tensors = weights.state_dict(keep=True)
    return checkpoint.save(folder, step, tensors, moments, values, keep=lambda steps: set(steps[-keep:]))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, transformers.Adafactor])
def test_a_checkpoint_restores_model_and_optimizer(tmp_path: Path, kind: Any) -> None:
    """An optimizer may keep numbers beside its tensors, and values in its groups; settings are those of the new one."""
    model, optimizer = small(kind)
    save(tmp_path, 1, kind=kind)
    result, _ = checkpoint.find_newest(tmp_path)
    assert result is not None
    fresh: Any = Small()
    again, weights = kind(list(fresh.parameters())[::-1]), Weights(fresh)
    weights.load(result.model_tensors())
    load_state(again, weights.named(), result.optimizer_tensors(), result.state["optimizer"])
    assert torch.equal(fresh.model.weight, model.model.weight)
    for mine, other in zip(again.state.values(), reversed(optimizer.state.values()), strict=True):
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            torch.testing.assert_close(value, other[key], rtol=0, atol=0)
    (group,) = again.param_groups
    assert group["k"] == 7
    assert group["weight_decay"] == kind(fresh.parameters()).param_groups[0]["weight_decay"] != 0.5


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_every_file_of_a_checkpoint_is_verified(tmp_path: Path, name: str) -> None:
    """One byte of it changed, so that it can still be read."""
    path = save(tmp_path, 1)
    data = bytearray((path / name).read_bytes())
    place = data.rindex(b"1") if name == "state.json" else len(data) - 1
    data[place] ^= 2
    (path / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=f"{name} has changed since it was written"):
        checkpoint.find_newest(tmp_path)


@pytest.mark.parametrize("failing", ["model.safetensors", "optimizer.safetensors", "manifest.json", "rename"])
def test_a_failed_write_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    save(tmp_path, 1)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing.endswith("safetensors"):
        write = checkpoint.save_file
        monkeypatch.setattr(
            checkpoint, "save_file", lambda t, path: refuse() if path.name == failing else write(t, path)
        )
    elif failing == "rename":
        monkeypatch.setattr(Path, "replace", refuse)
    else:
        monkeypatch.setattr(checkpoint, "_write_manifest", refuse)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    result, problems = checkpoint.find_newest(tmp_path)
    assert result is not None
    assert (result.step, problems) == (1, [])


FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove")
LAST = 26


def save_until_killed(folder: Path, at: int) -> None:
    """Save a checkpoint, and be killed at the `at`-th file operation in the folder."""
    count = itertools.count(1)  # one step of it is one operation of the interpreter: files are hashed in threads

    def kill_at_operation(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and str(folder) in str(arguments[0]) and next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at_operation)
    save(folder, 2)


@pytest.mark.slow
def test_killed_at_any_write_a_whole_checkpoint_remains(tmp_path: Path) -> None:
    """A process is killed at its n-th file operation in the folder, for n from the first to beyond the last."""
    codes = []
    for at in range(1, LAST + 1):
        save(tmp_path / str(at), 1)
        saving = Process(save_until_killed, (tmp_path / str(at), at), tmp_path, unlaunched())
        codes.append(saving.finish().returncode)
    assert set(codes) == {0, -signal.SIGKILL}
    assert codes.index(0) >= 12, "a save has that many file operations at least"
    for at, code in enumerate(codes, start=1):
        folder = tmp_path / str(at)
        result, _ = checkpoint.find_newest(folder)
        assert result is not None
        assert result.step in (1, 2)
        if code == 0:
            assert result.step == 2
            assert [path.name for path in folder.iterdir()] == ["step-00000002"]
        save(folder, 3)
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000003"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where one can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        not_here("a small file system cannot be mounted here (needs root)")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, left: int = 0) -> None:
    """Leave so many bytes on a file system."""
    (place / "ballast").write_bytes(bytes(shutil.disk_usage(place).free - left))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "what"),
    [
        ((Log, "on_step_end"), "the training log"),
        ((checkpoint, "save"), "checkpoint step-00000006"),
        ((result_files, "save_model"), "the model"),
        ((PredictionColumns, "write"), "predictions.csv"),
        ((baseline, "fit"), "evaluation.parquet"),
    ],
    ids=["log", "checkpoint", "model", "predictions", "evaluation"],
)
def test_a_disk_that_fills_up_ends_in_one_line_and_nothing_is_lost(
    small_disk: Path,
    model_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[Any, str],
    what: str,
) -> None:
    """What follows with --resume is only what was missing."""
    module, name = before
    step = getattr(module, name)

    def fill_and_go_on(*arguments: Any, **words: Any) -> Any:
        if what != "checkpoint step-00000006" or arguments[1] == 6:
            fill(small_disk)
        return step(*arguments, **words)

    out = small_disk / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fill_and_go_on)
        with pytest.raises(DiskError) as caught:
            train(make_config(model_folder, table, out, report_to="none"))
    kept = sorted(path.name for path in (out / "checkpoints").glob("*"))
    listed = ", ".join(f"checkpoints/{name}" for name in kept) or "nothing yet"
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        f"{out}: {what} could not be written: No space left on device. Kept: {listed}. Fix that (free some space, for "
        f"example) and continue with --resume {out}."
    )
    assert read_json(out / "run.json")["status"] in ("interrupted", "failed")
    (small_disk / "ballast").unlink()
    steps: list[int] = []
    log_step = Log.on_step_end
    monkeypatch.setattr(Log, "on_step_end", lambda *a: steps.append(a[1].progress.step) or log_step(*a))
    train(make_config(model_folder, table, out, report_to="none", resume_from_checkpoint=True))
    last = int(kept[-1].removeprefix("step-")) if kept else 0
    assert steps == list(range(last + 1, 7))
    assert read_json(out / "run.json")["status"] == "finished"
    assert {path.name for path in out.iterdir()} == FILES - {"tensorboard"}


@pytest.mark.slow
def test_a_full_cache_ends_no_run(
    small_disk: Path, table: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    fill(small_disk)
    out = train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    assert read_json(out / "run.json")["status"] == "finished"


def train_on_a_disk_that_fills_up(words: list[str], disk: Path) -> int:
    """The program, with the disk full from its first checkpoint on."""
    save_checkpoint = checkpoint.save

    def fill_and_save(*arguments: Any, **options: Any) -> Path:
        fill(disk)
        return save_checkpoint(*arguments, **options)

    checkpoint.save = fill_and_save
    return main(words, program="run_classify.py")


@pytest.mark.slow
@pytest.mark.distributed
def test_a_disk_that_is_full_for_one_rank_is_told_to_all(
    small_disk: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    """Also where no launcher ends the others, who wait for the checkpoint to be whole."""
    words = [
        "--data", str(table), "--model", str(model_folder), "--cpu",
        "--contrastive-steps", "0", "--epochs", "1", "--report-to", "none",
        "--output-dir", str(small_disk / "out"),
    ]  # fmt: skip
    ranks = [
        Process(train_on_a_disk_that_fills_up, [words, small_disk], tmp_path, {**unlaunched(), **place})
        for place in rank_environments(2)
    ]
    message = finish(ranks, 60, [2, 2])
    assert message[0].splitlines()[-1].startswith("error: ")
    assert "could not be written: No space left on device" in message[0]

"""A disk that is full, and a process that dies while it writes: what was there before is still there."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from classify import checkpoint
from tests.support.processes import Process, run_ranks, unlaunched


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 1) -> Path:
    model, optimizer = small()
    weights, moments = checkpoint.tensors_of(model, optimizer, keep=True)
    return checkpoint.save(folder, step, weights, moments, {"x": step}, keep=lambda steps: set(steps[-keep:]))


def test_a_checkpoint_restores_model_and_optimizer(tmp_path: Path) -> None:
    model, optimizer = small()
    save(tmp_path, 1)
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    fresh = nn.Linear(4, 3)
    again = torch.optim.AdamW(fresh.parameters())
    checkpoint.set_model(fresh, found.model_tensors())
    checkpoint.set_optimizer(fresh, again, found.optimizer_tensors())
    assert torch.equal(fresh.weight, model.weight)
    for mine, other in zip(again.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[key], other[key]) for key in mine)


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
        monkeypatch.setattr(Path, "rename", refuse)
    else:
        monkeypatch.setattr(checkpoint, "_write_manifest", refuse)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, problems) == (1, [])


FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove")
LAST = 20


def save_until_killed(folder: Path, at: int) -> None:
    """Save a checkpoint, and be killed at the `at`-th file operation in the folder."""
    count = 0

    def kill_at_operation(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in FILE_EVENTS and str(folder) in str(arguments[0]):
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at_operation)
    save(folder, 2)


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
        found, _ = checkpoint.newest(folder)
        assert found is not None
        assert found.step in (1, 2)
        if code == 0:
            assert found.step == 2
            assert [path.name for path in folder.iterdir()] == ["step-00000002"]
        save(folder, 3)
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000003"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where one can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_in_one_line(
    small_disk: Path, command: Callable[..., Any], model_folder: Path, table: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(800_000))
    done = command(
        "classify", "train", "--data", str(table), "--model", str(model_folder), "--cpu", "--epochs", "1",
        "--report-to", "none", "--output-dir", str(small_disk / "out"),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((small_disk / "out").glob("checkpoints/*"))
    run = json.loads((small_disk / "out" / "run.json").read_text())
    assert run["status"] in ("failed", "interrupted")


@pytest.mark.distributed
def test_a_disk_that_is_full_for_one_rank_is_told_to_all(
    small_disk: Path, model_folder: Path, table: Path, tmp_path: Path
) -> None:
    """Also where no launcher ends the others, who wait for the checkpoint to be whole."""
    (small_disk / "ballast").write_bytes(bytes(800_000))
    words = [
        "--data", str(table), "--model", str(model_folder), "--cpu", "--epochs", "1", "--report-to", "none",
        "--output-dir", str(small_disk / "out"),
    ]  # fmt: skip
    told = run_ranks(2, "run_classify.py", *words, folder=tmp_path, timeout=60, code=[1, 2])
    assert told[0].splitlines()[-1].startswith("error: ")
    assert "No space left on device" in told[0]
    assert told[1] == "", "rank 0 has told it"

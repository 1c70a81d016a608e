"""Where a run goes: its own folder, a run to go on with, never somebody else's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, TrainingConfig
from classify.errors import InputError
from classify.evaluation.scored_rows import ScoredRows
from classify.launch.launch import Launch
from classify.training import run
from classify.training.output_dir import LOCK, OutputDirPlan, plan_output_dir
from tests.support.runs import make_config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "interrupted"}')


def wanted(launch: Launch | None = None, **settings: Any) -> OutputDirPlan:
    config = RunConfig(DataConfig(data="my.csv"), training=TrainingConfig(**settings))
    return plan_output_dir(config, launch or Launch())


def test_a_run_without_a_name_needs_no_more_than_its_folders_folder(here: Path) -> None:
    """Its own folder is runs/my-<n>; whatever is called runs/my does not matter."""
    (here / "runs").mkdir()
    (here / "runs" / "my").write_text("a table, say")
    assert wanted().folder is None
    (here / "runs" / "my").unlink()
    (here / "runs").rmdir()
    (here / "runs").write_text("a file")
    with pytest.raises(InputError, match=r"runs: expected a folder\. Got a file instead"):
        wanted()


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_resumed_or_emptied(here: Path) -> None:
    begun(here / "out")
    with pytest.raises(InputError, match="exists and is not empty"):
        wanted(output_dir="out")
    assert wanted(output_dir="out", resume_from_checkpoint=True).resume
    assert wanted(output_dir="out", overwrite_output_dir=True).overwrite


def test_a_lock_alone_is_an_empty_folder(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / LOCK).write_text("")
    assert wanted(output_dir="out").folder == Path("out")


def test_resume_without_a_name_takes_the_newest_run_of_the_table(here: Path) -> None:
    for name in ("my-1", "my-2", "mine-7"):
        begun(here / "runs" / name)
    assert wanted(resume_from_checkpoint=True).folder == Path("runs/my-2")


def test_a_named_checkpoint_is_where_training_goes_on(here: Path) -> None:
    begun(here / "out")
    (here / "out" / "checkpoints" / "step-00000100").mkdir(parents=True)
    result = wanted(resume_from_checkpoint="out/checkpoints/step-00000100")
    assert (result.folder, result.checkpoint) == (Path("out"), Path("out/checkpoints/step-00000100"))


def test_ranks_that_do_not_decide_look_at_no_folder(here: Path) -> None:
    """Rank 0 may have begun the run in the meantime; a run to resume may lie on the first machine only."""
    begun(here / "out")
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    first, second = (Launch.read({**place, "RANK": rank}) for rank in "01")
    assert wanted(second, output_dir="out").folder == Path("out")
    assert wanted(second, resume_from_checkpoint="nowhere").folder == Path("nowhere")
    with pytest.raises(InputError, match="--resume nowhere: no such folder"):
        wanted(first, resume_from_checkpoint="nowhere")


def test_files_follow_the_umask(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """A colleague may read, and resume, what the umask lets others read: safetensors lets the owner alone."""
    before = os.umask(0o027)
    try:
        out = run.train(make_config(model_folder, table, tmp_path / "out", max_steps=2, save_steps=1))
        folds = run.train(make_config(model_folder, table, tmp_path / "folds", num_train_epochs=0.0, folds=2))
    finally:
        os.umask(before)
    files = [file for folder in (out, folds) for file in folder.rglob("*") if file.is_file()]
    assert any(file.parent.name.startswith("step-") for file in files)
    assert {oct(file.stat().st_mode & 0o777) for file in files if file.suffix == ".safetensors"} == {"0o640"}
    assert [file for file in files if not file.stat().st_mode & 0o040] == []


def test_a_checkpoint_of_another_user_is_named_as_that(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole: nobody is told to delete it."""
    out = run.train(make_config(model_folder, table, tmp_path / "out", max_steps=2, save_steps=1))

    def refuse(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("classify.training.checkpoint.file_sha256", refuse)
    with pytest.raises(PermissionError, match="step-"):
        run.train(make_config(model_folder, table, out, max_steps=4, resume_from_checkpoint=True))


def test_a_colon_in_the_folders_name(here: Path, model_folder: Path, table: Path) -> None:
    """Arrow takes such a path for a URI."""
    out = Path("run-10:30")
    run.train(make_config(model_folder, table, out, max_steps=2))
    assert len(ScoredRows.read(out).targets) > 0
    again = make_config(model_folder, table, Path("b"), max_steps=2, split_like=str(out))
    assert (run.train(again) / "split.parquet").read_bytes() == (out / "split.parquet").read_bytes()

"""Where a run goes: its own folder, a run to go on with, never somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, TrainingConfig
from classify.errors import InputError
from classify.training.output_dir import OutputDirPlan, plan_output_dir


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "interrupted"}')


def wanted(**settings: object) -> OutputDirPlan:
    training = TrainingConfig(**settings)  # type: ignore[arg-type]
    return plan_output_dir(RunConfig(DataConfig(data="my.csv"), training=training))


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


def test_resume_without_a_name_takes_the_newest_run_of_the_table(here: Path) -> None:
    for name in ("my-1", "my-2", "mine-7"):
        begun(here / "runs" / name)
    assert wanted(resume_from_checkpoint=True).folder == Path("runs/my-2")


def test_a_named_checkpoint_is_where_training_goes_on(here: Path) -> None:
    begun(here / "out")
    (here / "out" / "checkpoints" / "step-00000100").mkdir(parents=True)
    result = wanted(resume_from_checkpoint="out/checkpoints/step-00000100")
    assert (result.folder, result.checkpoint) == (Path("out"), Path("out/checkpoints/step-00000100"))


def test_ranks_that_do_not_decide_look_at_no_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may have begun the run in the meantime, on the same disk."""
    begun(here / "out")
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert wanted(output_dir="out").folder == Path("out")

"""Which folder a restarted job goes on in: its own, never that of another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from classify.checks import _take_up
from classify.config import DataConfig, RunConfig, TrainingConfig
from classify.destination import check_destination


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, in a job that was restarted once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    return tmp_path


def begun(folder: Path, job: str | None) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"job": job, "status": "interrupted"}))


def settled(**settings: object) -> tuple[Path | None, TrainingConfig]:
    config = RunConfig(DataConfig(data="my.csv"), training=TrainingConfig(**settings))  # type: ignore[arg-type]
    _take_up(config.training)
    return check_destination(config).folder, config.training


def test_the_folder_this_job_began(here: Path) -> None:
    begun(here / "runs" / "my-1", "job-7")
    begun(here / "runs" / "my-2", "another")
    folder, training = settled()
    assert folder == Path("runs/my-1")
    assert training.resume_from_checkpoint is True


def test_a_folder_of_its_own_where_it_began_none(here: Path) -> None:
    begun(here / "runs" / "my-1", "another")
    assert settled()[0] is None


def test_an_own_folder_is_not_emptied_again(here: Path) -> None:
    begun(here / "out", "job-7")
    folder, training = settled(output_dir="out", overwrite_output_dir=True)
    assert folder == Path("out")
    assert (training.overwrite_output_dir, training.resume_from_checkpoint) == (False, True)


def test_an_earlier_run_is_not_taken_up_where_it_was_to_be_emptied(here: Path) -> None:
    begun(here / "out", "another")
    training = settled(output_dir="out", overwrite_output_dir=True)[1]
    assert (training.overwrite_output_dir, training.resume_from_checkpoint) == (True, False)


def test_a_first_attempt_is_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    begun(here / "runs" / "my-1", "job-7")
    folder, training = settled()
    assert folder is None
    assert training.resume_from_checkpoint is False

"""Where a job goes that its launcher starts anew: on in its own folder, never in that of another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from classify.config.schema import DataConfig, RunConfig, TrainingConfig
from classify.errors import InputError
from classify.launch.restarts import job_name
from classify.training.output_dir import Destination, begun_before, check_destination


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, in the second attempt of a job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_abc/none_xyz/attempt_1/0/error.json")
    return tmp_path


def begun(folder: Path, job: str | None) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"job": [job, "an agent elsewhere"], "status": "interrupted"}))


def wanted(**settings: object) -> Destination:
    training = TrainingConfig(**settings)  # type: ignore[arg-type]
    return check_destination(RunConfig(DataConfig(data="my.csv"), training=training))


def test_the_name_stays_and_is_no_other_jobs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of --rdzv-id, which people use again."""
    first = job_name()
    assert first is not None
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_abc/none_xyz/attempt_2/0/error.json")
    assert job_name() == first
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_abc/none_uvw/attempt_0/0/error.json")
    assert job_name() != first
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert job_name() is None


def test_the_folder_this_job_began(here: Path) -> None:
    begun(here / "runs" / "my-1", job_name())
    begun(here / "runs" / "my-2", "another")
    assert begun_before(wanted()) == Destination(Path("runs/my-1"), "my", resume=True)


def test_a_folder_of_its_own_where_it_began_none(here: Path) -> None:
    begun(here / "runs" / "my-1", "another")
    assert begun_before(wanted()) is None


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


def test_an_own_folder_is_not_emptied_again(here: Path) -> None:
    begun(here / "out", job_name())
    found = begun_before(wanted(output_dir="out", overwrite_output_dir=True))
    assert found == Destination(Path("out"), "my", resume=True)


def test_an_earlier_run_is_not_taken_up_where_it_was_to_be_emptied(here: Path) -> None:
    begun(here / "out", "another")
    found = wanted(output_dir="out", overwrite_output_dir=True)
    assert (found.overwrite, begun_before(found)) == (True, None)


def test_somebody_elses_folder_is_refused_in_every_attempt(here: Path) -> None:
    begun(here / "out", "another")
    with pytest.raises(InputError, match="exists and is not empty"):
        wanted(output_dir="out")


def test_a_named_checkpoint_is_where_the_first_attempt_began(here: Path) -> None:
    """It may be gone by now, and the newest one is further."""
    begun(here / "out", job_name())
    (here / "out" / "checkpoints").mkdir()
    found = wanted(resume_from_checkpoint="out/checkpoints/step-00000100")
    assert (found.folder, found.checkpoint) == (Path("out"), None)


def test_ranks_that_do_not_decide_look_at_no_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may have begun the run in the meantime, on the same disk."""
    begun(here / "out", "another")
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert wanted(output_dir="out").folder == Path("out")

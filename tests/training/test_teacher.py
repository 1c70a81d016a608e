"""--unlabelled-data: a teacher labels texts, which train the model, too."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.data.split_record import PARTS, SplitRecord
from classify.errors import InputError
from classify.training.inputs import check
from classify.training.run import train
from classify.training.teacher import FILE
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.processes import run
from tests.support.runs import make_config, read_json

ROWS = tiny.table_rows(60)
TEXTS = [text for text, _ in tiny.table_rows(90, seed=1)]
SETTINGS: dict[str, Any] = {"dropout": 0.0, "contrastive_steps": 3, "keep_source": True}


@pytest.fixture
def unlabelled(tmp_path: Path) -> str:
    """A table of new texts, with some that have a label elsewhere and some twice."""
    path = tmp_path / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["body"], *([text] for text in (*TEXTS, *TEXTS[:9], *(row[0] for row in ROWS[:9])))]
        )
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.write_table(tmp_path / "rows.csv", ROWS)


def sources(folder: Path) -> list[dict[str, Any]]:
    return [source for source in read_json(folder / "run.json")["label_sources"] if source["name"] == "teacher"]


@pytest.mark.parametrize("folds", [0, 2])
def test_the_own_model_teaches(
    model_folder: Path, tmp_path: Path, table: Path, unlabelled: str, folds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains first, in the same splits, and is kept beside the run."""
    settings = {**SETTINGS, "folds": folds, "unlabelled_data": unlabelled}
    folder = train(make_config(model_folder, table, tmp_path / "run", **settings))
    assert (
        "teacher: this run's own model, trained first on the labelled rows, labels 90 texts" in capsys.readouterr().out
    )
    teacher = tmp_path / "run-teacher"
    assert [source["rows"] for source in sources(folder)] == [90]
    assert (teacher / FILE).is_file()
    alone = train(make_config(model_folder, table, tmp_path / "alone", **{**SETTINGS, "folds": folds}))
    assert difference(folder, alone) > 1e-3
    if folds:  # the teacher is the run without the texts
        assert difference(teacher, alone) < 1e-6
        assert (teacher / "predictions.csv").read_bytes() == (alone / "predictions.csv").read_bytes()
    else:  # which learns from validation rows once they are scored; a student is yet to be scored on them
        assert [PARTS[part] for part in SplitRecord.read(str(teacher)).learned] == ["train"]


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_resumed_run_asks_the_same_teacher(
    model_folder: Path, tmp_path: Path, table: Path, unlabelled: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained or judged again, on other devices neither; nor is a teacher that was finished before."""
    monkeypatch.chdir(tmp_path)
    words = ["run_classify.py", "--data", str(table), "--unlabelled-data", unlabelled, "--model", str(model_folder)]
    words += ["--cpu", "--folds", "2", "--epochs", "1", *(["--output-dir", "run"] if named else [])]
    first = run(tmp_path, *words, "--resume")  # starts afresh
    assert first.returncode == 0, first.stderr
    folder = tmp_path / ("run" if named else "runs/rows-1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = run(tmp_path, *words, "--resume")
    assert again.returncode == 0, again.stderr
    assert "trained first" not in again.stdout
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    longer = run(tmp_path, "run_classify.py", "--resume", str(folder), "--epochs", "2", "--nproc", "2")
    assert longer.returncode == 0, longer.stderr
    assert "trained first" not in longer.stdout


def test_a_fold_learns_from_a_teacher_that_has_not_seen_it(
    model_folder: Path, tmp_path: Path, table: Path, unlabelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each student's targets are those of its fold's teacher; the final one's are their mean."""
    from classify.training import setup

    seen: dict[int | None, np.ndarray] = {}
    original = setup.TrainingContext.rows_to_learn

    def note(self: setup.TrainingContext, fold: int | None = None) -> Any:
        rows = original(self, fold)
        if self.splits.sources:
            seen[fold] = rows.targets[-90:]
        return rows

    monkeypatch.setattr(setup.TrainingContext, "rows_to_learn", note)
    train(make_config(model_folder, table, tmp_path / "run", **SETTINGS, folds=2, unlabelled_data=unlabelled))
    assert set(seen) == {None, 0, 1}
    assert np.abs(seen[0] - seen[1]).max() > 1e-4
    assert np.allclose((seen[0] + seen[1]) / 2, seen[None], atol=1e-6)


def test_a_result_folder_teaches_what_it_knows(
    model_folder: Path, tmp_path: Path, table: Path, unlabelled: str
) -> None:
    """A teacher with another label, and without one, teaches the labels that both have."""
    rows = [(text, {"app": "other"}.get(label, label)) for text, label in ROWS]
    teacher = train(make_config(model_folder, tiny.write_table(tmp_path / "t.csv", rows), tmp_path / "t", dropout=0.0))
    config = make_config(
        model_folder, table, tmp_path / "run", **SETTINGS, unlabelled_data=unlabelled, teacher=str(teacher)
    )
    folder = train(config)
    (source,) = sources(folder)
    assert 0 < source["rows"] <= 90
    assert not (tmp_path / "run-teacher").exists()


def test_a_teacher_of_another_task_is_refused(model_folder: Path, tmp_path: Path, table: Path, unlabelled: str) -> None:
    scores = tiny.write_table(
        tmp_path / "s.csv", [(text, f"{number / 7:.3f}") for number, (text, _) in enumerate(ROWS)]
    )
    teacher = train(make_config(model_folder, scores, tmp_path / "t", dropout=0.0))
    with pytest.raises(InputError, match=r"--teacher .*\(task regression\). Expected labels of 'app', 'card', 'money'"):
        check(make_config(model_folder, table, tmp_path / "run", unlabelled_data=unlabelled, teacher=str(teacher)))


@pytest.mark.slow
def test_two_processes_teach_and_learn_alike(model_folder: Path, tmp_path: Path, table: Path, unlabelled: str) -> None:
    words = ["run_classify.py", "--data", str(table), "--unlabelled-data", unlabelled, "--model", str(model_folder)]
    words += ["--cpu", "--dropout", "0", "--folds", "2", "--epochs", "1", "--keep-source"]
    for name, more in (("one", []), ("two", ["--nproc", "2"])):
        done = run(tmp_path, *words, *more, "--output-dir", name)
        assert done.returncode == 0, done.stderr
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-5

"""A flag beside --resume wins over what was given then, or is refused; what the recipe chose is chosen again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from tests.support.runs import read_json


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "out"
    words = ["--data", str(table), "--model", str(model_folder), "--epochs", "1", "--contrastive-steps", "2", "--cpu"]
    assert main(["train", *words, "--output-dir", str(out)]) == 0
    return out


def test_run_json_has_what_was_given_beside_what_is_used(finished: Path, table: Path, model_folder: Path) -> None:
    run = read_json(finished / "run.json")
    assert run["given"] == {
        "data": str(table), "model": str(model_folder), "num_train_epochs": 1.0, "contrastive_steps": 2,
        "use_cpu": True, "output_dir": str(finished),
    }  # fmt: skip
    assert run["config"]["training"]["batch_size"] == 8, "by the recipe"


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--preset", "fast"], "--preset was default and is fast"),
        (["--contrastive-steps", "5"], "--contrastive-steps was 2 and is 5"),
        (["--head", "random"], "--head was probe and is random"),
    ],
)
def test_what_a_run_began_with_is_not_changed_in_silence(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], fault: str
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    assert main(["train", "--resume", str(tmp_path / "out"), *flags]) == 2
    assert f"the run was started with other settings: {fault}. Give the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        (["--keep", "last"], "--keep was auto and is last"),
        (["--patience", "3"], "--patience was None and is 3"),
        (["--learning-rate", "1e-4"], "--learning-rate was 5e-05 and is 0.0001"),
    ],
)
def test_a_flag_wins_and_is_noted(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], change: str
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    assert main(["train", "--resume", str(tmp_path / "out"), "--epochs", "2", *flags]) == 0
    assert re.search(rf"note: .*{re.escape(change)}.* from step", capsys.readouterr().out)


def test_class_weights_that_changed_in_their_file_are_noted(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, out = tmp_path / "weights.json", tmp_path / "out"
    weights.write_text('{"app": 1, "card": 1, "money": 1}')
    words = ["--data", str(table), "--model", str(model_folder), "--epochs", "1", "--class-weights", str(weights)]
    assert main(["train", *words, "--cpu", "--contrastive-steps", "0", "--output-dir", str(out)]) == 0
    shutil.copytree(out, tmp_path / "same")
    weights.write_text('{"app": 1, "card": 9, "money": 1}')
    assert main(["train", "--resume", str(out), "--epochs", "2"]) == 0
    change = "--class-weights was [1.0, 1.0, 1.0] and is [1.0, 9.0, 1.0]"
    assert change in capsys.readouterr().out
    weights.write_text('{"money": 1, "app": 1.0, "card": 1}')
    assert main(["train", "--resume", str(tmp_path / "same"), "--epochs", "2"]) == 0
    assert "--class-weights was" not in capsys.readouterr().out


def test_a_table_that_has_moved_leaves_the_other_settings(finished: Path, table: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    moved = shutil.copy(table, tmp_path / "moved.csv")
    assert main(["train", "--resume", str(tmp_path / "out"), "--data", str(moved), "--epochs", "2"]) == 0
    given = read_json(tmp_path / "out" / "run.json")["given"]
    assert given["data"] == str(moved)
    assert given["contrastive_steps"] == 2


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda state: state["progress"].update(rows_seen=7), "unexpected keyword argument 'rows_seen'"),
        (lambda state: state.pop("scaler"), "KeyError: 'scaler'"),
        (lambda state: state.pop("settings"), "KeyError: 'settings'"),
        (lambda state: state.update(progress=[1]), "TypeError"),
    ],
)
def test_a_state_that_another_version_wrote_is_no_internal_error(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], Any],
    fault: str,
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (folder,) = [path for path in (tmp_path / "out" / "checkpoints").iterdir() if path.name != "step-00000000"]
    state = read_json(folder / "state.json")
    change(state)
    written = json.dumps(state).encode()
    (folder / "state.json").write_bytes(written)
    manifest = read_json(folder / "manifest.json")
    manifest["files"]["state.json"] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["train", "--resume", str(tmp_path / "out"), "--epochs", "2"]) == 3
    line = capsys.readouterr().err
    assert "another version of this program wrote its state.json" in line
    assert fault in line

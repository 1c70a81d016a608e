"""The power fails: a valid checkpoint is found afterwards, and a result folder is whole or says that it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.cli import main
from classify.config.stored_run import FILE
from classify.files import read_json
from classify.training import checkpoint
from tests.support import tiny
from tests.support.power import Power
from tests.support.processes import Process, unlaunched
from tests.torture.test_disk import save

SCORES = ["scores/predictions.csv", "scores/metrics.json", "scores/run.json"]
EXPORTED = ["exported/model.onnx", "exported/config.json", "exported/classify.json", "exported/export.json"]
RESULT = ("model.safetensors", "config.json", "tokenizer.json", "classify.json", "predictions.csv", "metrics.json")


def save_and_look(root: Path, copies: Path) -> None:
    """Save four checkpoints, of which two are kept; at each operation the last one that was reported is there."""
    power = Power(root, copies, pytest.MonkeyPatch())
    saved, operations = 0, 0

    def look(kind: str, name: str, state: Path) -> None:
        nonlocal operations
        operations += 1
        found, problems = checkpoint.find_newest(state / "out" / "checkpoints")
        assert not problems, (kind, name, problems)
        assert (0 if found is None else found.step) >= saved, (kind, name)

    power.look = look
    power.begin()
    for step in range(1, 5):
        save(root / "out" / "checkpoints", step, keep=2)
        saved = step
    assert operations > 100


def test_no_checkpoint_that_was_reported_is_lost(tmp_path: Path) -> None:
    (tmp_path / "disk" / "out").mkdir(parents=True)
    saving = Process(save_and_look, (tmp_path / "disk", tmp_path / "copies"), tmp_path, unlaunched()).finish()
    assert saving.returncode == 0, saving.stderr


def train_and_look(root: Path, copies: Path, words: list[str]) -> int:
    """Train, and extend the run; whenever the record says that it is finished, all files are those of that end."""
    power = Power(root, copies, pytest.MonkeyPatch())
    finished, operations = 0, 0

    def look(kind: str, name: str, state: Path) -> None:
        nonlocal finished, operations
        operations += 1
        record = state / "out" / FILE
        if not record.exists() or read_json(record)["status"] != "finished":
            return
        finished += 1
        last = checkpoint.find_newest(state / "out" / "checkpoints")[0]
        assert last is not None, (kind, name)
        assert read_json(state / "out" / "metrics.json")["train"]["steps"] == last.step, (kind, name)
        for file in RESULT:
            now = (root / "out" / file).read_bytes()
            assert (state / "out" / file).read_bytes() == now, (kind, name, file)

    power.look = look
    power.begin()
    out = ["--output-dir", str(root / "out"), "--epochs"]
    assert main([*words, *out, "1"], program="run_classify.py") == 0
    once = finished
    assert once > 0
    assert main([*words, *out, "2", "--resume"], program="run_classify.py") == 0
    assert finished > once
    assert operations > 200
    return 0


@pytest.mark.slow
def test_a_result_folder_is_whole_or_says_that_it_is_not(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(60))
    words = [
        "--data", str(table), "--model", str(model_folder), "--cpu", "--contrastive-steps", "0", "--report-to", "none",
    ]  # fmt: skip
    done = Process(train_and_look, (tmp_path / "disk", tmp_path / "copies", words), tmp_path, unlaunched()).finish()
    assert done.returncode == 0, done.stderr


def command_and_look(root: Path, copies: Path, words: list[str], files: list[str]) -> int:
    """Run a command twice; a file that is there is the earlier one or the one that the command ends with."""
    power = Power(root, copies, pytest.MonkeyPatch())
    states: dict[str, set[bytes]] = {file: set() for file in files}

    def look(kind: str, name: str, state: Path) -> None:
        for file, contents in states.items():
            if (state / file).exists():
                contents.add((state / file).read_bytes())

    power.look = look
    power.begin()
    before = {file: (root / file).read_bytes() if (root / file).exists() else None for file in files}
    assert main(words, program="classify") == 0
    for file, contents in states.items():
        after = (root / file).read_bytes()
        assert contents <= {before[file], after}, file
        assert after in contents, f"{file} was not flushed"
    return 0


@pytest.mark.slow
def test_what_other_commands_write_is_whole(model_folder: Path, tmp_path: Path) -> None:
    disk, table = tmp_path / "disk", tiny.write_table(tmp_path / "my.csv", tiny.table_rows(60))
    disk.mkdir()
    out, common = str(disk / "out"), ["--contrastive-steps", "0", "--report-to", "none", "--cpu"]
    train = ["--data", str(table), "--model", str(model_folder), *common, "--output-dir", out, "--folds", "3"]
    trained = Process(main, (train, "run_classify.py"), tmp_path, unlaunched()).finish()
    assert trained.returncode == 0, trained.stderr
    predictions = ["predict", "--model", out, "--data", str(table), "--cpu", "--out", str(disk / "predictions.csv")]
    commands: list[tuple[list[str], list[str]]] = [
        (predictions, ["predictions.csv"]),
        ([*predictions, "--overwrite", "--min-confidence", "0.5"], ["predictions.csv"]),
        (["evaluate", "--model", out, "--data", str(table), "--cpu", "--output-dir", str(disk / "scores")], SCORES),
        (["export", "--model", out, "--to", "onnx", "--out", str(disk / "exported")], EXPORTED),
    ]
    for words, files in commands:
        arguments = (disk, tmp_path / "copies", words, files)
        done = Process(command_and_look, arguments, tmp_path, unlaunched()).finish()
        assert done.returncode == 0, (words[0], done.stderr)

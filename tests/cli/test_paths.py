"""What a path may be: several, a pattern, ~, a pipe; and what is said of an address or a folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from classify.commands.predict import make_parser
from classify.config.parser import parse_training
from classify.errors import InputError
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.processes import run
from tests.support.runs import make_config, read_json

ROWS = tiny.table_rows(60)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two tables of 40 and 20 rows."""
    monkeypatch.chdir(tmp_path)
    tiny.write_table(tmp_path / "a.csv", ROWS[:40])
    tiny.write_table(tmp_path / "b.csv", ROWS[40:])
    return tmp_path


@pytest.mark.parametrize(
    "words", [["--data", "a.csv", "--data", "b.csv"], ["--data", "a.csv", "b.csv"], ["--data", "a.csv,b.csv"]]
)
def test_several_tables_are_one(two: Path, words: list[str]) -> None:
    data = parse_training(words, "p").data.data
    assert data is not None
    table = read_table(data)
    assert table.column("text") == [text for text, _ in ROWS]
    assert table.describe_rows([0, 41]) == "a.csv line 2, b.csv line 3"
    assert make_parser("p").read(["--model", "m", *words]).data == data


def test_a_list_in_a_file(two: Path) -> None:
    (two / "run.yaml").write_text("data: [a.csv, b.csv]\nlabel-column: [x, y]\n")
    data = parse_training(["--config", "run.yaml"], "p").data
    assert (data.data, data.label_column) == ("a.csv,b.csv", "x,y")


def test_a_run_on_several_tables_is_resumed_from_elsewhere(
    two: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = train(make_config(model_folder, Path("a.csv,b.csv"), two / "out", max_steps=1))
    (two / "elsewhere").mkdir()
    monkeypatch.chdir(two / "elsewhere")
    data = parse_training(["--resume", str(out)], "p").data.data
    assert data == f"{two / 'a.csv'},{two / 'b.csv'}"
    assert read_json(out / "run.json")["data"]["rows"] == 60


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["--label-column", "a", "--label-column", "b"], {"label_column": "a,b"}),
        (["--text-column", "a", "--text-column=b,c"], {"text_column": "a,b,c"}),
        (["--seed", "3", "--seed", "3"], {"seed": 3}),
        (["--cpu", "--cpu"], {"use_cpu": True}),
    ],
)
def test_a_flag_given_again(words: list[str], joined: dict[str, object]) -> None:
    settings = parse_training(["--data", "x.csv", *words], "p").flat()
    assert {name: settings[name] for name in joined} == joined


@pytest.mark.parametrize(
    "words",
    [["--seed", "1", "--seed", "2"], ["--model", "a", "--model-name-or-path", "b"], ["--epochs", "1", "--epochs=2"]],
)
def test_a_flag_with_two_values_is_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match=r"is given twice \(. and .\); give it once"):
        parse_training(["--data", "x.csv", *words], "p")
    with pytest.raises(InputError, match="--out is given twice"):
        make_parser("p").read(["--model", "m", "--out", "a.csv", "--out", "b.csv"])


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = parse_training(["--data=~/my.csv", "--output-dir=~/out"], "p")
    assert (config.data.data, config.training.output_dir) == (f"{tmp_path}/my.csv", f"{tmp_path}/out")
    assert make_parser("p").read(["--model=~/m"]).model == f"{tmp_path}/m"
    assert parse_training(["--data", "x", "--text-column-delimiter", "~"], "p").data.text_column_delimiter == "~"


def test_a_pipe_by_its_name(tmp_path: Path) -> None:
    """As a shell's <(zcat my.csv.gz), which can be read once."""
    pipe, content = tmp_path / "pipe", (tiny.write_table(tmp_path / "my.csv", ROWS)).read_bytes()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    table = read_table(str(pipe))
    writer.join(10)
    assert (table.column("text"), table.path) == ([text for text, _ in ROWS], str(pipe))


@pytest.mark.parametrize("path", ["https://example.org/my.csv", "s3://bucket/my.csv"])
def test_an_address_is_no_path(path: str, tmp_path: Path) -> None:
    done = run(tmp_path, "classify", "inspect", "--data", path)
    assert (done.returncode, done.stderr) == (
        2, f"error: --data {path}: expected a file. Got an address instead; download it first.\n"
    )  # fmt: skip


def test_a_folder_of_part_files_names_the_pattern(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(3):
        tiny.write_table(tmp_path / "parts" / f"part-{number}.csv", ROWS[number::3])
    with pytest.raises(InputError) as caught:
        read_table(str(tmp_path / "parts"))
    named = f"'{tmp_path}/parts/*.csv'"
    assert f"For its files as one table give --data {named}." in str(caught.value)
    assert len(read_table(named.strip("'"))) == 60

"""README.md: what it shows to type is run, and what it shows as printed is what is printed."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from classify.tables.read import read_table
from tests.support import tiny
from tests.support.documents import DISTRIBUTED, commands, run_snippets
from tests.support.processes import ROOT, Process, run, unlaunched
from tests.support.runs import COMMAND_FILES, read_json

README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCED.findall(README)
# The one that begins with the first line of a run.
SAMPLE = next(text for _, text in BLOCKS if text.startswith("table: "))
SNIPPETS = [text for language, text in BLOCKS if language == "python"]
# Commands with what they print: (command, output).
PRINTED = [
    (command, output)
    for _, text in BLOCKS
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
]
TYPED = [line.split("#")[0].strip() for line in re.findall(r"^    (\S.*)", FENCED.sub("", README), re.MULTILINE)]
TRAIN = "python run_classify.py --data my.csv"
TRAIN_BY_FILE = "python run_classify.py --config configs/quickstart.yaml --learning-rate 3e-5"
PREDICT = "classify predict --model runs/my-1 --data new.csv --out predictions.csv"
USES = (
    "classify evaluate --model runs/my-1 --data labelled.csv",
    'classify explain --model runs/my-1 "PIN is blocked"',
    "classify export --model runs/my-1 --to onnx",
)
# These lines depend on the model, the processor or the number of steps: what they are called, and their flags.
VARYING = ("model", "device", "time")


@pytest.fixture(scope="module")
def place(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page speaks of, and what has become of its first command."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "data").mkdir()
    shutil.copy(ROOT / "data" / "tickets.csv", folder / "data")
    shutil.copytree(ROOT / "configs", folder / "configs")
    tiny.write_table(folder / "my.csv", tiny.table_rows(30))
    tiny.write_table(folder / "new.csv", tiny.table_rows(5, seed=1))
    tiny.write_table(folder / "labelled.csv", tiny.table_rows(9, seed=2))
    (folder / "ragged.csv").write_bytes(b"text,label\nlost card,card\nwhere, when,money\n")
    done = type_in(folder, TRAIN, model_folder)
    assert done.returncode == 0, done.stderr
    return folder


def type_in(folder: Path, line: str, model: Path | None = None) -> Any:
    """What a command comes to; with a model, it trains two steps of that instead of the default one."""
    words = shlex.split(line)[1:] if line.startswith("python ") else shlex.split(line)
    quick = ["--model", str(model), "--max-steps", "2", "--cpu"] if model is not None else []
    return run(folder, *words, *quick)


def test_the_translation_has_the_same_figures() -> None:
    """Of the table of accuracies."""
    found = []
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        found.append([re.findall(r"\d\.\d{3}", line) for line in text.splitlines() if re.match(r"\| .*0\.\d{3}", line)])
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_every_command_is_known_here() -> None:
    """A command that is new on the page is to be run by a test."""
    others = {"make run", "make test", ". .venv/bin/activate"}
    assert {TRAIN, TRAIN_BY_FILE, PREDICT, *USES} <= set(TYPED)
    assert set(TYPED) <= {TRAIN, TRAIN_BY_FILE, PREDICT, *USES, *others, *commands(DISTRIBUTED)}
    for target in ("run", "test"):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    # Of the tables, which leave out the data, the flags may stand in another order.
    in_tables = re.findall(r"^\| `((?:python|torchrun) [^`]*)` \|", README, re.MULTILINE)
    assert len(in_tables) == 3
    known = [sorted(line.split()) for line in commands(DISTRIBUTED)]
    for line in in_tables:
        assert sorted(f"{line} --data my.csv".split()) in known, line


def test_it_trains(place: Path, model_folder: Path) -> None:
    done = type_in(place, TRAIN_BY_FILE, model_folder)
    assert done.returncode == 0, done.stderr
    for name in ("my-1", "tickets-1"):
        assert {path.name for path in (place / "runs" / name).iterdir()} == COMMAND_FILES
    assert read_json(place / "runs" / "tickets-1" / "run.json")["config"]["training"]["learning_rate"] == 3e-5


def test_it_predicts(place: Path) -> None:
    done = type_in(place, PREDICT)
    assert done.returncode == 0, done.stderr
    columns = read_table(str(place / "predictions.csv")).columns
    assert columns == ["text", "label", "predicted_label", "confidence", "prob_app", "prob_card", "prob_money"]


@pytest.mark.parametrize("line", USES)
def test_what_can_be_done_with_a_run(place: Path, line: str) -> None:
    done = type_in(place, line)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("line", "output"), PRINTED, ids=[line for line, _ in PRINTED])
def test_what_it_prints(place: Path, line: str, output: str) -> None:
    done = type_in(place, line)
    assert (done.stderr or done.stdout).startswith(output)
    assert done.returncode == (2 if output.startswith("error: ") else 0)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["pipeline", "classify"])
def test_the_snippets(place: Path, model_folder: Path, snippet: str) -> None:
    done = Process(run_snippets, ([snippet], str(model_folder)), place, unlaunched()).finish()
    assert done.returncode == 0, done.stderr


def structure(printed: str) -> list[str]:
    """The lines without their numbers, and without what depends on machine or scores; alike ones in a row once."""
    lines = []
    for line in printed.splitlines():
        name, _, rest = line.partition(": ")
        if name in VARYING:
            line = f"{name}: {re.findall(r'; (--[^()]*)[)]$', rest)}"
        line = re.sub(r"\S+ -m classify", "classify", line).removesuffix(" - best so far")
        lines.append(re.sub(r"\d+([.,]\d+)*", "#", " ".join(line.split())))
    # The recipe has no epochs where steps are given; test_claims.py has its line. The last is progress.
    varying = ("note: ", "keep: ", "max length: ", "recipe: ", "# of # ")
    return [line for line, _ in itertools.groupby(lines) if not line.startswith(varying)]


def test_the_sample_output_is_what_a_run_prints(model_folder: Path, tmp_path: Path) -> None:
    """Line by line, up to the numbers; the run is one of two steps."""
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "data" / "tickets.csv", tmp_path / "data")
    done = type_in(tmp_path, "python run_classify.py --data data/tickets.csv", model_folder)
    assert done.returncode == 0, done.stderr
    expected, got = structure(SAMPLE), structure(done.stdout)
    assert got == expected
    assert len(expected) > 20

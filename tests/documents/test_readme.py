"""README.md: what it shows to type runs, in the order of the page, and what it shows as printed is printed."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.documents import DISTRIBUTED, commands, run_snippets
from tests.support.processes import ROOT, Process, run, unlaunched
from tests.support.runs import COMMAND_FILES, read_json

README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCED.findall(README)
SAMPLE = next(text for _, text in BLOCKS if text.startswith("table: "))
SNIPPETS = [text for language, text in BLOCKS if language == "python"]
# Commands with what they print: (command, output).
PRINTED = [pair for _, text in BLOCKS for pair in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)]
TYPED = [line.split("#")[0].strip() for line in re.findall(r"^    (\S.*)", FENCED.sub("", README), re.MULTILINE)]
# What a shell, make or a launcher does; the launcher's lines are run by tests/distributed/test_launchers.py.
OTHERS = ("make run", "make test", ". .venv/bin/activate", "torchrun --nproc-per-node 2 run_classify.py --data my.csv")
LINES = list(dict.fromkeys(line for line in TYPED if line not in OTHERS))
# These lines depend on the model, the processor or the number of steps: what they are called, and their flags.
VARYING = ("model", "device", "time")


@pytest.fixture(scope="module")
def place(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page speaks of, and what has become of its first command."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "data").mkdir()
    shutil.copy(ROOT / "data" / "tickets.csv", folder / "data")
    shutil.copytree(ROOT / "configs", folder / "configs")
    for name, count in (("my.csv", 30), ("new.csv", 5), ("labelled.csv", 9)):
        tiny.write_table(folder / name, tiny.table_rows(count, seed=count))
    (folder / "ragged.csv").write_bytes(b"text,label\nlost card,card\nwhere, when,money\n")
    assert LINES[0].endswith("run_classify.py --data my.csv")
    type_in(folder, LINES[0], model_folder)
    return folder


def type_in(folder: Path, line: str, model: Path) -> Any:
    """What a command comes to; one that trains takes two steps of a tiny model."""
    words = shlex.split(line.removeprefix("python "))
    if words[0] == "run_classify.py":
        words += ["--model", str(model), "--max-steps", "2", "--cpu"]
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("line", LINES[1:])
def test_its_commands(place: Path, model_folder: Path, line: str) -> None:
    type_in(place, line, model_folder)


def test_its_runs(place: Path) -> None:
    for name in ("my-1", "tickets-1"):
        assert {path.name for path in (place / "runs" / name).iterdir()} >= COMMAND_FILES
    assert read_json(place / "runs" / "tickets-1" / "run.json")["config"]["training"]["learning_rate"] == 3e-5
    assert (place / "predictions.csv").exists()


def test_its_tables_name_commands_that_are_run() -> None:
    """They leave out the data, and their flags may stand in another order than in the guide."""
    in_tables = re.findall(r"^\| `((?:python|torchrun) [^`]*)` \|", README, re.MULTILINE)
    known = [sorted(line.split()) for line in commands(DISTRIBUTED)]
    assert in_tables
    assert [line for line in in_tables if sorted(f"{line} --data my.csv".split()) not in known] == []


@pytest.mark.parametrize(("line", "output"), PRINTED, ids=[line for line, _ in PRINTED])
def test_what_it_prints(place: Path, line: str, output: str) -> None:
    done = run(place, *shlex.split(line.removeprefix("python ")))
    assert (done.stderr or done.stdout).startswith(output)


def test_the_snippets(place: Path, model_folder: Path) -> None:
    done = Process(run_snippets, (SNIPPETS, str(model_folder)), place, unlaunched()).finish()
    assert done.returncode == 0, done.stderr


def structure(printed: str) -> list[str]:
    """The lines without their numbers, and without what depends on machine or scores; alike ones in a row once."""
    lines = []
    for line in printed.splitlines():
        name, _, _ = line.partition(": ")
        if name in VARYING:
            line = f"{name}: {re.findall(r'; (--[^()]*)[)]$', line)}"
        line = re.sub(r"\S+ -m classify", "classify", line).removesuffix(" - best so far")
        lines.append(re.sub(r"\d+([.,]\d+)*", "#", " ".join(line.split())))
    # The recipe has no epochs where steps are given. The last is progress.
    varying = ("note: ", "keep: ", "max length: ", "recipe: ", "# of # ")
    return [line for line, _ in itertools.groupby(lines) if not line.startswith(varying)]


def test_the_sample_output_is_what_a_run_prints(model_folder: Path, tmp_path: Path) -> None:
    """Line by line, up to the numbers; the run is one of two steps."""
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "data" / "tickets.csv", tmp_path / "data")
    printed = type_in(tmp_path, "python run_classify.py --data data/tickets.csv", model_folder).stdout
    assert structure(printed) == structure(SAMPLE)

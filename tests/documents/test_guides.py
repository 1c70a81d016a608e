"""The guides in docs: what they show to type runs, in the order of the page."""

from __future__ import annotations

import csv
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import openpyxl
import pytest

from tests.support import tiny
from tests.support.documents import commands, run_snippets
from tests.support.processes import ROOT, Process, run, unlaunched

QUICKSTART, PYTHON, LOOP, OPEN_SET, NEXT_WEEK = (
    ROOT / "docs" / name for name in ("quickstart.md", "python.md", "loop.md", "open-set.md", "next-week.md")
)

pytestmark = pytest.mark.slow


def noisy_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Rows that are easy to classify, of which every tenth has the label of another class."""
    draw, classes = random.Random(seed), list(tiny.CLASS_WORDS)
    rows = []
    for number in range(count):
        words = [*draw.choices(tiny.CLASS_WORDS[classes[number % 3]], k=6), *draw.choices(tiny.WORDS, k=3)]
        rows.append((" ".join(words), classes[(number + (number % 10 == 4)) % 3]))
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide")
    tiny.write_table(folder / "my.csv", noisy_rows(90, seed=0))
    for name, seed in (("new.csv", 1), ("labelled.csv", 2)):
        tiny.write_table(folder / name, noisy_rows(12, seed))
    return folder


def follow(
    page: Path, folder: Path, model: Path, training: str, folds: str = "--epochs 0"
) -> Iterator[tuple[list[str], str]]:
    """Type each command of a page, one after the other; yields its words and what it printed.

    `training` makes a training short, `folds` one that cross-validates; both are on a tiny model. The labels that clean
    suggests are accepted.
    """
    for line in commands(page):
        words = shlex.split(line)
        if words[1] == "label":  # serves until it is ended; tests.serving has it
            continue
        if words[1] in ("train", "inspect", "start") and "--model" not in words:
            words += ["--model", str(model)]
        if words[1] == "train":
            words += ["--cpu", "--contrastive-steps", "0", *(folds if "--folds" in words else training).split()]
        if words[1] == "clean":
            accept(folder / words[words.index("--apply") + 1])
        done = run(folder, *words)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        yield words, done.stdout


def test_the_quickstart(place: Path, model_folder: Path) -> None:
    assert len(list(follow(QUICKSTART, place, model_folder, "--max-steps 2"))) > 10
    for name in ("predictions.csv", "predictions.parquet", "checked.xlsx", "corrected.csv"):
        assert (place / name).exists()


def test_the_loop(model_folder: Path, tmp_path: Path) -> None:
    """In between come the labels that a person fills in."""
    rows = noisy_rows(160, seed=3)
    tiny.write_table(tmp_path / "labelled.csv", rows[:60])
    tiny.write_table(tmp_path / "texts.csv", [(text, "x") for text, _ in rows], ("text", "source"))
    (tmp_path / "labels.yaml").write_text("".join(f"- {label}\n" for label in sorted({label for _, label in rows})))
    tiny.write_table(tmp_path / "unlabelled.csv", [(text, "x") for text, _ in rows[60:]], ("text", "source"))
    new = [(text, "broken" if "app" in label else label) for text, label in noisy_rows(40, seed=5)]
    tiny.write_table(tmp_path / "new.csv", new)
    for words, printed in follow(LOOP, tmp_path, model_folder, "--epochs 0", "--epochs 16 --learning-rate 1e-3"):
        if words[1] in ("start", "suggest"):
            fill_in(tmp_path / ("runs/topics" if words[1] == "start" else "") / "label-me.csv", dict(rows))
        if words[1] == "compare" and "--data" not in words:
            assert "texts: 60 scored by all" in printed
    assert (tmp_path / "corrected.csv").exists()


def test_none_of_the_classes(place: Path, model_folder: Path) -> None:
    """The table has no such rows."""
    assert list(follow(OPEN_SET, place, model_folder, "--epochs 0"))
    rows = read_rows(place / "strict.csv")
    assert all((row["predicted_label"] == "oos") == (float(row["in_scope"]) < 0.6) for row in rows)


def test_next_week(model_folder: Path, tmp_path: Path) -> None:
    """In between comes the workbook that a person corrects."""
    rows = noisy_rows(160, seed=4)
    tiny.write_table(tmp_path / "my.csv", rows[:120])
    tiny.write_table(tmp_path / "new.csv", [(text, "1.5") for text, _ in rows[120:]], ("text", "price"))
    printed = ""
    for words, printed in follow(NEXT_WEEK, tmp_path, model_folder, "--epochs 4 --learning-rate 1e-3 --folds 0"):
        if words[1] == "predict":
            correct(tmp_path / "checked.xlsx", dict(rows))
        if words[1] == "compare" and "--data" not in words:
            assert "texts: 12 scored by all" in printed
    assert "40 rows" in printed


def correct(path: Path, labels: dict[str, str]) -> None:
    """Correct the labels of a workbook, and name the column as that of the labels."""
    book = openpyxl.load_workbook(path)
    header, *rows = book.worksheets[0].iter_rows()
    names = [cell.value for cell in header]
    assert names[:4] == ["text", "price", "predicted_label", "accepted"]
    header[2].value = "label"
    for row in rows:
        row[2].value = labels[row[0].value]
    book.save(path)


def accept(path: Path) -> None:
    """Accept all suggested labels."""
    rows = read_rows(path)
    write_rows(path, [{**row, "accept": "x"} for row in rows])


def fill_in(path: Path, labels: dict[str, str]) -> None:
    """Label all rows but the last."""
    rows = read_rows(path)
    assert len(rows) == 50
    for row in rows[:-1]:
        assert not row["label"]
        row["label"] = labels[row["text"]]
    write_rows(path, rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_python(place: Path, model_folder: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```$", PYTHON.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 5
    done = Process(run_snippets, (snippets, str(model_folder)), place, unlaunched()).finish()
    assert done.returncode == 0, done.stderr

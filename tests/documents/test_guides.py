"""The guides in docs: what they show to type runs, in the order of the page."""

from __future__ import annotations

import csv
import random
import re
import shlex
from pathlib import Path

import openpyxl
import pytest

from classify.commands import COMMANDS, load_command
from tests.support import tiny
from tests.support.documents import commands, run_snippets
from tests.support.processes import ROOT, Process, run, unlaunched

QUICKSTART, PYTHON, LOOP, OPEN_SET, NEXT_WEEK = (
    ROOT / "docs" / name for name in ("quickstart.md", "python.md", "loop.md", "open-set.md", "next-week.md")
)


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


@pytest.mark.slow
def test_the_quickstart(place: Path, model_folder: Path) -> None:
    """Each command, one after the other; training is short, and on a tiny model."""
    typed = commands(QUICKSTART)
    assert len(typed) > 10
    for line in typed:
        words = shlex.split(line)
        if words[1] == "inspect":
            words += ["--model", str(model_folder)]
        if words[1] == "train":
            steps = ["--epochs", "0"] if "--folds" in words else ["--max-steps", "2"]
            words += ["--model", str(model_folder), "--cpu", "--contrastive-steps", "0", *steps]
        if words[1] == "clean":
            accept(place / words[words.index("--apply") + 1])
        done = run(place, *words)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    for name in ("predictions.csv", "predictions.parquet", "checked.xlsx", "corrected.csv"):
        assert (place / name).exists()


@pytest.mark.slow
def test_the_loop(model_folder: Path, tmp_path: Path) -> None:
    """Each command, and in between the labels that a person fills in."""
    rows = noisy_rows(160, seed=3)
    tiny.write_table(tmp_path / "labelled.csv", rows[:60])
    tiny.write_table(tmp_path / "unlabelled.csv", [(text, "x") for text, _ in rows[60:]], ("text", "source"))
    for line in commands(LOOP):
        words = shlex.split(line)
        if words[1] == "train":
            words += ["--model", str(model_folder), "--cpu", "--contrastive-steps", "0"]
            words += ["--epochs", "16", "--learning-rate", "1e-3"] if "--folds" in words else ["--epochs", "0"]
        if words[1] == "clean":
            accept(tmp_path / words[words.index("--apply") + 1])
        done = run(tmp_path, *words)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if words[1] == "suggest":
            fill_in(tmp_path / "label-me.csv", dict(rows))
        if words[1] == "compare" and "--data" not in words:
            assert "texts: 60 scored by all" in done.stdout
    assert (tmp_path / "corrected.csv").exists()


@pytest.mark.slow
def test_none_of_the_classes(place: Path, model_folder: Path) -> None:
    """The table has no such rows."""
    for line in commands(OPEN_SET):
        words = shlex.split(line)
        if words[1] == "train":
            words += ["--model", str(model_folder), "--cpu", "--contrastive-steps", "0", "--epochs", "0"]
        done = run(place, *words)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    with (place / "strict.csv").open(newline="", encoding="utf-8") as file:
        assert all((row["predicted_label"] == "oos") == (float(row["in_scope"]) < 0.6) for row in csv.DictReader(file))


@pytest.mark.slow
def test_next_week(model_folder: Path, tmp_path: Path) -> None:
    """Each command, and in between the workbook that a person corrects."""
    rows = noisy_rows(160, seed=4)
    tiny.write_table(tmp_path / "my.csv", rows[:120])
    tiny.write_table(tmp_path / "new.csv", [(text, "1.5") for text, _ in rows[120:]], ("text", "price"))
    for line in commands(NEXT_WEEK):
        words = shlex.split(line)
        if words[1] == "train":
            words += ["--model", str(model_folder), "--cpu", "--contrastive-steps", "0", "--epochs", "4"]
            words += ["--learning-rate", "1e-3", "--folds", "0"]
        done = run(tmp_path, *words)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if words[1] == "predict":
            correct(tmp_path / "checked.xlsx", dict(rows))
        if words[1] == "compare" and "--data" not in words:
            assert "texts: 12 scored by all" in done.stdout
    assert "40 rows" in done.stdout


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


@pytest.mark.slow
def test_python(place: Path, model_folder: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```$", PYTHON.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 5
    done = Process(run_snippets, (snippets, str(model_folder)), place, unlaunched()).finish()
    assert done.returncode == 0, done.stderr


LINKED = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", LINKED, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path = (page.parent / target) if target else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name}: {target}#{anchor}"


PAGES = [ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = re.compile(r"(?:python run_classify\.py|torchrun \S.*? run_classify\.py|\bclassify [a-z]+) [^`#|\n]*")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_flags_of_every_command_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lines, cells of tables and words in the text alike; what runs as a whole is tested elsewhere."""
    monkeypatch.chdir(ROOT)
    typed = [
        words
        for words in TYPED.findall(page.read_text(encoding="utf-8"))
        if " -" in words and not words.endswith("--data")
    ]
    for line in typed:
        words = shlex.split(line.replace("...", "x").rstrip("。；，)"))
        if "run_classify.py" in words:
            command, flags = "train", words[words.index("run_classify.py") + 1 :]
        else:
            command, flags = words[1], words[2:]
        if command in COMMANDS and not {"--resume", "--help", "--help-all"} & set(flags):
            _, unknown = load_command(command).make_parser(f"classify {command}").parse_known_args(flags)
            assert not [word for word in unknown if word.startswith("--")], f"{page.name}: {line}"

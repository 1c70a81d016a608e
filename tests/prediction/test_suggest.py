"""classify suggest: which rows it takes, in which order, and that the filled table trains the next model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import load_classifier
from classify.cli import main
from classify.prediction.suggest import drop_near_copies
from classify.tables.read import read_table
from classify.training.inputs import check
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES

NEW = [text for text, _ in tiny.table_rows(40, seed=9)]


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


def suggest(trained: Path, data: Path, out: Path, *more: str) -> int:
    return main(["suggest", "--model", str(trained), "--data", str(data), "--out", str(out), "--cpu", *more])


def write(path: Path, header: list[str], rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_the_least_certain_come_first(trained: Path, tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "new.csv", ["id", "text"], [[str(number), text] for number, text in enumerate(NEW)])
    assert suggest(trained, data, tmp_path / "label-me.xlsx", "--count", "10") == 0
    assert "10 of 40 rows to label" in capsys.readouterr().out
    table = read_table(str(tmp_path / "label-me.xlsx"))
    assert table.columns == ["id", "text", "label", "predicted_label", "confidence"]
    assert set(table.column("label")) == {""}
    with load_classifier(str(trained), use_cpu=True) as classifier:
        ranked = np.sort(classifier.probabilities(NEW), axis=1)
    margins = ranked[:, -1] - ranked[:, -2]
    assert table.column("id") == [str(number) for number in np.argsort(margins, kind="stable")[:10]]
    assert [NEW[int(number)] for number in table.column("id")] == table.column("text")


def test_what_needs_no_label_is_left_out(trained: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    known = read_table(str(table)).column("text")[0]
    rows = [[NEW[0], ""], [NEW[0].upper(), ""], [f"{NEW[0]} ", ""], [" ", "card"], [NEW[1], "card"], [known, ""]]
    long = "one two three four five six seven eight nine"
    rows += [[long, ""], [f"{long} ten", ""], [f"{long} ten eleven twelve thirteen fourteen", ""]]
    data = write(tmp_path / "new.csv", ["text", "label"], rows)
    assert suggest(trained, data, tmp_path / "out.csv") == 0
    out = capsys.readouterr().out
    assert "1 without a text; 1 with a label; 1 in a table of the run; 2 repeated" in out
    chosen = read_table(str(tmp_path / "out.csv")).column("text")
    assert NEW[0] in chosen
    assert len(chosen) == 3, "of two texts with the same words, but for one in ten, the less certain one"
    assert suggest(trained, table, tmp_path / "none.csv") == 2
    assert "no row is left to label (120 with a label" in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()


def test_no_text_of_the_run_is_proposed(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Nor of its test table, or of its rows that belong to no class."""
    rows = tiny.table_rows(90)
    outside = [(f"{text} elsewhere", "none") for text, _ in tiny.table_rows(20, seed=3)]
    tiny.write_table(tmp_path / "my.csv", [*rows[:70], *outside])
    tiny.write_table(tmp_path / "test.csv", rows[70:])
    settings = {"test_data": str(tmp_path / "test.csv"), "out_of_scope_label": "none", "max_steps": 2}
    run = train(make_config(model_folder, tmp_path / "my.csv", tmp_path / "out", **settings))
    texts = [text for text, _ in (*rows, *outside)] + ["something new"]
    data = write(tmp_path / "new.csv", ["text"], [[text] for text in texts])
    assert suggest(run, data, tmp_path / "label-me.csv") == 0
    assert f"{len(texts) - 1} in a table of the run" in capsys.readouterr().out


def test_texts_without_spaces_and_their_near_copies() -> None:
    """By pairs of characters; sentences of their own are all kept."""
    draw = np.random.default_rng(0)
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 500)]
    texts = ["".join(draw.choice(letters, 27)) for _ in range(40)]
    texts += [f"{text[:20]}某{text[21:]}" for text in texts]
    assert len(drop_near_copies(np.arange(80), 80, texts.__getitem__)) == 40


def test_rows_without_any_of_several_labels_are_kept(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """The printed command drops none of the former ones."""
    case = CASES["lists"]
    run = train(make_config(model_folder, case.write(tmp_path / "my.csv"), tmp_path / "out", **case.options))
    data = write(tmp_path / "new.csv", ["text"], [[text] for text in NEW])
    assert suggest(run, data, tmp_path / "label-me.csv", "--count", "3") == 0
    out = capsys.readouterr().out
    assert "delete the rows that you do not label, then train" in out
    assert "--drop-unlabelled" not in out


def test_the_filled_table_trains_the_next_model(
    trained: Path, table: Path, model_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    data = write(tmp_path / "new.csv", ["id", "text"], [[str(number), text] for number, text in enumerate(NEW)])
    assert suggest(trained, data, tmp_path / "label-me.csv", "--count", "12") == 0
    filled = read_table(str(tmp_path / "label-me.csv"))
    rows = [[text, "card" if number < 8 else ""] for number, text in enumerate(filled.column("text"))]
    write(tmp_path / "filled.csv", ["text", "label"], rows)
    both = f"{table},{tmp_path / 'filled.csv'}"
    config = make_config(model_folder, both, tmp_path / "next", split_like=str(trained))
    inputs = check(config)
    splits = (inputs.splits.train, inputs.splits.validation, inputs.splits.test or ())
    assert sum(map(len, splits)) == len(read_table(str(table))) + 8


@pytest.mark.parametrize("case", [name for name in CASES if name != "scores of pairs"])
def test_other_tasks(case: str, model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    one = CASES[case]
    run = train(make_config(model_folder, one.write(tmp_path / "my.csv"), tmp_path / "out", **one.options))
    with (tmp_path / "my.csv").open(encoding="utf-8") as file:
        header = next(csv.reader(file))
    labels = set(header) & set(read_json(run / "classify.json")["label_columns"])
    rows = [
        ["" if name in labels else cell for name, cell in zip(header, one.row(number), strict=True)]
        for number in range(100, 110)
    ]
    data = write(tmp_path / "new.csv", header, rows)
    code = suggest(run, data, tmp_path / "label-me.csv")
    if case == "scores":
        assert code == 2
        assert "the model predicts scores" in capsys.readouterr().err
        return
    assert code == 0
    columns = read_table(str(tmp_path / "label-me.csv")).columns
    assert set(header) <= set(columns)
    assert not any(name.startswith("prob_") for name in columns)


@pytest.mark.parametrize(
    ("out", "words", "part"),
    [
        ("out.csv", "--count 0", "--count must be a whole number above 0"),
        ("out.csv", "--min-confidence 0.5", "--min-confidence"),
        ("-", "", "the rows go to a file"),
        ("a.xml", "", "--out a.xml"),
    ],
)
def test_bad_flags(trained: Path, table: Path, capsys: Any, out: str, words: str, part: str) -> None:
    assert suggest(trained, table, Path(out), *words.split()) == 2
    assert part in capsys.readouterr().err

"""suspects.csv and classify clean: wrong labels are found, and corrected in a copy."""

from __future__ import annotations

import contextlib
import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.cli import main
from classify.errors import InputError
from classify.evaluation import suspects_file as review
from classify.evaluation.suspects_file import ReviewedColumn, Suspects, apply_suspects, find_suspects, write_suspects
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config


@contextlib.contextmanager
def all_listed() -> Iterator[None]:
    """A tiny model is never sure: list what it finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(review, "_MARGIN", 0.0)
        patch.setattr(review, "_SHARE", 1.0)
        patch.setattr(review, "_CLEARLY", -1.0)
        patch.setattr(review, "_MOST", 300)
        yield


def accept(path: Path) -> None:
    """Write x into the column accept of each line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "accept": "x"} for row in rows)


@pytest.fixture(scope="module")
def noisy(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[int]]:
    """A table of 300 rows with 15 wrong labels, the folder of a run in folds, and the wrong rows."""
    folder = tmp_path_factory.mktemp("noisy")
    draw, classes, wrong = random.Random(0), list(tiny.CLASS_WORDS), list(range(4, 300, 20))
    rows = []
    for number in range(300):
        words = [*draw.choices(tiny.CLASS_WORDS[classes[number % 3]], k=6), *draw.choices(tiny.WORDS, k=3)]
        rows.append((" ".join(words), classes[(number + (number in wrong)) % 3]))
    table = tiny.write_table(folder / "my.csv", rows)
    settings = {"folds": 3, "num_train_epochs": 0.0}
    with all_listed():
        out = train(make_config(model_folder, table, folder / "out", **settings))
    accept(out / "suspects.csv")
    return table, out, wrong


def test_most_of_the_first_suspects_are_wrong(noisy: tuple[Path, Path, list[int]]) -> None:
    table, out, wrong = noisy
    suspects = read_table(str(out / "suspects.csv"))
    first = [int(row) - 2 for row in suspects.column("row")[: len(wrong)]]  # line 1 is the header
    assert len(set(first) & set(wrong)) >= 0.7 * len(wrong)
    rows = read_table(str(table))
    assert suspects.column("label") == [rows.column("label")[int(row) - 2] for row in suspects.column("row")]
    assert suspects.column("text") == [rows.column("text")[int(row) - 2] for row in suspects.column("row")]


def test_a_reviewed_file_is_applied_to_a_copy(noisy: tuple[Path, Path, list[int]], tmp_path: Path, capsys: Any) -> None:
    table, out, _ = noisy
    before = table.read_bytes()
    suspects = (out / "suspects.csv").read_text().splitlines(keepends=True)
    reviewed = out / "reviewed.csv"
    reviewed.write_text("".join(suspects[:4]))
    assert main(["clean", "--apply", str(reviewed), "--out", str(tmp_path / "c.csv")]) == 0
    printed = capsys.readouterr().out
    assert "3 labels changed in column 'label'" in printed
    counts = {name: read_table(str(table)).column("label").count(name) for name in tiny.CLASS_WORDS}
    after = {name: read_table(str(tmp_path / "c.csv")).column("label").count(name) for name in tiny.CLASS_WORDS}
    assert {line.strip() for line in printed.splitlines()[1:]} == {
        f"{name!r}: {counts[name]} rows before, {after[name]} after" for name in counts if counts[name] != after[name]
    }
    assert table.read_bytes() == before
    old, new, applied = read_table(str(table)), read_table(str(tmp_path / "c.csv")), read_table(str(reviewed))
    assert new.column("text") == old.column("text")
    changed = [row for row in range(300) if new.column("label")[row] != old.column("label")[row]]
    assert changed == sorted(int(row) - 2 for row in applied.column("row"))
    for row, label in zip(applied.column("row"), applied.column("suggested_label"), strict=True):
        assert new.column("label")[int(row) - 2] == label
    # Applied to the copy again nothing is left to change.
    words = ["clean", "--apply", str(reviewed), "--data", str(tmp_path / "c.csv"), "--out", str(tmp_path / "d.csv")]
    assert main(words) == 0
    assert "0 labels changed" in capsys.readouterr().out
    reviewed.unlink()


@pytest.mark.parametrize(
    ("column", "cell", "part"),
    [
        ("text", "another text", "the table has changed since the run"),
        ("suggested_label", "carrd", "suggested_label 'carrd' is not a label of"),
        ("label", "money money", "the table has changed since the run"),
    ],
)
def test_a_file_that_does_not_fit_the_table_is_refused(
    noisy: tuple[Path, Path, list[int]], tmp_path: Path, capsys: Any, column: str, cell: str, part: str
) -> None:
    _, out, _ = noisy
    with (out / "suspects.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows[1][column] = cell
    reviewed = out / "wrong.csv"
    with reviewed.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(["clean", "--apply", str(reviewed), "--out", str(tmp_path / "c.csv")]) == 2
    error = capsys.readouterr().err
    assert "wrong.csv line 3" in error
    assert part in error
    reviewed.unlink()


def test_what_does_not_fit_is_refused(noisy: tuple[Path, Path, list[int]], tmp_path: Path, capsys: Any) -> None:
    table, out, _ = noisy
    suspects = str(out / "suspects.csv")
    assert main(["clean", "--apply", suspects, "--out", str(table)]) == 2
    assert "an input; give another file name" in capsys.readouterr().err
    other = tiny.write_table(tmp_path / "other.csv", [(text, "app") for text, _ in tiny.table_rows(300)])
    assert main(["clean", "--apply", suspects, "--data", str(other), "--out", str(tmp_path / "c.csv")]) == 2
    assert "the table has changed since the run" in capsys.readouterr().err
    assert not (tmp_path / "c.csv").exists()
    assert main(["clean", "--apply", str(table), "--out", str(tmp_path / "c.csv")]) == 2
    assert "expected the folder of a run beside suspects.csv" in capsys.readouterr().err


def test_of_several_tables_none_is_overwritten(
    model_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = tiny.crossed_rows(30) + tiny.table_rows(60, seed=1)
    tiny.write_table(Path("a.csv"), rows[:40])
    tiny.write_table(Path("b.csv"), rows[40:])
    with all_listed():
        train(make_config(model_folder, "a.csv,b.csv", tmp_path / "out", folds=3, num_train_epochs=0.0))
    accept(Path("out/suspects.csv"))
    before = Path("b.csv").read_bytes()
    words = ["clean", "--apply", "out/suspects.csv", "--overwrite", "--out"]
    assert main([*words, "b.csv"]) == 2
    assert "this is b.csv, an input" in capsys.readouterr().err
    assert Path("b.csv").read_bytes() == before
    assert main([*words, "c.csv"]) == 0
    assert len(read_table("c.csv")) == 90
    monkeypatch.chdir("/")
    elsewhere = ["clean", "--apply", str(tmp_path / "out" / "suspects.csv"), "--out"]
    assert main([*elsewhere, str(tmp_path / "b.csv")]) == 2
    assert Path(tmp_path / "b.csv").read_bytes() == before
    assert main([*elsewhere, str(tmp_path / "d.csv")]) == 0
    assert (tmp_path / "d.csv").read_bytes() == (tmp_path / "c.csv").read_bytes()


def test_the_files_of_a_pattern_are_found_again(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = tiny.crossed_rows(30) + tiny.table_rows(60, seed=1)
    tiny.write_table(Path("a.csv"), rows[:40])
    tiny.write_table(Path("b.csv"), rows[40:])
    with all_listed():
        train(make_config(model_folder, "?.csv", tmp_path / "out", folds=3, num_train_epochs=0.0))
    accept(Path("out/suspects.csv"))
    assert main(["clean", "--apply", "out/suspects.csv", "--out", "clean.csv"]) == 0
    monkeypatch.chdir("/")
    words = ["clean", "--apply", str(tmp_path / "out" / "suspects.csv"), "--out", str(tmp_path / "again.csv")]
    assert main(words) == 0
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "clean.csv").read_bytes()


def test_a_rare_class_that_the_model_agrees_with_is_no_suspect() -> None:
    """Of 95 rows to 5 the mean of the rare class is low; what is probably right is not called wrong."""
    own = np.full(100, 0.9)
    own[[7, 8]] = 0.86
    probabilities = np.stack([own, 1 - own], axis=1)
    targets = np.zeros(100, dtype=np.int64)
    targets[95:] = 1
    assert set(find_suspects(probabilities, targets).rows.tolist()) <= set(range(95, 100))


def test_nothing_less_probable_than_the_label_is_suggested() -> None:
    """The mean probability of a rare class is near 0, so it reaches its threshold in most rows of others."""
    draw = np.random.default_rng(0)
    targets = np.repeat([0, 1, 2, 3], [60, 30, 8, 1])
    probabilities = draw.dirichlet([1, 1, 1, 1], size=len(targets)) * 0.4
    probabilities[np.arange(len(targets)), targets] += 0.6 * draw.random(len(targets))
    probabilities[targets == 2] = [0.7, 0.2, 0.08, 0.02]
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    suspects = find_suspects(probabilities, targets)
    assert len(suspects.rows)
    own = probabilities[suspects.rows, targets[suspects.rows]]
    assert (probabilities[suspects.rows, suspects.suggested] > own).all()
    assert 3 not in suspects.suggested, "a class of one row, perhaps a typing error"


def test_rows_are_numbered_as_in_messages_and_have_their_id(tmp_path: Path) -> None:
    """By the line of a text file, in which a row may span several, or by the row of a sheet."""
    content = 'ticket_id,text,label\nT-1,"two\nlines",a\nT-2,one,b\nT-3,another,a\n'
    (tmp_path / "my.csv").write_text(content)
    table = read_table(str(tmp_path / "my.csv"))
    suspects, targets = Suspects(np.array([2, 1]), np.array([1, 0])), np.array([0, 1, 0])
    path, columns, probabilities = tmp_path / "suspects.csv", ("text", "label"), np.full((3, 2), 0.5)
    reviewed = ReviewedColumn(columns[1], suspects, np.arange(3), targets, probabilities)
    write_suspects(path, table, columns[0], [reviewed])
    written = read_table(str(path))
    assert written.columns == [
        "row",
        "ticket_id",
        "accept",
        "label",
        "suggested_label",
        "prob_label",
        "prob_suggested",
        "text",
    ]
    assert (written.column("row"), written.column("ticket_id")) == (["5", "4"], ["T-3", "T-2"])
    assert table.describe_rows([2, 1]) == f"{tmp_path / 'my.csv'} lines 5, 4"
    with pytest.raises(InputError, match=r"no line is accepted\. Write x into the column 'accept'"):
        apply_suspects(path, table, columns)
    accept(path)
    assert apply_suspects(path, table, columns) == ["a", "a", "b"]


def test_a_file_for_excel_is_applied(noisy: tuple[Path, Path, list[int]], tmp_path: Path, capsys: Any) -> None:
    """Labels that look like formulas have a ' before them there, and none in the copy."""
    table = read_table(str(tiny.write_table(tmp_path / "t.csv", [("a", "=x"), ("b", "+y"), ("c", "=x"), ("d", "+y")])))
    suspects = Suspects(np.array([1]), np.array([0]))
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.1, 0.9]])
    path, targets = tmp_path / "suspects.csv", np.array([0, 1, 0, 1])
    columns = ("text", "label")
    reviewed = ReviewedColumn(columns[1], suspects, np.arange(4), targets, probabilities)
    write_suspects(path, table, columns[0], [reviewed], for_excel=True)
    assert "'+y,'=x" in path.read_text()
    accept(path)
    assert apply_suspects(path, table, columns) == ["=x", "=x", "=x", "+y"]


def test_labels_are_renamed_in_the_copy(noisy: tuple[Path, Path, list[int]], tmp_path: Path, capsys: Any) -> None:
    table, out, _ = noisy
    words = ["clean", "--apply", str(out), "--label-names", "app=App", "--out", str(tmp_path / "c.csv")]
    assert main(words) == 0
    count = read_table(str(table)).column("label").count("app")
    assert f"{count} labels changed in column 'label'" in capsys.readouterr().out
    assert read_table(str(tmp_path / "c.csv")).column("label").count("App") == count
    assert main([*words[:3], "--out", str(tmp_path / "d.csv")]) == 2
    assert "Got a folder" in capsys.readouterr().err


def test_the_surest_are_listed_and_none_of_a_model_that_knows_little() -> None:
    targets = np.arange(1_000) % 2
    probabilities = np.where(targets[:, None] == np.arange(2), 0.99, 0.01)
    wrong = np.arange(0, 1_000, 49)
    probabilities[wrong] = probabilities[wrong][:, ::-1]
    assert set(review.choose_to_review(probabilities, targets).rows.tolist()) <= set(wrong.tolist())
    assert len(review.choose_to_review(probabilities, targets).rows) == 10, "one in 100"
    assert not len(review.choose_to_review(0.9 * probabilities + 0.05, targets).rows), "margins of .88"
    assert not len(review.choose_to_review(probabilities, (np.arange(1_000) % 20 > 0).astype(np.int64)).rows)


def test_confident_learning() -> None:
    """Two of eight rows are off the diagonal; the one with the larger margin comes first."""
    probabilities = np.array(
        [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.05, 0.95], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9], [0.85, 0.15]]
    )
    targets = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert not len(find_suspects(probabilities, targets).rows), "four rows are too few for a threshold"
    sure = np.array([[0.9, 0.1]] * 4 + [[0.1, 0.9]] * 4)
    probabilities, targets = np.concatenate([probabilities, sure]), np.concatenate([targets, targets])
    suspects = find_suspects(probabilities, targets)
    assert suspects.rows.tolist() == [3, 7]
    assert suspects.suggested.tolist() == [1, 0]
    assert not len(find_suspects(np.eye(2)[targets], targets).rows)
    assert not len(find_suspects(np.full((16, 2), 0.5), targets).rows), "no class is more probable than the label"

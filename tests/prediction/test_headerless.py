"""Prediction of files whose first row may not be a header: no text is lost, and no other column is taken."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from classify import train
from classify.cli import main
from tests.support.runs import make_config

LINES = ["my card is lost, please help", "the app is broken, again", "when is my money paid, please", "a new phone"]


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out", max_steps=1))


def predict(trained: Path, folder: Path, content: str, name: str, *flags: str) -> tuple[int, list[str]]:
    """Return the exit code and the texts that were predicted."""
    (folder / name).write_text(content)
    out = folder / "predicted.csv"
    words = ["predict", "--model", str(trained), "--data", str(folder / name), "--out", str(out), "--cpu"]
    code = main([*words, "--overwrite", *flags])
    if code:
        return code, []
    with out.open(newline="", encoding="utf-8") as file:
        return code, [next(iter(row.values())) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_text_a_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    lines = LINES if name == "a.txt" else [line.replace(",", "") for line in LINES]
    assert predict(trained, tmp_path, "\n".join(lines) + "\n", name) == (0, lines)
    assert "has no header; its first row was predicted, too" in capsys.readouterr().out


def test_a_header_is_none_of_the_texts(trained: Path, tmp_path: Path) -> None:
    assert predict(trained, tmp_path, "\n".join(["text", *LINES]) + "\n", "a.txt") == (0, LINES)
    assert predict(trained, tmp_path, "text\nhello you\n", "a.txt", "--no-header") == (0, ["text", "hello you"])


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (
            "Ticket,Kommentar zum Ticket\nT-10301,my card is lost again\nT-10302,the app is slow today\n",
            "no column 'text', which the model was trained on; it has: 'Ticket', 'Kommentar zum Ticket'",
        ),
        ("T-10301,my card is lost again\nT-10302,the app is slow today\n", "it has: 'column_1', 'column_2'"),
    ],
)
def test_another_column_is_not_taken(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, printed: str
) -> None:
    assert predict(trained, tmp_path, content, "a.csv") == (2, [])
    line = capsys.readouterr().err
    assert printed in line
    assert "Name it with --text-column" in line


def test_a_table_is_read_as_the_trainings_was(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """A delimiter that was given, and the encoding that was found where another file leaves several open."""
    lines = ["text^label", *(line.replace(",", "^") for line in table.read_text().splitlines()[1:])]
    carets = tmp_path / "carets.csv"
    carets.write_bytes("\n".join(lines).replace("card", "carté", 1).encode("cp1257"))
    config = make_config(model_folder, carets, tmp_path / "out", max_steps=1, delimiter="^", encoding="cp1257")
    trained = train(config)
    content = b"text^number\n" + "".join(f"my cart\xe9 is lõst^{n}\n" for n in range(9)).encode("cp1257")
    (tmp_path / "a.csv").write_bytes(content)
    words = ["predict", "--model", str(trained), "--data", str(tmp_path / "a.csv"), "--cpu", "--out"]
    assert main([*words, str(tmp_path / "p.csv")]) == 0
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == ["my carté is lõst"] * 9

"""classify explain: what a prediction's logit falls by without each word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import load_classifier
from classify.cli import main
from classify.prediction import explanations
from classify.prediction.explanations import write_explanations
from classify.prediction.pytorch import PyTorchPredictor as Predictor
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES, CLASSES

TEXT = "please help my card was stolen twice"


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


@pytest.fixture(scope="module")
def predictor(trained: Path) -> Any:
    with load_classifier(str(trained), use_cpu=True) as loaded:
        loaded.probabilities([TEXT, "a"])
        yield loaded


def test_words_are_those_of_the_text(predictor: Predictor) -> None:
    assert [one.word for one in predictor.explain(TEXT)] == TEXT.split()
    assert predictor.explain("") == []


def test_a_score_is_what_the_logit_falls_by(predictor: Predictor) -> None:
    scores = {one.word: one.score for one in predictor.explain(TEXT, "money")}
    whole, without = (
        predictor.outputs([text])[0, predictor.labels.index("money")] for text in (TEXT, TEXT.replace("stolen ", " "))
    )
    assert scores["stolen"] == pytest.approx(float(whole - without), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("退款 ab", ["退", "款", "ab"]),
        ("One two. Three! " * 80, ["One two.", "Three!"] * 80),  # more words than are left out one by one
        ("a, b. " * 401, 134),  # more sentences than that
    ],
)
def test_parts_of_a_text(text: str, words: list[str] | int) -> None:
    parts = explanations.explain([text], lambda rows: np.zeros(len(rows), dtype=np.float32))
    if isinstance(words, int):
        assert len(parts) == words
        assert sum(len(part.word.split(". ")) for part in parts) == 401
    else:
        assert [part.word for part in parts[: len(words)]] == words


def test_words_of_both_texts_of_a_pair(pairs: Path) -> None:
    with load_classifier(str(pairs), use_cpu=True) as predictor:
        pair = ("my card was stolen", "please help")
        explained = predictor.explain(pair)
        assert [one.word for one in explained] == [word for text in pair for word in text.split()]
        with pytest.raises(TypeError, match="must be a list of pairs"):
            predictor.explain("one text")


def test_the_command(trained: Path, capsys: Any) -> None:
    words = ["explain", "--model", str(trained), TEXT, "--cpu"]
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["label"] == max(content["probabilities"], key=content["probabilities"].get)
    assert [one["word"] for one in content["words"]] == TEXT.split()
    assert main([*words, "--label", "money"]) == 0
    assert "the logit of 'money'" in capsys.readouterr().out
    assert main([*words, "--label", "none"]) == 2
    assert "expected one of the labels 'app', 'card', 'money'. Got 'none' instead" in capsys.readouterr().err
    assert main(["explain", "--model", str(trained)]) == 2
    assert main(["explain", "--model", str(trained), " "]) == 2


def test_a_run_explains_its_errors(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(60))
    words = f"train --data {table} --model {model_folder} --cpu --output-dir {tmp_path / 'out'} --max-steps 1 --folds 0"
    assert main([*words.split(), "--head", "random"]) == 0
    explained = read_json(tmp_path / "out" / "explanations.json")
    assert len(explained) > 1
    page = (tmp_path / "out" / "report.html").read_text()
    word = next(iter(explained.values()))["words"][0][0]
    assert f"+{word}</span>" in page or f"−{word}</span>" in page
    monkeypatch.setattr("classify.prediction.explanations._CHARACTERS", 1)  # as if the texts were long
    write_explanations(tmp_path / "out", use_cpu=True)
    worst = next(iter(explained))
    assert read_json(tmp_path / "out" / "explanations.json") == {worst: explained[worst]}


@pytest.fixture(scope="module")
def pairs(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    table = CASES["pair"].write(folder / "my.csv")
    words = f"train --data {table} --model {model_folder} --cpu --output-dir {folder / 'out'} --max-steps 1 --folds 0"
    assert main([*words.split(), "--head", "random"]) == 0
    return folder / "out"


def test_a_run_on_pairs_explains_its_errors(pairs: Path, capsys: Any) -> None:
    explained = read_json(pairs / "explanations.json")
    assert explained
    word = next(iter(explained.values()))["words"][0][0]
    page = (pairs / "report.html").read_text()
    assert f"+{word}</span>" in page or f"−{word}</span>" in page
    assert main(["explain", "--model", str(pairs), "my card", "please help", "--cpu"]) == 0
    assert "words that raise (+)" in capsys.readouterr().out
    assert main(["explain", "--model", str(pairs), "my card", "--cpu"]) == 2
    assert "expected two texts, each in quotes. Got 1" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "output"), [("lists", "a label"), ("scores", "label")])
def test_a_run_explains_its_largest_errors(name: str, output: str, model_folder: Path, tmp_path: Path) -> None:
    """Of several labels the one that is furthest off; of a score the score."""
    case = CASES[name]
    table = case.write(tmp_path / "my.csv")
    words = f"train --data {table} --model {model_folder} --cpu --output-dir {tmp_path / 'out'} --max-steps 1 --folds 0"
    assert main([*words.split(), "--head", "random"]) == 0
    explained = read_json(tmp_path / "out" / "explanations.json")
    assert explained
    assert {one["output"] for one in explained.values()} <= ({*CLASSES} if output == "a label" else {output})
    page = (tmp_path / "out" / "report.html").read_text()
    assert "label furthest off" in page or name == "scores"
    word = next(iter(explained.values()))["words"][0][0]
    assert f"+{word}</span>" in page or f"−{word}</span>" in page

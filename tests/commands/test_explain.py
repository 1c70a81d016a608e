"""classify explain: attributions add up to the logit's difference, whatever the batch looks like."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify import load_classifier
from classify.cli import main
from classify.data.tokenize import tokenize
from classify.modeling import attributions
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


def test_they_sum_to_the_difference_to_padding(predictor: Predictor) -> None:
    """Completeness (Sundararajan et al., 2017, proposition 1), to the error of the sum."""
    tokens = tokenize(predictor.tokenizer, [TEXT], 64)
    device = torch.device("cpu")
    for output in range(3):
        scores = attributions.integrated_gradients(predictor.classifier, tokens, 0, output, 0, device)
        assert scores[0] == 0
        assert scores[-1] == 0
        inputs = predictor.tokenizer(TEXT, return_tensors="pt")
        padded = inputs["input_ids"].clone()
        padded[0, 1:-1] = 0
        with torch.no_grad():
            model, mask = predictor.classifier.model, inputs["attention_mask"]
            predictor.classifier.use_packing(False)
            difference = (model(input_ids=inputs["input_ids"], attention_mask=mask).logits
                          - model(input_ids=padded, attention_mask=mask).logits)[0, output]  # fmt: skip
            predictor.classifier.use_packing(True)
        assert float(scores.sum()) == pytest.approx(float(difference), abs=0.05 * float(difference.abs()) + 2e-3)


def test_packed_and_padded_batches_agree(predictor: Predictor) -> None:
    tokens = tokenize(predictor.tokenizer, [TEXT], 64)
    ways = []
    for packed in (True, False):
        predictor.classifier.use_packing(packed)
        ways.append(
            attributions.integrated_gradients(predictor.classifier, tokens, 0, 1, 0, torch.device("cpu")).numpy()
        )
    predictor.classifier.use_packing(True)
    np.testing.assert_allclose(ways[0], ways[1], atol=1e-5)


def test_a_long_text_is_computed_in_parts(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few points are in memory at once; the sum is the same."""
    tokens = tokenize(predictor.tokenizer, [TEXT], 64)
    whole = attributions.integrated_gradients(predictor.classifier, tokens, 0, 1, 0, torch.device("cpu"))
    monkeypatch.setattr(attributions, "_TOKENS", 30)
    parts = attributions.integrated_gradients(predictor.classifier, tokens, 0, 1, 0, torch.device("cpu"))
    np.testing.assert_allclose(whole, parts, atol=1e-5)


def test_other_threads_predict_meanwhile(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread changes in the embeddings does not reach another's texts."""
    expected = predictor.probabilities([TEXT, "a"])
    seen: list[np.ndarray] = []
    original = attributions._rows

    def predict_meanwhile(*arguments: Any) -> Any:
        thread = threading.Thread(target=lambda: seen.append(predictor.probabilities([TEXT, "a"])))
        thread.start()
        thread.join(60)
        return original(*arguments)

    monkeypatch.setattr(attributions, "_rows", predict_meanwhile)
    predictor.explain(TEXT)
    assert seen
    np.testing.assert_allclose(seen[0], expected, atol=1e-6)


def test_words_are_those_of_the_text(predictor: Predictor) -> None:
    assert [one.word for one in predictor.explain(TEXT)] == TEXT.split()
    assert predictor.explain("") == []


@pytest.mark.parametrize(
    ("text", "spans", "words"),
    [
        ("ab cd", [(0, 1), (1, 2), (3, 5)], ["ab", "cd"]),
        (" ab cd", [(0, 3), (3, 6)], [" ab", " cd"]),  # of Metaspace
        ("退款 ab", [(0, 1), (1, 2), (3, 5)], ["退", "款", "ab"]),
    ],
)
def test_tokens_are_joined_to_words(text: str, spans: list[tuple[int, int]], words: list[str]) -> None:
    joined: dict[int, str] = {}
    for number, (start, end) in zip(attributions._word_numbers(text, spans), spans, strict=True):
        joined[number] = joined.get(number, "") + text[start:end]
    assert list(joined.values()) == words


def test_the_command(trained: Path, capsys: Any) -> None:
    words = ["explain", "--model", str(trained), TEXT, "--cpu"]
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["label"] == max(content["probabilities"], key=content["probabilities"].get)
    assert [one["word"] for one in content["words"]] == TEXT.split()
    assert main([*words, "--label", "money"]) == 0
    assert "the logit of 'money'" in capsys.readouterr().out
    assert main([*words, "--label", "none"]) == 2
    assert "no label 'none'; it has: 'app', 'card', 'money'" in capsys.readouterr().err
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


def test_words_of_both_texts_of_a_pair(pairs: Path) -> None:
    """Complete, too: what special tokens and both texts in turn get sums to the difference to padding."""
    with load_classifier(str(pairs), use_cpu=True) as predictor:
        pair = ("my card was stolen", "please help")
        explained = predictor.explain(pair)
        assert [one.word for one in explained] == [word for text in pair for word in text.split()]
        output = int(predictor.probabilities([pair])[0].argmax())
        predictor.classifier.use_packing(False)
        inputs = dict(predictor.tokenizer(*pair, return_tensors="pt"))
        padded = inputs["input_ids"].clone()
        special = torch.tensor(predictor.tokenizer.get_special_tokens_mask(padded[0], already_has_special_tokens=True))
        padded[0, special == 0] = 0
        with torch.no_grad():
            logits = predictor.classifier.model(**inputs).logits[0, output]
            without = predictor.classifier.model(**{**inputs, "input_ids": padded}).logits[0, output]
        difference = float(logits - without)
        assert sum(one.score for one in explained) == pytest.approx(difference, abs=0.05 * abs(difference) + 2e-3)
        with pytest.raises(TypeError, match="must be a list of pairs"):
            predictor.explain("one text")


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

"""Texts longer than the maximum length are predicted as they were trained on."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import classify
from classify.cli import main
from classify.errors import InputError
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES

ROOM = 10


def parse_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=["head-tail", "chunks", "truncate"])
def run(request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on texts of which most are longer than its maximum length, and its long-text policy."""
    folder = tmp_path_factory.mktemp(request.param)
    rows = [(" ".join([text] * 3), label) for text, label in tiny.table_rows(120)]
    table = tiny.write_table(folder / "my.csv", rows)
    settings = {"long_texts": request.param, "max_length": ROOM + 2, "contrastive_steps": 2, "folds": 0}
    return train(make_config(model_folder, table, folder / "out", **settings))


def test_predict_does_as_training_did(run: Path, tmp_path: Path) -> None:
    policy = run.parent.name.rstrip("0123456789")
    assert read_json(run / "classify.json")["long_text"] == policy
    words = ["predict", "--model", str(run), "--data", str(run.parent / "my.csv"), "--out", str(tmp_path / "p.csv")]
    assert main([*words, "--cpu"]) == 0
    again = {row["text"]: row for row in parse_rows(tmp_path / "p.csv")}
    table = parse_rows(run / "predictions.csv")
    with classify.load_classifier(str(run), use_cpu=True) as predictor:
        probabilities = predictor.probabilities([row["text"] for row in table])
    for row, values in zip(table, probabilities, strict=True):
        names = [name for name in row if name.startswith("prob_")]
        wanted = [float(row[name]) for name in names]
        assert [float(again[row["text"]][name]) for name in names] == pytest.approx(wanted, abs=1e-5)
        assert values.tolist() == pytest.approx(wanted, abs=1e-5)


def test_probabilities_are_those_of_the_stock_model(run: Path) -> None:
    """Each sequence by transformers, logits averaged."""
    policy = run.parent.name.rstrip("0123456789")
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    for row in parse_rows(run / "predictions.csv")[:5]:
        ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        pieces = [ids[:ROOM]]
        if policy == "head-tail" and len(ids) > ROOM:
            pieces = [ids[:2] + ids[-8:]]
        elif policy == "chunks" and len(ids) > ROOM:
            count = -(-(len(ids) - 1) // (ROOM - 1))
            starts = [number * (len(ids) - ROOM) // (count - 1) for number in range(count)]
            pieces = [ids[start : start + ROOM] for start in starts]
        with torch.no_grad():
            logits = [
                model(torch.tensor([[tokenizer.cls_token_id, *piece, tokenizer.sep_token_id]])).logits
                for piece in pieces
            ]
        wanted = torch.cat(logits).mean(dim=0).softmax(dim=0).tolist()
        assert [float(row[name]) for name in row if name.startswith("prob_")] == pytest.approx(wanted, abs=1e-5)


def test_pairs_are_truncated(model_folder: Path, tmp_path: Path) -> None:
    table = CASES["pair"].write(tmp_path / "my.csv")
    with pytest.raises(InputError, match="--long-texts chunks: text pairs are truncated; drop the flag"):
        train(make_config(model_folder, table, tmp_path / "out", long_texts="chunks"))


def test_it_cannot_change_within_a_run(run: Path, model_folder: Path) -> None:
    other = "truncate" if "chunks" in run.parent.name else "chunks"
    settings = {"max_length": ROOM + 2, "contrastive_steps": 2, "folds": 0, "num_train_epochs": 4.0}
    with pytest.raises(InputError, match="--long-texts was"):
        train(
            make_config(
                model_folder, run.parent / "my.csv", run, long_texts=other, resume_from_checkpoint=True, **settings
            )
        )


def test_words_that_are_not_read_explain_nothing(run: Path) -> None:
    policy = run.parent.name.rstrip("0123456789")
    text = next(row["text"] for row in parse_rows(run / "predictions.csv") if len(row["text"].split()) > 3 * ROOM)
    with classify.load_classifier(str(run), use_cpu=True) as predictor:
        explained = predictor.explain(text)
    assert [one.word for one in explained] == text.split()
    scores = np.array([one.score for one in explained])
    head, tail = int(0.25 * ROOM), ROOM - int(0.25 * ROOM)
    unread = {"truncate": scores[ROOM:], "head-tail": scores[head:-tail], "chunks": scores[:0]}[policy]
    np.testing.assert_allclose(unread, 0, atol=1e-5)
    assert np.abs(scores).max() > 1e-3

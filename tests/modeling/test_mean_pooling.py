"""The added layer computes the mean of a text's tokens, in a model that stays a stock one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from classify import load_classifier
from classify.config.schema import TrainingConfig
from classify.data.tokenize import load_tokenizer, tokenize
from classify.errors import InputError
from classify.evaluation.inference import compute_logits
from classify.modeling.attention import _text_means
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.modeling.packing import Boundaries
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.worlds import start_world

TEXTS = [text for text, _ in tiny.table_rows(30)]
SAYS = {"old": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "new": {"pooling_mode": "mean"}}


def mean_model(folder: Path, kind: str = "bert", says: str = "old") -> Path:
    """A random encoder as sentence-transformers would have saved it."""
    tiny.make_model(folder, kind)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(SAYS[says]))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mean_model(tmp_path_factory.mktemp("mean") / "bert")


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert"])
def test_features_are_the_true_mean(tmp_path: Path, kind: str, packed: bool) -> None:
    """Of the stock encoder's states, without the first token but for its small share."""
    path = mean_model(tmp_path / kind, kind)
    tokenizer = load_tokenizer(str(path))
    model = load_pretrained(resolve_model(str(path)), ["a", "b", "c"], seed=1, pad_token_id=0)
    model.use_packing(packed)
    world = start_world(TrainingConfig(use_cpu=True))
    result = compute_logits(model, tokenize(tokenizer, TEXTS, 60), np.arange(len(TEXTS)), world, features=True)
    encoder = transformers.AutoModel.from_pretrained(path).eval()
    for features, text in zip(result, TEXTS, strict=True):
        with torch.no_grad():
            states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(dim=0)
        if kind == "modernbert":
            head = model.model.head
            with torch.no_grad():
                expected = head(mean)
        else:
            total = torch.nn.functional.layer_norm(10 * mean + states[0], mean.shape, eps=1e-12)
            expected = 0.3 * total + 3.0 if kind == "distilbert" else torch.tanh(0.3 * total)
        np.testing.assert_allclose(features, expected, atol=2e-5)
        if kind == "bert":
            cosine = np.corrcoef(features, mean)[0, 1]
            assert cosine > 0.97
            assert cosine > np.corrcoef(features, states[0])[0, 1]


def test_the_layer_learns(folder: Path) -> None:
    """It can leave the mean: attention, which is uniform at first, gets a gradient, too."""
    model = load_pretrained(resolve_model(str(folder)), ["a", "b", "c"], seed=1, pad_token_id=0)
    tokens = tokenize(load_tokenizer(str(folder)), TEXTS, 60)
    model.train()
    logits = model(model.batch(tokens, np.arange(8)))
    torch.nn.functional.cross_entropy(logits, torch.arange(8) % 3).backward()
    layer = model.model.bert.encoder.layer[-1]
    for name in ("attention.self.query", "attention.self.value", "attention.output.dense", "output.dense"):
        assert layer.get_submodule(name).weight.grad.abs().max() > 0, name
    assert layer.attention.output.dropout.p == 0.0
    assert model.model.bert.encoder.layer[0].attention.output.dropout.p == 0.1


@pytest.mark.parametrize(("says", "wish", "layers"), [("old", "auto", 3), ("new", "auto", 3), ("new", "first", 2)])
def test_what_the_folder_says_decides(tmp_path: Path, says: str, wish: str, layers: int) -> None:
    result = resolve_model(str(mean_model(tmp_path / "m", says=says)), pooling=wish)
    model = load_pretrained(result, ["a", "b"], seed=1, pad_token_id=0)
    assert len(model.model.bert.encoder.layer) == model.model.config.num_hidden_layers == layers


def test_asked_for_where_no_file_speaks_of_it(tmp_path: Path) -> None:
    bert, albert = (tiny.make_model(tmp_path / kind, kind) for kind in ("bert", "albert"))
    assert resolve_model(str(bert)).added_layers == 0
    assert resolve_model(str(bert), pooling="mean").added_layers == 1
    with pytest.raises(
        InputError, match=r"--pooling mean supports bert, .*Got the architecture albert .* instead; drop --pooling"
    ):
        resolve_model(str(albert), pooling="mean")


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_the_folder_is_a_stock_one(tmp_path: Path, table: Path, kind: str) -> None:
    """`pipeline` says what the program does; a run that starts from the result adds no second layer."""
    model = mean_model(tmp_path / "model", kind)
    out = train(make_config(model, table, tmp_path / "out"))
    assert not (out / "1_Pooling").exists()
    rows = read_table(str(out / "predictions.csv"))
    pipe = transformers.pipeline("text-classification", model=str(out), top_k=None)
    for row, scores in enumerate(pipe(rows.column("text"), truncation=True)):
        for score in scores:
            own = float(rows.column(f"prob_{score['label']}")[row])
            assert own == pytest.approx(score["score"], abs=1e-5)
    assert resolve_model(str(out)).added_layers == 0
    (guess,) = (one for one in read_json(out / "run.json")["guesses"] if one["what"] == "pooling")
    assert guess["value"] == "mean over tokens, computed by one added layer"
    assert guess["why"] == "the model was trained with it"


def test_a_run_goes_on_with_the_pooling_it_began_with(folder: Path, table: Path, tmp_path: Path) -> None:
    train(make_config(folder, table, tmp_path / "whole"))
    train(make_config(folder, table, tmp_path / "out"))
    shutil.rmtree(sorted((tmp_path / "out" / "checkpoints").iterdir())[-1])
    (tmp_path / "out" / "run.json").write_text(
        (tmp_path / "out" / "run.json").read_text().replace("finished", "failed")
    )
    with pytest.raises(InputError, match="pooling was 'mean' and is 'first'"):
        train(make_config(folder, table, tmp_path / "out", resume_from_checkpoint=True, pooling="first"))
    out = train(make_config(folder, table, tmp_path / "out", resume_from_checkpoint=True))
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("kind", ["modernbert-mean", "eurobert"])
def test_the_pooling_of_a_configuration_is_taken_or_replaced(
    table: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """EuroBERT's own default, "late", classifies each token; it is replaced by its first."""
    folder, first = tiny.make_model(tmp_path / "model", kind), {"modernbert-mean": "cls", "eurobert": "bos"}[kind]
    poolings = {}
    for pooling in ("auto", "first", "mean"):
        out = train(make_config(folder, table, tmp_path / pooling, max_steps=1, pooling=pooling))
        is_mean = pooling == "mean" or (pooling == "auto" and kind == "modernbert-mean")
        assert f"pooling: {'mean over tokens' if is_mean else 'first token'}" in capsys.readouterr().out
        poolings[pooling] = read_json(out / "config.json")["classifier_pooling"]
        predicted = load_classifier(out).probabilities(TEXTS[:3])
        stock = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        for row, text in zip(predicted, TEXTS, strict=False):
            with torch.no_grad():
                expected = stock(**tokenizer(text, return_tensors="pt")).logits[0].softmax(0)
            np.testing.assert_allclose(row, expected, atol=1e-5)
    assert poolings == {"auto": "mean" if kind == "modernbert-mean" else first, "first": first, "mean": "mean"}


def test_means_follow_the_tensors_alone() -> None:
    """A recorded pass keeps the numbers of the batch that it was recorded with, and gets the next one's tensors."""
    hidden = torch.arange(14.0)[:, None] * torch.tensor([1.0, -2.0])
    cumulative = torch.tensor([0, 3, 4, 9, 14], dtype=torch.int32)  # the last is padding
    recorded = ((0, 2, 2), (4, 1, 5), (9, 1, 5))
    boundaries = Boundaries(recorded, torch.tensor([0, 3, 4]), cumulative, 5, 14)
    means = _text_means(hidden, boundaries)
    assert means.tolist() == [[1.0, -2.0], [3.0, -6.0], [6.0, -12.0]]

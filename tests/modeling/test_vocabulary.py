"""An embedding table of the tokens that occur: the same model as with the whole table, the other rows untouched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from classify.data.tokenize import load_tokenizer, tokenize
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config

KINDS = ("bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta")


def run(table: Path, model: Path, out: Path, compact: bool, **settings: object) -> Path:
    settings = {"batch_size": 16, "dropout": 0.0, "report_to": "none", **settings}
    return train(make_config(model, table, out, compact_vocabulary=compact, **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_do_not_change(tmp_path: Path, kind: str) -> None:
    """Packed and padded, before any training."""
    folder = tiny.make_model(tmp_path / kind, kind)
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in tiny.table_rows(9)], 64)
    rows = np.arange(9)
    whole, small = (
        load_pretrained(resolve_model(str(folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0).eval()
        for _ in range(2)
    )
    small.compact_vocabulary([tokens], [0, 1, 2, 3], compact=True)
    vocabulary = small.vocabulary
    assert vocabulary is not None
    assert vocabulary.compacted
    table = small.model.get_input_embeddings()
    assert table.num_embeddings == len(vocabulary.used) < 128
    assert (np.diff(vocabulary.used) > 1).any(), "the ids in use must have gaps to tell one row from another"
    start = whole.model.get_input_embeddings().weight.detach()
    expanded = vocabulary.expand({vocabulary.name: table.weight.detach() + 1})[vocabulary.name]
    moved = torch.isin(torch.arange(len(start)), torch.from_numpy(vocabulary.used))
    assert torch.equal(expanded, start + moved[:, None])
    for packed in (False, True) if kind != "deberta" else (False,):
        whole.use_packing(packed)
        small.use_packing(packed)
        with torch.no_grad():
            want = whole(whole.batch(tokens, rows))
            got = small(small.batch(tokens, rows))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta"])
def test_the_saved_model_is_that_of_a_run_without(table: Path, tmp_path: Path, kind: str) -> None:
    folder = tiny.make_model(tmp_path / kind, kind)
    out = {compact: run(table, folder, tmp_path / f"out-{compact}", compact) for compact in (True, False)}
    small, whole = (load_file(out[compact] / "model.safetensors") for compact in (True, False))
    assert {name: tensor.shape for name, tensor in small.items()} == {name: t.shape for name, t in whole.items()}
    for name in small:
        if not name.endswith("key.bias"):  # attention does not depend on them, so Adam steps along their rounding
            torch.testing.assert_close(
                small[name], whole[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
    key = next(name for name in small if name.endswith("word_embeddings.weight"))
    before = load_file(folder / "model.safetensors")
    start = next(tensor for name, tensor in before.items() if name.endswith("word_embeddings.weight"))
    checkpoint = next((out[True] / "checkpoints").iterdir())
    used = load_file(checkpoint / "model.safetensors")["vocabulary"]
    unused = torch.ones(len(start), dtype=torch.bool)
    unused[used] = False
    assert 10 < unused.sum() < len(start) - 10
    for weights in (small, whole):
        assert torch.equal(weights[key][unused], start[unused]), "neither gradient nor weight decay"
    unmoved = torch.isclose(small[key][used], start[used], rtol=0, atol=1e-6).all(dim=1)
    assert int(unmoved.sum()) <= 1, "all but the padding, which is zero"


def test_transformers_opens_a_checkpoint_with_the_whole_table(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """One with the compact table has no config.json: its ids are none of the tokenizer's."""
    for compact in (True, False):
        out = run(table, model_folder, tmp_path / str(compact), compact, num_train_epochs=1.0)
        checkpoint = max((out / "checkpoints").iterdir())
        assert (checkpoint / "config.json").exists() == (not compact)
    opened, report = AutoModelForSequenceClassification.from_pretrained(checkpoint, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert opened.config.id2label == AutoConfig.from_pretrained(out).id2label
    text = "where is my card?"
    assert AutoTokenizer.from_pretrained(checkpoint)(text) == AutoTokenizer.from_pretrained(out)(text)
    weights = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in opened.state_dict().items() if name in weights)


@pytest.mark.slow
def test_checkpoints_hold_the_small_table_and_resume_from_it(table: Path, model_folder: Path, tmp_path: Path) -> None:
    whole = run(table, model_folder, tmp_path / "whole", True, save_steps=3, save_total_limit=9)
    part = tmp_path / "part"
    shutil.copytree(whole, part)
    for step in (6, 9, 12):
        shutil.rmtree(part / "checkpoints" / f"step-{step:08d}")
    tensors = load_file(part / "checkpoints" / "step-00000003" / "model.safetensors")
    key = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    assert len(tensors[key]) == len(tensors["vocabulary"]) < 128
    record = json.loads((part / "run.json").read_text())
    (part / "run.json").write_text(json.dumps({**record, "status": "interrupted"}))
    run(table, model_folder, part, True, save_steps=3, save_total_limit=9, resume_from_checkpoint=True)
    assert (part / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_little_to_save_changes_nothing(model_folder: Path) -> None:
    model = load_pretrained(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0)
    tokens = tokenize(load_tokenizer(str(model_folder)), ["please help"], 64)
    model.compact_vocabulary([tokens], range(120), compact=True)
    assert model.vocabulary is not None
    assert not model.vocabulary.compacted
    assert model.model.get_input_embeddings().num_embeddings == 128

"""Every architecture by the same path: packed where it can be, equal to the padded stock model, trainable."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from classify.config.schema import TrainingConfig
from classify.data.tokenize import Tokens, load_tokenizer, tokenize
from classify.errors import InputError
from classify.modeling.attention import KERNELS
from classify.modeling.classifier import Classifier, choose_packing
from classify.modeling.cpu_attention import attend
from classify.modeling.find import resolve_model
from classify.modeling.layers import output_layer, parameter_depths, repeated_layers
from classify.modeling.load import checkpoint_activations, freeze_unused, load_pretrained
from classify.modeling.packing import PACKABLE
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.worlds import start_world

KINDS = list(tiny.configurations())
PADDED = {"deberta", "eurobert"}
# ALBERT computes one layer again and again; in ModernBERT the residual runs beside the attention to the end.
WHOLE = PADDED | {"albert", "modernbert", "modernbert-mean"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("kinds")
    return {kind: tiny.make_model(base / kind, kind) for kind in KINDS}


def load(folder: Path, device: str = "cpu") -> tuple[Classifier, Tokens]:
    texts = [text for text, _ in tiny.table_rows(40)] + [""]
    tokens = tokenize(load_tokenizer(str(folder)), texts, 24)
    model = load_pretrained(resolve_model(str(folder)), ["a", "b", "c"], seed=1, pad_token_id=0, dropout=0.0)
    model.install_kernels(torch.device(device))
    return model, tokens


@pytest.mark.parametrize("kind", KINDS)
def test_packed_logits_are_those_of_the_stock_model(folders: dict[str, Path], kind: str) -> None:
    model, tokens = load(folders[kind])
    choose_packing(model, start_world(TrainingConfig(use_cpu=True)))
    assert model.packed is (kind not in PADDED)
    rows = np.random.default_rng(0).permutation(len(tokens))
    model.eval()
    with torch.no_grad():
        got = model(model.batch(tokens, rows))
        model.use_packing(False)
        for place, row in enumerate(rows):
            ids = torch.from_numpy(tokens.collate(np.array([row])).ids)[None]
            alone = model.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
            assert (got[place] - alone).abs().max() < 2e-5, tokens.lengths()[row]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WHOLE])
def test_the_last_feed_forward_part_sees_one_token_a_text(folders: dict[str, Path], kind: str) -> None:
    """Also when the layer is computed again for the backward pass; a padded batch is computed whole."""
    model, tokens = load(folders[kind])
    layers = repeated_layers(model.model)
    sizes = []
    for layer in layers:
        result = [m for m in layer.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 64]
        result[-1].register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape[:-1].numel()))
    rows = np.arange(6)
    model.use_packing(True)
    checkpoint_activations(model.model)
    model.train()
    model(model.batch(tokens, rows)).sum().backward()
    total = int(tokens.lengths(rows).sum())
    assert len(layers) == 2
    assert sizes == [total, 6, 6, total]
    sizes.clear()
    model.use_packing(False)
    model(model.batch(tokens, rows))
    assert sizes == [6 * int(tokens.lengths(rows).max())] * 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WHOLE])
def test_the_last_layer_attends_from_one_token_a_text(
    folders: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []

    def counted(*tensors: Any, cls_only: bool, **settings: Any) -> torch.Tensor | None:
        calls.append(cls_only)
        return attend(*tensors, cls_only=cls_only, **settings)

    monkeypatch.setitem(KERNELS, "cpu", ("attention", counted))
    model, tokens = load(folders[kind])
    model.use_packing(True)
    model.train()(model.batch(tokens, np.arange(6)))
    assert calls == [False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_stock_model(folders: dict[str, Path], kind: str) -> None:
    rows = np.arange(12)
    result: list[dict[str, Any]] = []
    for wish in ("auto", "padded"):
        model, tokens = load(folders[kind])
        choose_packing(model, start_world(TrainingConfig(use_cpu=True)), wish)
        freeze_unused(model, tokens, 0)
        model.train()
        logits = model(model.batch(tokens, rows))
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2] * 4)).backward()
        result.append({name: p.grad.clone() for name, p in model.model.named_parameters() if p.grad is not None})
    packed, padded = result
    assert packed.keys() == padded.keys()
    scale = max(float(grad.norm()) for grad in padded.values())
    for name, grad in padded.items():
        assert float((packed[name] - grad).norm()) <= 1e-5 * scale, name


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_that_is_asked_for_gets_a_gradient(folders: dict[str, Path], kind: str) -> None:
    """DistributedDataParallel waits for each of them. The number of layers is known before torch is loaded."""
    model, tokens = load(folders[kind])
    assert resolve_model(str(folders[kind])).layers == max(parameter_depths(model.model).values()) - 1
    choose_packing(model, start_world(TrainingConfig(use_cpu=True)))
    freeze_unused(model, tokens, 0)
    model.train()
    model(model.batch(tokens, np.arange(3))).sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.model.parameters())
    assert output_layer(model.model).weight.requires_grad


def test_positions_of_roberta_begin_behind_the_padding(folders: dict[str, Path]) -> None:
    model, tokens = load(folders["roberta"])
    model.use_packing(True)
    batch: Any = model.batch(tokens, np.array([0, 1]))
    lengths = tokens.lengths(np.array([0, 1]))
    assert batch.tensors["position_ids"][0].tolist() == [*range(1, lengths[0] + 1), *range(1, lengths[1] + 1)]
    assert resolve_model(str(folders["roberta"])).max_length == 63
    assert resolve_model(str(folders["bert"])).max_length == 64


def replace_model(folder: Path, model: Any) -> Path:
    """A model of another architecture with the tokenizer of a tiny BERT."""
    tiny.make_tokenizer().save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def other_models() -> dict[str, Any]:
    """Models that are refused: of a padded batch or renumbered ids the first two would read another token."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    canine = transformers.CanineConfig(**sizes, max_position_embeddings=256, num_hash_buckets=128)
    return {
        "gpt2": transformers.GPT2Model(transformers.GPT2Config(vocab_size=99, n_embd=8, n_layer=1, n_head=2)),
        "xlnet": transformers.XLNetModel(
            transformers.XLNetConfig(vocab_size=99, d_model=8, n_layer=1, n_head=2, d_inner=16)
        ),
        "canine": transformers.CanineModel(canine),
    }


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gpt2", "classifier of the architecture 'gpt2' reads a text's last token"),
        ("xlnet", "classifier of the architecture 'xlnet' reads a text's last token"),
        ("canine", "architecture 'canine' reads .* or characters"),
        ("vit", "no sequence classifier for the architecture 'vit'"),
    ],
)
def test_an_architecture_that_cannot_be_used_is_refused(tmp_path: Path, kind: str, reason: str) -> None:
    if kind == "vit":
        folder = tiny.make_model(tmp_path / "m")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    else:
        folder = replace_model(tmp_path / "m", other_models()[kind])
    with pytest.raises(InputError, match=reason):
        load_pretrained(resolve_model(str(folder)), ["a", "b"], seed=0, pad_token_id=0)


@pytest.mark.parametrize("folds", [0, 2])
def test_a_model_that_cannot_read_a_text_is_refused(table: Path, tmp_path: Path, folds: int) -> None:
    """T5's decoder wants a token to begin with, which this one has not."""
    config = transformers.T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    folder = replace_model(tmp_path / "m", transformers.T5Model(config))
    with pytest.raises(InputError, match=r"architecture 't5' cannot read a text \(.*; give a BERT-like model"):
        train(make_config(folder, table, tmp_path / "out", folds=folds, num_train_epochs=None if folds else 1.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("half", "bound"), [(torch.bfloat16, 0.05), (None, 1e-3)], ids=["bf16", "fp32"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in PADDED])
def test_attention_over_ragged_texts_agrees_on_a_gpu(
    folders: dict[str, Path], kind: str, half: torch.dtype | None, bound: float
) -> None:
    model, tokens = load(folders[kind], "cuda:0")
    rows = np.arange(len(tokens))
    device = torch.device("cuda:0")
    model.to(device).eval()
    with torch.no_grad():
        model.use_packing(False)
        exact = model(model.batch(tokens, rows).to(device))
        model.use_packing(True)
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            got = model(model.batch(tokens, rows).to(device))
    assert (got.float() - exact).abs().max() < bound * exact.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_each_architecture_gives_a_stock_folder(
    folders: dict[str, Path], table: Path, tmp_path: Path, kind: str
) -> None:
    """From the person's table to a folder that transformers loads, with the probe, by the same path."""
    out = train(make_config(folders[kind], table, tmp_path / "out", max_steps=2, report_to="none"))
    assert read_json(out / "run.json")["packed"] is (kind not in PADDED)
    ask = transformers.pipeline("text-classification", model=str(out), top_k=None, device="cpu")
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:4]
    for row in rows:
        for score in ask([row["text"]])[0]:
            assert score["score"] == pytest.approx(float(row[f"prob_{score['label']}"]), abs=1e-4)


def test_each_packable_kind_is_tested() -> None:
    assert {tiny.configurations()[kind].model_type for kind in KINDS if kind not in PADDED} == PACKABLE


def test_a_kind_that_cannot_be_packed(folders: dict[str, Path]) -> None:
    model, _ = load(folders["deberta"])
    with pytest.raises(InputError, match="deberta-v2 does not support custom attention"):
        choose_packing(model, start_world(TrainingConfig(use_cpu=True)), "packed")

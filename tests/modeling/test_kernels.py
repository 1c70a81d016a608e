"""Kernels: installed by one list, named in run.json, off where asked, and none changes what is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from classify.data.tokenize import TokenizedSplit
from classify.modeling.classifier import Classifier
from classify.modeling.kernels.base import AttentionArgs
from classify.modeling.kernels.ragged import padded_attention
from classify.modeling.kernels.registry import KERNELS
from classify.modeling.layout import Boundaries
from classify.training.run import train
from tests.support.runs import data_and_model, make_config, read_json

CPU = torch.device("cpu")
NAMES = [kernel.name for kernel in KERNELS]
HERE = [kernel.name for kernel in KERNELS if kernel.applies(CPU)]


def without(folder: Path, off: list[str]) -> tuple[TokenizedSplit, Classifier]:
    """The rows and a model that has all kernels but some."""
    data, model = data_and_model(folder, off=off)
    model.use_packing(True)
    return data, model


@pytest.mark.parametrize("off", HERE)
def test_logits_and_gradients_are_the_same_without_a_kernel(model_folder: Path, off: str) -> None:
    result = []
    for left_out in ([off], []):
        data, model = without(model_folder, left_out)
        assert [kernel.name for kernel in model.kernels] == [name for name in HERE if name not in left_out]
        logits = model.train()(model.batch(data.tokens, data.rows[:19]))
        logits.square().sum().backward()
        result.append({"logits": logits, **{name: p.grad for name, p in model.model.named_parameters()}})
    torch.testing.assert_close(result[0], result[1], rtol=1e-4, atol=1e-5)


def test_without_kernels_a_model_is_torchs_own(model_folder: Path) -> None:
    _, model = without(model_folder, NAMES)
    layers = {type(module) for module in model.model.modules() if isinstance(module, nn.Linear | nn.Dropout)}
    assert layers == {nn.Linear, nn.Dropout}
    assert model.model.config._attn_implementation == "classify_packed_torch"


@pytest.mark.parametrize(("kernels", "names"), [("auto", HERE), ("off", [])])
def test_run_json_names_the_kernels_at_work(
    model_folder: Path, table: Path, tmp_path: Path, kernels: str, names: list[str]
) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", kernels=kernels, max_steps=1))
    assert read_json(out / "run.json")["kernels"] == names


def boundaries(lengths: list[int]) -> Boundaries:
    ends = np.cumsum([0, *lengths])
    groups = tuple((int(start), 1, length) for start, length in zip(ends, lengths, strict=False))
    return Boundaries(
        groups, torch.from_numpy(ends[:-1]), torch.from_numpy(ends.astype(np.int32)), max(lengths), ends[-1]
    )


@pytest.mark.parametrize("scale", [None, 0.3])
def test_padded_attention_is_that_of_each_text_by_itself(scale: float | None) -> None:
    """What a GPU takes in fp32."""
    torch.manual_seed(0)
    bounds = boundaries([5, 9, 3, 17])
    q, k, v = (torch.randn(bounds.tokens, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    got = padded_attention(q, k, v, bounds, AttentionArgs(scale, 0.0, -1, cls_only=False))
    texts = []
    for start, _, length in bounds.groups:
        one, two, three = (x[start : start + length].transpose(0, 1) for x in (q, k, v))
        shares = torch.softmax(one @ two.mT * (8**-0.5 if scale is None else scale), -1)
        texts.append((shares @ three).transpose(0, 1))
    wanted = torch.cat(texts)
    torch.testing.assert_close(got, wanted)
    weights = torch.randn_like(wanted)
    for own, other in zip(
        torch.autograd.grad(got, [q, k, v], weights), torch.autograd.grad(wanted, [q, k, v], weights), strict=True
    ):
        torch.testing.assert_close(own, other)


def test_padded_attention_drops_shares_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    bounds = boundaries([4, 6])
    q, k, v = (torch.randn(10, 2, 8) for _ in range(3))
    draws = torch.stack(
        [padded_attention(q, k, v, bounds, AttentionArgs(None, 0.25, -1, cls_only=False)) for _ in range(2000)]
    )
    assert draws.std(dim=0).min() > 0
    torch.testing.assert_close(
        draws.mean(dim=0), padded_attention(q, k, v, bounds, AttentionArgs(None, 0.0, -1, False)), rtol=0, atol=0.15
    )


def test_only_first_tokens_may_ask() -> None:
    torch.manual_seed(0)
    bounds = boundaries([5, 9, 3, 17])
    q, k, v = (torch.randn(bounds.tokens, 4, 8) for _ in range(3))
    every, first = (padded_attention(q, k, v, bounds, AttentionArgs(None, 0.0, -1, only)) for only in (False, True))
    torch.testing.assert_close(first[bounds.starts], every[bounds.starts])
    assert not first[1:5].any()


def test_boundaries_are_moved_once() -> None:
    bounds = boundaries([4, 6])
    assert bounds.to("meta") is bounds.to("meta")

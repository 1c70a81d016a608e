"""Attention of packed texts: torch's own, text by text, and finite differences, are the judges."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from classify.modeling import cpu_attention, cpu_layers
from classify.modeling.attention import packed_attention
from classify.modeling.cpu_attention import Layout, attend, make_layout
from classify.modeling.gpu_attention import padded_attention
from classify.modeling.packing import Boundaries
from classify.training.run import train
from tests.support.runs import data_and_model, make_config, read_json

LENGTHS = {
    "sorted": [17, 9, 9, 8, 8, 3, 3, 3, 1],
    "in any order": [3, 17, 9, 1, 8, 9, 3],
    "equal": [6, 6, 6],
    "one": [5],
    "very unequal": [200, 2, 2, 2, 2],
    "several groups": [80, 80, 80, 70, 40, 40, 9],
}
HERE = ["attention", *cpu_layers.replace_layers(nn.Linear(1, 1))]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these few texts make several groups where they are long."""
    monkeypatch.setattr(cpu_attention, "_CACHED", 30_000)


def boundaries(lengths: list[int]) -> Boundaries:
    ends, groups = np.cumsum([0, *lengths]), []
    start = 0
    for length, equal in itertools.groupby(lengths):
        count = len(list(equal))
        groups.append((start, count, length))
        start += count * length
    cumulative = torch.from_numpy(ends.astype(np.int32))
    return Boundaries(tuple(groups), torch.from_numpy(ends[:-1]), cumulative, max(lengths), int(ends[-1]))


def layout_of(lengths: list[int], heads: int) -> Layout:
    return make_layout(boundaries(lengths).groups, heads)


def inputs(tokens: int, heads: int, size: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(tokens, heads, size, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def text_by_text(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], window: int) -> torch.Tensor:
    parts = []
    for one, two, three in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        along = torch.arange(len(one))
        mask = (along[:, None] - along[None, :]).abs() <= window if window >= 0 else None
        out = scaled_dot_product_attention(*(t.transpose(0, 1) for t in (one, two, three)), attn_mask=mask, scale=0.5)
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


def padded(*tensors: torch.Tensor, window: int, **how: Any) -> torch.Tensor:
    """What a GPU takes in fp32, which has no window."""
    assert window < 0
    return padded_attention(*tensors, **how)


def by_torch(*tensors: torch.Tensor, window: int, scale: float, dropout: float, cls_only: bool) -> torch.Tensor:
    *qkv, bounds = tensors
    module = nn.Module()
    module.cls_only = cls_only
    how = {"scaling": scale, "dropout": dropout, "sliding_window": None if window < 0 else window + 1}
    moved = (tensor.transpose(0, 1)[None] for tensor in qkv)
    return packed_attention(module, *moved, None, boundaries=bounds, by_device=False, **how)[0][0]


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(
    ("way", "window"),
    [(attend, -1), (attend, 2), (by_torch, -1), (by_torch, 2), (padded, -1)],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_attention_and_gradients_are_those_of_each_text_by_itself(way: Any, window: int, name: str) -> None:
    """First tokens alone have the same outputs, and gradients where theirs are the only ones."""
    lengths = LENGTHS[name]
    bounds, how = boundaries(lengths), {"scale": 0.5, "dropout": 0.0, "window": window}
    weight = torch.randn(sum(lengths), 2, 4, generator=torch.Generator().manual_seed(2))
    for cls_only in (False, True):
        own, theirs = (inputs(sum(lengths), 2, 4) for _ in range(2))
        rows = bounds.starts if cls_only else slice(None)
        got = way(*own, bounds, cls_only=cls_only, **how)
        want = text_by_text(*theirs, lengths, window)
        torch.testing.assert_close(got[rows], want[rows])
        (got[rows] * weight[rows]).sum().backward()
        (want[rows] * weight[rows]).sum().backward()
        for a, b in zip(own, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    others = torch.ones(sum(lengths), dtype=torch.bool).index_fill(0, bounds.starts, False)
    assert not got[others].any()


@pytest.mark.parametrize(("lengths", "exact"), [([12, 7, 7], True), ([90, 5, 5], False)], ids=["short", "one long"])
def test_half_precision_computes_short_texts_in_full(lengths: list[int], exact: bool) -> None:
    """What goes in and out is rounded, and nothing between, where texts are short; long ones multiply in half."""
    result = []
    for dtype in (torch.bfloat16, torch.float32):
        own = [tensor.detach().bfloat16().to(dtype).requires_grad_() for tensor in inputs(sum(lengths), 2, 8)]
        got = attend(*own, boundaries(lengths), scale=0.4, dropout=0.0, window=-1, cls_only=False)
        got.sum().backward()
        result.append([one.bfloat16() for one in (got.detach(), *(tensor.grad for tensor in own))])
    assert all(torch.equal(half, full) for half, full in zip(*result, strict=True)) == exact
    for half, full in zip(*result, strict=True):
        torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("cls_only", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("narrowest", "window"), [(1, -1), (1, 1), (16, -1)])
def test_gradients_are_those_of_finite_differences(
    narrowest: int, window: int, dropout: float, cls_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several buckets, and with dropout, too: the same entries are dropped in the backward pass."""
    monkeypatch.setattr(cpu_attention, "_CALLS", 0.0)
    monkeypatch.setattr(cpu_attention, "_NARROWEST", narrowest)
    monkeypatch.setattr(cpu_attention, "_CACHED", 40 if narrowest == 1 else 30_000)
    lengths = [6, 4, 3, 3, 1] if narrowest == 1 else [4, 3, 3, 1]
    bounds = boundaries(lengths)
    groups = layout_of(lengths, 2).groups
    assert [len(group) for group in groups] == ([1, 1, 2] if narrowest == 1 else [1])

    def seeded(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return attend(*tensors, bounds, scale=0.7, dropout=dropout, window=window, cls_only=cls_only)

    assert torch.autograd.gradcheck(seeded, tuple(inputs(sum(lengths), 2, 3, torch.float64)), fast_mode=True)


@pytest.mark.parametrize("way", [attend, padded])
@pytest.mark.parametrize("lengths", [[12, 7, 7], [40]], ids=["short", "one long"])
def test_dropout_drops_its_share_and_keeps_the_mean(
    lengths: list[int], way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_attention, "_CACHED", 4000)
    q, k, v = inputs(sum(lengths), 4, 8)
    how = {"scale": 0.3, "window": -1, "cls_only": False}
    whole = way(q, k, v, boundaries(lengths), dropout=0.0, **how).detach()
    torch.manual_seed(0)
    draws = torch.stack([way(q, k, v, boundaries(lengths), dropout=0.25, **how).detach() for _ in range(2000)])
    assert not torch.equal(draws[0], draws[1])
    torch.testing.assert_close(draws.mean(dim=0), whole, rtol=0, atol=0.06)


def test_groups_hold_every_text_once_and_end_where_the_caches_do() -> None:
    lengths = LENGTHS["several groups"]
    layout = layout_of(lengths, 2)
    assert layout.sources[layout.places].tolist() == list(range(2 * sum(lengths)))
    assert sum(bucket.texts for bucket in layout.buckets) == 2 * len(lengths) == len(layout.firsts)
    assert sum(bucket.texts * bucket.length for bucket in layout.buckets) == len(layout.sources)
    assert len(layout.groups) > 2
    assert [number for group in layout.groups for number in group] == list(range(len(layout.buckets)))
    assert max(sum(layout.buckets[number].scores for number in group) for group in layout.groups) <= 30_000
    alone = layout_of([200] * 3, 2)
    assert [[alone.buckets[number].scores for number in group] for group in alone.groups] == [[2 * 208 * 208]] * 3


def test_buckets_join_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "_CACHED", 1 << 20)
    lengths = sorted(torch.randint(3, 40, (32,), generator=torch.Generator().manual_seed(0)).tolist(), reverse=True)
    layout = layout_of(lengths, 12)
    assert int(layout.real.sum()) == 12 * sum(lengths)
    assert 1 < len(layout.buckets) < len(set(lengths)) / 2
    assert len(layout_of(LENGTHS["very unequal"], 12).buckets) == 2


def test_long_texts_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "_LONG", 30_000)
    attended = attend(*inputs(100, 4, 8), boundaries([100]), scale=1.0, dropout=0.0, window=-1, cls_only=False)
    assert attended is None


def test_boundaries_are_moved_once() -> None:
    bounds = boundaries([4, 6])
    assert bounds.to("meta") is bounds.to("meta")


@pytest.mark.parametrize("off", [[name] for name in HERE] + [HERE])
def test_logits_and_gradients_are_the_same_without_a_kernel(model_folder: Path, off: list[str]) -> None:
    result = []
    for left_out in (off, []):
        data, model = data_and_model(model_folder, off=left_out)
        model.use_packing(True)
        assert model.kernels == tuple(name for name in HERE if name not in left_out)
        logits = model.train()(model.batch(data.tokens, data.rows[:19]))
        logits.square().sum().backward()
        result.append({"logits": logits, **{name: p.grad for name, p in model.model.named_parameters()}})
        if left_out == HERE:
            kinds = {type(module) for module in model.model.modules() if isinstance(module, nn.Linear | nn.Dropout)}
            assert kinds == {nn.Linear, nn.Dropout}
            assert model.model.config._attn_implementation == "classify_packed_torch"
    torch.testing.assert_close(result[0], result[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernels", "names"), [("auto", HERE), ("off", [])])
def test_run_json_names_the_kernels_at_work(
    model_folder: Path, table: Path, tmp_path: Path, kernels: str, names: list[str]
) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", kernels=kernels, max_steps=1))
    assert read_json(out / "run.json")["kernels"] == names

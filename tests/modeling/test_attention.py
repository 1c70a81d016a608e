"""Attention of packed texts in training on a CPU: torch's own, text by text, and finite differences, are the judges."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from classify.modeling import layout as layouts
from classify.modeling.kernels.attention import CPUAttention, attend
from classify.modeling.kernels.base import AttentionArgs
from classify.modeling.layout import Boundaries, make_layout

Runs = list[tuple[int, int, int]]


def runs_of(lengths: list[int]) -> Runs:
    """Runs of equal length, as a packed row has them."""
    runs: Runs = []
    start = 0
    for length, equal in itertools.groupby(lengths):
        count = len(list(equal))
        runs.append((start, count, length))
        start += count * length
    return runs


def inputs(tokens: int, heads: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(tokens, heads, size, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def text_by_text(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], window: int) -> torch.Tensor:
    parts = []
    for one, two, three in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        along = torch.arange(len(one))
        mask = (along[:, None] - along[None, :]).abs() <= window if window >= 0 else None
        out = scaled_dot_product_attention(*(t.transpose(0, 1) for t in (one, two, three)), attn_mask=mask)
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


LENGTHS = {
    "sorted": [17, 9, 9, 8, 8, 3, 3, 3, 1],
    "in any order": [3, 17, 9, 1, 8, 9, 3],
    "equal": [6, 6, 6],
    "one": [5],
    "very unequal": [200, 2, 2, 2, 2],
    "several groups": [80, 80, 80, 70, 40, 40, 9],
}


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these few texts make several groups where they are long."""
    monkeypatch.setattr(layouts, "_CACHED", 30_000)


@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("name", LENGTHS)
def test_the_same_as_torchs_attention_and_gradients(name: str, window: int) -> None:
    lengths = LENGTHS[name]
    own, theirs = (inputs(sum(lengths), 2, 4, torch.float32) for _ in range(2))
    got = attend(*own, make_layout(runs_of(lengths), 2), scale=0.5, dropout=0.0, window=window)
    want = text_by_text(*theirs, lengths, window)
    torch.testing.assert_close(got, want)
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(2))
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("name", LENGTHS)
def test_first_tokens_alone_get_the_same_attention_and_gradients(name: str, window: int) -> None:
    lengths = LENGTHS[name]
    starts = torch.tensor([0, *itertools.accumulate(lengths[:-1])])
    weight = torch.randn(len(lengths), 2, 4, generator=torch.Generator().manual_seed(2))
    result = []
    for cls_only in (False, True):
        own = inputs(sum(lengths), 2, 4, torch.float32)
        layout = make_layout(runs_of(lengths), 2)
        got = attend(*own, layout, scale=0.5, dropout=0.0, window=window, cls_only=cls_only)
        (got[starts] * weight).sum().backward()
        result.append([got[starts], *(tensor.grad for tensor in own)])
    for whole, first in zip(*result, strict=True):
        torch.testing.assert_close(first, whole)
    others = torch.ones(sum(lengths), dtype=torch.bool).index_fill(0, starts, False)
    assert not got[others].any()


@pytest.mark.parametrize(("lengths", "exact"), [([12, 7, 7], True), ([90, 5, 5], False)], ids=["short", "one long"])
def test_half_precision_computes_short_texts_in_full(lengths: list[int], exact: bool) -> None:
    """What goes in and out is rounded, and nothing between, where texts are short; long ones multiply in half."""
    result = []
    for dtype in (torch.bfloat16, torch.float32):
        drawn = inputs(sum(lengths), 2, 8, torch.float32)
        own = [tensor.detach().bfloat16().to(dtype).requires_grad_() for tensor in drawn]
        got = attend(*own, make_layout(runs_of(lengths), 2), scale=0.4, dropout=0.0, window=-1)
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
    monkeypatch.setattr(layouts, "_CALLS", 0.0)
    monkeypatch.setattr(layouts, "_NARROWEST", narrowest)
    monkeypatch.setattr(layouts, "_CACHED", 40 if narrowest == 1 else 30_000)
    lengths = [6, 4, 3, 3, 1] if narrowest == 1 else [4, 3, 3, 1]
    layout = make_layout(runs_of(lengths), 2)
    assert [len(group.buckets) for group in layout.bucket_groups] == ([1, 1, 2] if narrowest == 1 else [1])

    def seeded(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return attend(*tensors, layout, scale=0.7, dropout=dropout, window=window, cls_only=cls_only)

    assert torch.autograd.gradcheck(seeded, tuple(inputs(sum(lengths), 2, 3, torch.float64)), fast_mode=True)


@pytest.mark.parametrize("lengths", [[12, 7, 7], [40]], ids=["short", "one long"])
def test_dropout_drops_its_share_and_keeps_the_mean(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_CACHED", 4000)
    q, k, v = inputs(sum(lengths), 4, 8, torch.float32)
    layout = make_layout(runs_of(lengths), 4)
    with torch.no_grad():
        whole = attend(q, k, v, layout, scale=0.3, dropout=0.0, window=-1)
        torch.manual_seed(0)
        draws = torch.stack([attend(q, k, v, layout, scale=0.3, dropout=0.25, window=-1) for _ in range(2000)])
    assert not torch.equal(draws[0], draws[1])
    torch.testing.assert_close(draws.mean(dim=0), whole, rtol=0, atol=0.06)


def test_groups_hold_every_text_once_and_end_where_the_caches_do() -> None:
    lengths = LENGTHS["several groups"]
    layout = make_layout(runs_of(lengths), 2)
    assert layout.sources[layout.places].tolist() == list(range(2 * sum(lengths)))
    assert sum(bucket.shape[0] for bucket in layout.buckets) == len(lengths)
    assert len(layout.bucket_groups) > 2
    entries = texts = 0
    for group in layout.bucket_groups:
        assert (group.entry, group.text) == (entries, texts)
        entries += sum(math.prod(bucket.shape) for bucket in group.buckets)
        texts += sum(math.prod(bucket.shape[:2]) for bucket in group.buckets)
        assert group.count_scores(cls_only=False) <= 30_000
    assert entries == len(layout.sources)
    assert texts == len(layout.firsts)
    alone = make_layout([(0, 3, 200)], 2)
    assert [group.count_scores(cls_only=False) for group in alone.bucket_groups] == [2 * 208 * 208] * 3


def test_buckets_hold_every_token_once_and_join_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_CACHED", 1 << 20)
    lengths = sorted(torch.randint(3, 40, (32,), generator=torch.Generator().manual_seed(0)).tolist(), reverse=True)
    layout = make_layout(runs_of(lengths), 12)
    assert layout.sources[layout.places].tolist() == list(range(12 * sum(lengths)))
    assert int(layout.real.sum()) == 12 * sum(lengths)
    assert 1 < len(layout.buckets) < len(set(lengths)) / 2
    assert len(make_layout(runs_of(LENGTHS["very unequal"]), 12).buckets) == 2


def test_long_texts_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_LONG", 30_000)
    q, k, v = inputs(100, 4, 8, torch.float32)
    args = AttentionArgs(None, 0.0, -1, cls_only=False)
    bounds = Boundaries(((0, 1, 100),), torch.zeros(1), torch.tensor([0, 100]), 100, 100)
    assert CPUAttention().attend(q.requires_grad_(), k, v, bounds, args) is None

"""Layers of CPUs: dropout keeps share, mean and repeatability of torch's; products are torch's but for rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from classify.modeling import cpu_layers
from classify.modeling.cpu_layers import Dropout, Linear, draw_mask, onednn_is_faster, replace_layers
from classify.modeling.precision import FP32, choose_precision
from tests.support import tiny
from tests.support.runs import data_and_model

ZEN5 = {"cpu_name": "AMD EPYC", "avx512_f": True}
needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()),
    reason="this torch has no MKL or no oneDNN",
)


def draw_scaled_mask(shape: tuple[int, ...], rate: float) -> torch.Tensor:
    mask, scale = draw_mask(shape, rate, torch.float32)
    return mask * scale


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (500, 400)])
def test_the_share_dropped_and_the_scale_of_the_rest(rate: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    mask = draw_scaled_mask(shape, rate)
    assert mask.shape == shape
    values = mask.unique()
    assert len(values) <= 2
    if rate == 0.0:
        assert bool((mask == 1).all())
    elif mask.numel() > 1000:
        share = 1 - 1 / float(values.max())  # what was drawn: a 256th below or above the rate
        assert share * 256 == pytest.approx(round(share * 256), abs=1e-3)
        assert abs(share - rate) < 1 / 256
        dropped = float((mask == 0).float().mean())
        assert dropped == pytest.approx(share, abs=5 * (share * (1 - share) / mask.numel()) ** 0.5)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3])
def test_over_many_masks_the_share_is_the_rate_and_the_mean_is_one(rate: float) -> None:
    torch.manual_seed(0)
    masks = torch.stack([draw_scaled_mask((500,), rate) for _ in range(4000)])
    error = (rate * (1 - rate) / masks.numel()) ** 0.5 + 1 / 512 / 4000**0.5
    assert float((masks == 0).float().mean()) == pytest.approx(rate, abs=4 * error)
    assert float(masks.mean()) == pytest.approx(1, abs=6 * error)


def test_entries_are_dropped_independently() -> None:
    """Neighbours come from the same 64 bits; their correlation must not show."""
    torch.manual_seed(1)
    gone = (draw_scaled_mask((200_000, 4), 0.25) == 0).double()
    correlation = torch.corrcoef(gone.T)
    assert float((correlation - torch.eye(4)).abs().max()) < 0.01


def test_a_layer_computed_again_drops_the_same_entries() -> None:
    layer, x = nn.Sequential(nn.Linear(20, 20), Dropout(0.5)), torch.randn(50, 20)
    assert not torch.equal(layer(x), layer(x))
    assert layer[1].eval()(x) is x
    layer.train()
    gradients = []
    for forward in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        layer.zero_grad()
        torch.manual_seed(2)
        forward(x).sum().backward()
        gradients.append(layer[0].weight.grad.clone())
    assert torch.equal(*gradients)


def test_every_dropout_of_a_model_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.4)))
    before = list(model.state_dict())
    model[2].eval()
    replace_layers(model)
    layers = [(type(m), m.p, m.training) for m in model.modules() if isinstance(m, nn.Dropout)]
    assert layers == [(Dropout, 0.2, True), (Dropout, 0.4, False)]
    assert list(model.state_dict()) == before


@pytest.fixture
def on_zen5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "capabilities", lambda: ZEN5)


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """torch's layer and the same by oneDNN."""
    torch.manual_seed(0)
    stock, other = (nn.Linear(24, 10, bias=bias) for _ in range(2))
    other.load_state_dict(stock.state_dict())
    replace_layers(other)
    assert type(other) is Linear
    return stock, other


@needs_onednn
@pytest.mark.usefixtures("on_zen5")
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (1, 33, 24), (2, 3, 24), (0, 24)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], bias: bool, in_place: bool) -> None:
    """Also where the output is changed in place, as Longformer scales its queries."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    result = []
    for layer in layers(bias):
        given = x.clone().requires_grad_()
        out = layer(given)
        if in_place:
            out /= 3.0
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        with torch.no_grad():
            again = layer(x)
        result.append([out, again, given.grad, *(p.grad for p in layer.parameters())])
    for stock, other in zip(*result, strict=True):
        torch.testing.assert_close(other, stock, rtol=1e-5, atol=1e-4)


@needs_onednn
@pytest.mark.usefixtures("on_zen5")
def test_only_wanted_gradients_are_computed() -> None:
    _, layer = layers()
    layer.weight.requires_grad_(False)
    x = torch.randn(5, 24, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(5, 24))


@needs_onednn
@pytest.mark.usefixtures("on_zen5")
def test_autocast_and_other_types_are_left_to_torch() -> None:
    stock, layer = layers()
    x = torch.randn(5, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), stock(x))
    assert torch.equal(layer.double()(x.double()), stock.double()(x.double()))


@needs_onednn
@pytest.mark.parametrize(
    ("processor", "faster"),
    [
        (ZEN5, True),
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8481C", "avx512_f": True}, False),
        ({"cpu_name": "AMD EPYC 7R13", "avx512_f": False, "avx2": True}, False),
        ({"cpu_name": "Neoverse-V2", "sve": True}, False),
        ({}, False),
    ],
)
def test_wide_registers_that_mkl_leaves_alone_ask_for_onednn(processor: dict[str, object], faster: bool) -> None:
    assert onednn_is_faster(processor) is faster


@needs_onednn
@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_a_model_gives_the_same_logits_and_gradients(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed batches of training in fp32 are filled up for oneDNN, those in bf16 always."""
    folder = tiny.make_model(tmp_path / "model", kind)
    result = []
    for processor, multiple in (({}, 1), (ZEN5, 16)):
        monkeypatch.setattr(cpu_layers, "capabilities", lambda processor=processor: processor)
        data, model = data_and_model(folder)
        kinds = {type(module) for module in model.model.modules() if isinstance(module, nn.Linear)}
        assert kinds == {Linear if processor else nn.Linear}
        for precision, wanted in (choose_precision("bf16", torch.device("cpu")), 16), (FP32, multiple):
            model.set_precision(precision)
            assert model._token_multiple == wanted
        model.use_packing(True)
        model.eval()
        logits = model(model.batch(data.tokens, data.rows[:19]))
        logits.square().sum().backward()
        result.append({"logits": logits, **{name: p.grad for name, p in model.model.named_parameters()}})
    torch.testing.assert_close(result[1], result[0], rtol=1e-4, atol=1e-5)

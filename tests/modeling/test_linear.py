"""fp32 products by oneDNN: those of torch but for rounding, and asked for only where they are faster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from classify.modeling.kernels import linear
from classify.modeling.kernels.linear import Linear, OneDNNLinear, onednn_is_faster, uses_onednn_linear
from classify.modeling.precision import FP32, choose_precision
from tests.support import tiny
from tests.support.runs import data_and_model

ZEN5 = {"cpu_name": "AMD EPYC", "avx512_f": True}
needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()),
    reason="this torch has no MKL or no oneDNN",
)


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """torch's layer and the same by oneDNN."""
    torch.manual_seed(0)
    stock = nn.Linear(24, 10, bias=bias)
    other = nn.Linear(24, 10, bias=bias)
    other.load_state_dict(stock.state_dict())
    OneDNNLinear().install(other)
    assert type(other) is Linear
    return stock, other


@needs_onednn
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (1, 33, 24), (2, 3, 24), (0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], bias: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    result = []
    for layer in layers(bias):
        given = x.clone().requires_grad_()
        out = layer(given)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        with torch.no_grad():
            again = layer(x)
        result.append([out, again, given.grad, *(p.grad for p in layer.parameters())])
    for stock, other in zip(*result, strict=True):
        torch.testing.assert_close(other, stock, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_an_output_can_be_changed_in_place() -> None:
    """As Longformer scales its queries."""
    x, result = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(1)), []
    for layer in layers():
        out = layer(x)
        out /= 3.0
        out.square().sum().backward()
        result.append([out, *(parameter.grad for parameter in layer.parameters())])
    for stock, other in zip(*result, strict=True):
        torch.testing.assert_close(other, stock, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_only_wanted_gradients_are_computed() -> None:
    _, layer = layers()
    layer.weight.requires_grad_(False)
    x = torch.randn(5, 24, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(5, 24))


@needs_onednn
def test_autocast_and_other_types_are_left_to_torch() -> None:
    stock, layer = layers()
    x = torch.randn(5, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), stock(x))
    assert torch.equal(layer.double()(x.double()), stock.double()(x.double()))


@needs_onednn
def test_wide_registers_that_mkl_leaves_alone_ask_for_it() -> None:
    assert onednn_is_faster(ZEN5)


def test_other_registers_do_not_ask_for_it() -> None:
    assert not onednn_is_faster({"cpu_name": "Intel(R) Xeon(R) Platinum 8481C", "avx512_f": True})
    assert not onednn_is_faster({"cpu_name": "AMD EPYC 7R13", "avx512_f": False, "avx2": True})
    assert not onednn_is_faster({"cpu_name": "Neoverse-V2", "sve": True})
    assert not onednn_is_faster({})


@needs_onednn
@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_a_model_gives_the_same_logits_and_gradients(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make_model(tmp_path / "model", kind)
    result = []
    for processor in ({}, ZEN5):
        monkeypatch.setattr(linear, "capabilities", lambda processor=processor: processor)
        data, model = data_and_model(folder)
        assert uses_onednn_linear(model.model) == bool(processor)
        model.use_packing(True)
        model.eval()
        batch = model.batch(data.tokens, data.rows[:19])
        logits = model(batch)
        logits.square().sum().backward()
        result.append({"logits": logits, **{name: p.grad for name, p in model.model.named_parameters()}})
    layers = [module for module in model.model.modules() if isinstance(module, nn.Linear)]
    assert layers
    assert all(type(module) is Linear for module in layers)
    torch.testing.assert_close(result[1], result[0], rtol=1e-4, atol=1e-5)


@needs_onednn
def test_batches_of_training_in_fp32_are_filled_up_for_it(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for processor, multiple in (({}, 1), (ZEN5, 16)):
        monkeypatch.setattr(linear, "capabilities", lambda processor=processor: processor)
        _, model = data_and_model(model_folder)
        model.set_precision(FP32)
        assert model._token_multiple == multiple
        model.set_precision(choose_precision("bf16", torch.device("cpu")))
        assert model._token_multiple == 16

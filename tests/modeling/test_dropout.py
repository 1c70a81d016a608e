"""Dropout as a CPU draws it here: the share, the mean and the repeatability of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from classify.modeling.kernels.dropout import CPUDropout, Dropout, draw_mask


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


def test_torchs_seed_is_its_seed_and_evaluation_passes_through() -> None:
    layer, x = Dropout(0.3), torch.randn(50, 20)
    torch.manual_seed(4)
    one = layer(x)
    torch.manual_seed(4)
    assert torch.equal(one, layer(x))
    assert not torch.equal(one, layer(x))
    assert layer.eval()(x) is x


def test_a_layer_computed_again_drops_the_same_entries() -> None:
    layer, x = nn.Sequential(nn.Linear(20, 20), Dropout(0.5)), torch.randn(50, 20)
    torch.manual_seed(2)
    layer(x).sum().backward()
    wanted = layer[0].weight.grad.clone()
    layer.zero_grad()
    torch.manual_seed(2)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.equal(layer[0].weight.grad, wanted)


def test_every_dropout_of_a_model_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.4)))
    before = list(model.state_dict())
    model[2].eval()
    CPUDropout().install(model)
    assert [m.training for m in model.modules() if isinstance(m, nn.Dropout)] == [True, False], "a mode changed"
    assert [type(m) for m in model.modules() if isinstance(m, nn.Dropout)] == [Dropout, Dropout]
    assert (model[1].p, model[2][0].p) == (0.2, 0.4)
    assert list(model.state_dict()) == before

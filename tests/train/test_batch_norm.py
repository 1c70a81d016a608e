"""The layer of classify.batch_norm against torch's, in a group of one process, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from classify.batch_norm import AllReducedBatchNorm, counted, synchronise, told
from tests.support.processes import free_port


@pytest.fixture
def group() -> Iterator[None]:
    """A gloo group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(5), (7, 5)),
        (nn.BatchNorm1d(5, momentum=None), (7, 5)),
        (nn.BatchNorm1d(5, affine=False), (3, 5, 4)),
        (nn.BatchNorm2d(5, track_running_stats=False), (2, 5, 3, 3)),
    ],
)
def test_it_is_torchs_layer(layer: nn.Module, shape: tuple[int, ...], group: None) -> None:
    model = nn.Sequential(layer)
    model[0].load_state_dict({name: torch.rand_like(tensor.float()) for name, tensor in layer.state_dict().items()})
    twin = nn.Sequential(type(layer)(5, momentum=layer.momentum, affine=layer.affine,
                                     track_running_stats=layer.track_running_stats))  # fmt: skip
    twin.load_state_dict(model.state_dict())
    held = list(model.parameters())
    assert synchronise(model) == 1
    assert isinstance(model[0], AllReducedBatchNorm)
    assert all(one is other for one, other in zip(model.parameters(), held, strict=True))
    one = torch.randn(shape, requires_grad=True)
    other = one.detach().clone().requires_grad_()
    pull = torch.randn(shape)
    for _ in range(2):
        got, wanted = model(one), twin(other)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        (got * pull).sum().backward()
        (wanted * pull).sum().backward()
    torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model.eval()(one), twin.eval()(other), atol=1e-5, rtol=1e-5)


def test_what_it_does_is_told() -> None:
    plain, normed = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.BatchNorm1d(2))
    assert "no BatchNorm layer" in told(plain, 2, 1)
    assert "all 2 processes" in told(normed, 2, 1)
    assert "one process a device" in told(normed, 1, 4)
    assert "does nothing" in told(normed, 1, 1)


def test_an_input_that_does_not_count_leaves_the_statistics_alone(group: None) -> None:
    layer = AllReducedBatchNorm(2)
    with counted(nn.Sequential(layer), False):
        assert not layer.counted
    assert layer.counted

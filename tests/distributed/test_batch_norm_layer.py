"""SyncBatchNorm's layer against torch's, in a group of one process, and what is said where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from classify.config.schema import TrainingConfig
from classify.distributed.batch_norm import (
    AllReducedBatchNorm,
    count_inputs,
    describe_synchronization,
    restore_statistics,
    synchronize,
)
from classify.launch.device_plan import ParallelMode
from classify.training.strategies.batch_norm import WithBatchNorm
from classify.training.strategies.ddp import DDPStrategy
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
    synchronize(model)
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
    assert "no BatchNorm layer" in describe_synchronization(plain, 2, 1)
    assert "all 2 processes" in describe_synchronization(normed, 2, 1)
    assert "one process per device" in describe_synchronization(normed, 1, 4)
    assert "has no effect" in describe_synchronization(normed, 1, 1)


def test_an_input_that_does_not_count_leaves_the_statistics_alone(group: None) -> None:
    layer = AllReducedBatchNorm(2)
    with count_inputs(layer, False):
        assert not layer.counted
    assert layer.counted


class _Encoder(nn.Module):
    """Like a stock encoder: a buffer that no step changes."""

    def __init__(self, norm: bool):
        super().__init__()
        self.register_buffer("position_ids", torch.arange(512))
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.LayerNorm(4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(input))


@pytest.mark.parametrize("norm", [False, True])
def test_buffers_are_broadcast_for_a_batch_norm_alone(norm: bool, group: None) -> None:
    """DistributedDataParallel would send position numbers, which no step changes, before every forward pass."""
    world = TrainingConfig(use_cpu=True).start()
    plan = dataclasses.replace(world.plan, parallel_mode=ParallelMode.DISTRIBUTED, strategy="ddp", backend="gloo")
    model: Any = _Encoder(norm)
    strategy = type("DDP", (WithBatchNorm, DDPStrategy) if norm else (DDPStrategy,), {})
    wrapped: Any = strategy(model, TrainingConfig(), dataclasses.replace(world, plan=plan)).wrap(model)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        wrapped(torch.ones(3, 4)).sum().backward()
    assert any("broadcast" in event.name for event in seen.events()) is norm
    assert wrapped.will_sync_module_buffers() is norm


@pytest.mark.parametrize("norm", [False, True])
def test_no_other_buffers_are_copied_in_a_step(norm: bool) -> None:
    model = _Encoder(norm)
    copied = []

    class Clones(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.clone.default:
                copied.append(args[0].shape)
            return function(*args, **(kwargs or {}))

    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with Clones(), restore_statistics(model):
        model(torch.randn(3, 4))
    assert copied == ([(4,), (4,), ()] if norm else [])
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())

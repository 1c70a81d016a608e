"""Synchronize BatchNorm statistics over all ranks (Ioffe and Szegedy, 2015, "Batch Normalization", section 3.1).

torch's SyncBatchNorm refuses CPU tensors, and counts the padding row of a rank without rows. So only its conversion is
used, and the forward pass has two all-reduces. BERT has no BatchNorm; heads and other encoders may.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced too, as each rank's loss depends on every rank's input."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(total)
        return total


class AllReducedBatchNorm(_BatchNorm):
    """BatchNorm of inputs (n, C, ...); n may differ between ranks. Every rank must call it in training.

    An input that is not `counted` is normalized with the other ranks' statistics and adds nothing to them.
    """

    counted = True

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions. Got {input.dim()} instead.")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize the input; the output has the same shape."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        over = [dimension for dimension in range(input.dim()) if dimension != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        share = float(self.counted)
        wide = input.float()
        rows = wide.new_full((1,), share * input.numel() / input.shape[1])
        total = _Sum.apply(torch.cat([wide.sum(over) * share, rows]))
        count, mean = total[-1], total[:-1] / total[-1]
        centred = wide - mean.view(shape)
        variance = _Sum.apply((centred * centred).sum(over) * share) / count
        self._remember(mean.detach(), variance.detach(), float(count.detach()))
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(input.dtype)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def synchronize(model: nn.Module) -> None:
    """Replace each BatchNorm of a model by a synchronized one with the same tensors, before the model is wrapped."""
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for layer in [layer for layer in model.modules() if isinstance(layer, nn.SyncBatchNorm)]:
        layer.__class__ = AllReducedBatchNorm  # type: ignore[assignment]  # the same tensors, other arithmetic


def layers(model: nn.Module) -> list[_BatchNorm]:
    """Return a model's BatchNorm layers, of any kind."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def describe_synchronization(model: nn.Module, processes: int, replicas: int) -> str:
    """Return the effect of --sync-batch-norm in one line."""
    count = len(layers(model))
    if count == 0:
        return "--sync-batch-norm has no effect: this model has no BatchNorm layer"
    if processes > 1:
        return f"{count} BatchNorm layer(s) compute statistics over the rows of all {processes} processes"
    if replicas > 1:
        return "--sync-batch-norm has no effect under DataParallel; start one process per device"
    return "--sync-batch-norm has no effect: one process has all rows of a step"


@contextlib.contextmanager
def count_inputs(model: nn.Module, counted: bool) -> Iterator[None]:
    """Set in this block whether inputs count for the statistics of BatchNorm layers."""
    synchronized = [layer for layer in layers(model) if isinstance(layer, AllReducedBatchNorm)]
    for layer in synchronized:
        layer.counted = counted
    try:
        yield
    finally:
        for layer in synchronized:
            layer.counted = True


@contextlib.contextmanager
def restore_statistics(model: nn.Module) -> Iterator[None]:
    """Restore the running statistics of BatchNorm layers after this block."""
    statistics = [buffer for layer in layers(model) for buffer in layer.buffers(recurse=False)]
    before = [buffer.clone() for buffer in statistics]
    try:
        yield
    finally:
        for buffer, value in zip(statistics, before, strict=True):
            buffer.copy_(value)

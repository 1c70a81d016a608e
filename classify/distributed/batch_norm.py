"""BatchNorm over all ranks: the statistics of a micro-batch are those of its rows on every process.

Ioffe and Szegedy, 2015, "Batch Normalization", section 3.1. torch converts the layers, but its SyncBatchNorm
refuses CPU tensors (and DistributedDataParallel refuses it there), and counts the row that a rank computes which has
none of its own; so the arithmetic is an own one on every device, of two all-reduces. BERT itself has no BatchNorm,
heads and other encoders may.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced too: each rank's loss depends on every rank's input."""

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
    """BatchNorm of inputs (n, C, ...) whose n differ from rank to rank; every rank calls it in training.

    An input that is not `counted` is normalised with the others' statistics and adds nothing to them.
    """

    counted = True

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions. Got {input.dim()} instead.")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised input, of the same shape."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        over = [place for place in range(input.dim()) if place != 1]
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
        """Move the running statistics as torch does: the variance without bias."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def synchronize(model: nn.Module) -> int:
    """Replace every BatchNorm of a model by one over all ranks, weights and buffers kept; returns how many.

    Call it before the model is wrapped.
    """
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.SyncBatchNorm)]
    for layer in layers:
        layer.__class__ = AllReducedBatchNorm  # type: ignore[assignment]  # the same tensors, other arithmetic
    return len(layers)


def count(model: nn.Module) -> int:
    """How many BatchNorm layers a model has, of any kind."""
    return len(_layers(model))


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def describe_synchronization(model: nn.Module, processes: int, replicas: int) -> str:
    """What --sync-batch-norm does for a model on so many processes, or on replicas in one process: a line."""
    layers = count(model)
    if layers == 0:
        return "this model has no BatchNorm layer (BERT's norms look at one token each); --sync-batch-norm does nothing"
    if processes > 1:
        return f"{layers} BatchNorm layer(s) take their statistics from the rows of all {processes} processes"
    if replicas > 1:
        return "--sync-batch-norm needs one process per device; under DataParallel each replica keeps to its own rows"
    return "one process has all rows of a step already; --sync-batch-norm does nothing"


@contextlib.contextmanager
def counted(model: nn.Module, yes: bool) -> Iterator[None]:
    """Inside, the inputs of a model's layers count for the statistics, or do not."""
    layers = [layer for layer in model.modules() if isinstance(layer, AllReducedBatchNorm)]
    for layer in layers:
        layer.counted = yes
    try:
        yield
    finally:
        for layer in layers:
            layer.counted = True


@contextlib.contextmanager
def statistics_kept(model: nn.Module, *, after_errors_only: bool = False) -> Iterator[None]:
    """Give the running statistics of a model's BatchNorms the values back that they had before."""
    statistics = [buffer for layer in _layers(model) for buffer in layer.buffers(recurse=False)]
    before = [buffer.clone() for buffer in statistics]
    done = False
    try:
        yield
        done = True
    finally:
        if not (done and after_errors_only):
            for buffer, value in zip(statistics, before, strict=True):
                buffer.copy_(value)

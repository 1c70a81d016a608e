"""torch's DistributedDataParallel: each process computes its rows, gradients are averaged after the last ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from classify.distributed import batch_norm
from classify.training.strategies.base import Strategy


class DDPStrategy(Strategy):
    """One process per device, each with the whole model."""

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Return the module that forward passes go through; the ranks start from rank 0's weights."""
        device = self.world.device
        devices = None if device.index is None else [device.index]
        wrapped = DistributedDataParallel(
            classifier, device_ids=devices, output_device=devices and devices[0], gradient_as_bucket_view=True
        )
        # Broadcast buffers only of models with BatchNorm: no step changes others, such as position ids. An attribute,
        # because the argument has another name from torch 2.13 on.
        wrapped.broadcast_buffers = bool(batch_norm.layers(classifier))
        # A reducer that outlives the group would destroy it while holding the GIL, which gloo's thread may be waiting
        # for: a deadlock at exit. So reducers go first; the wrapped model cannot be used any more.
        self.world.before_close(lambda: _drop_reducer(wrapped))
        return wrapped

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Add up the gradients of all but the last micro-batch without an exchange."""
        if last or not isinstance(self.module, DistributedDataParallel):  # nothing is exchanged anyway
            return contextlib.nullcontext()
        return self.module.no_sync()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch's loss; the reducer adds up in place, in half precision."""
        self.scaler.scale(loss).backward()
        if last:
            self.masters.add_gradients()

    @contextlib.contextmanager
    def without_exchange(self) -> Iterator[None]:
        """Send passes through the model as it was before wrapping, which would exchange its buffers."""
        wrapped, bare = self.module, self.classifier
        self.module = bare
        try:
            yield
        finally:
            self.module = wrapped


def _drop_reducer(wrapped: Any) -> None:
    wrapped.logger = wrapped.reducer = None

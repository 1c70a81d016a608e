"""torch's DistributedDataParallel: each process computes its rows, gradients are averaged after the last ones."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from classify.training.strategies.base import Strategy


class DDPStrategy(Strategy):
    """One process per device, each with the whole model."""

    buckets_gradients = True

    def wrap(self, classifier: nn.Module) -> nn.Module:
        """Let the ranks start from rank 0's weights, and average gradients in the backward pass.

        With --sync-batch-norm each forward pass waits for the statistics of the other ranks.
        """
        if self.config.sync_batch_norm:
            nn.SyncBatchNorm.convert_sync_batchnorm(classifier)
            self.forward_is_collective = True
        device = self.world.device
        devices = None if device.index is None else [device.index]
        wrapped = DistributedDataParallel(
            classifier, device_ids=devices, output_device=devices and devices[0], gradient_as_bucket_view=True
        )
        # No step changes a buffer, such as position ids. An attribute, because the argument has another name from
        # torch 2.13 on.
        wrapped.broadcast_buffers = False
        # A reducer that outlives the group would destroy it while holding the GIL, which gloo's thread may be waiting
        # for: a deadlock at exit. So reducers go first; the wrapped model cannot be used any more.
        self.world.before_close(functools.partial(_drop_reducer, wrapped))
        return wrapped

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        """Send all but the last micro-batch through the model without its wrapper, so nothing is exchanged."""
        wrapped = self.module
        self.module = wrapped if last else self.classifier
        try:
            yield
        finally:
            self.module = wrapped


def _drop_reducer(wrapped: Any) -> None:
    wrapped.logger = wrapped.reducer = None

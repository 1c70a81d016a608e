"""CUDA graphs of training passes: all kernels of a forward or backward pass start with one call.

A GPU computes a step of a few hundred tokens in a tenth of the time that Python takes to start its kernels one by one.
A graph has fixed shapes and addresses (CUDA Programming Guide, "CUDA Graphs"): batches are padded to few sizes, and
gradients are added to tensors that stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from classify.config.schema import TrainingConfig
from classify.modeling.classifier import Classifier
from classify.modeling.gpu_attention import flash_applies
from classify.modeling.layers import has_batch_norm
from classify.modeling.packing import MOST_ROUNDED, Batch
from classify.training.optimizer import trained_params
from classify.training.strategies.base import Strategy

# Most graphs: each takes part of a second to record, and a little memory.
_MOST_GRAPHS = 48
# Flash attention takes about 128 queries at once, so shorter texts cost the same.
_QUERIES = 128


def explain_no_graphs(classifier: Classifier, config: TrainingConfig, device: torch.device) -> str | None:
    """The reason why training passes of this classifier on a device cannot be recorded, or None if they can.

    Nothing may be left to the host within a pass: the attention of texts without flash attention, BatchNorm's
    statistics, the random state of checkpointing, masters of half weights.
    """
    head_size = classifier.hidden_size // int(classifier.model.config.num_attention_heads)
    precision = classifier.precision
    has_flash = flash_applies(device, precision.half_dtype, head_size)
    reasons = {
        "--kernels off": not classifier.kernels,
        "texts are padded": not classifier.packed,
        f"no flash attention in {precision.name} for heads of {head_size} on this device": not has_flash,
        "weights are in half precision": precision.rounds_weights,
        "--gradient-checkpointing": config.gradient_checkpointing,
        "the model has BatchNorm": has_batch_norm(classifier),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True)
class _Recording:
    """A forward and a backward pass over `batch`; `outputs` and their gradient `grad_outputs` keep their addresses."""

    batch: Batch
    outputs: torch.Tensor
    grad_outputs: torch.Tensor
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class _Replay(torch.autograd.Function):
    """The passes of a recording. The backward pass adds to the weights' gradients by itself.

    `anchor`, a tensor of no use otherwise, makes the outputs require a gradient.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, recording: _Recording) -> torch.Tensor:
        ctx.recording = recording
        recording.forward.replay()
        return recording.outputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        ctx.recording.grad_outputs.copy_(grads[0])
        ctx.recording.backward.replay()
        return None, None


class GraphStrategy(Strategy):
    """Sends forward passes of training on one device, each followed by its backward pass, through graphs.

    A shape is computed as usual the first time, recorded the second time, and replayed from then on.
    """

    recordings: dict[object, _Recording]

    def reset_optimizer(self) -> None:
        """Forget the recordings, which hold the addresses of gradients."""
        self._forget_recordings()
        super().reset_optimizer()
        self.classifier.rounds_tokens = True

    def release_memory(self) -> None:
        """Forget the recordings, too: they keep the memory of all their passes."""
        self._forget_recordings()
        super().release_memory()

    def _forget_recordings(self) -> None:
        self.classifier.zero_grad()
        self._trained = [parameter for parameter in self.classifier.parameters() if parameter.requires_grad]
        self._anchor = torch.zeros((), device=self.world.device, requires_grad=True)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._seen: set[object] = set()
        self.recordings = {}

    def clear_gradients(self) -> None:
        """Set gradients to zero in place, since graphs add to the same tensors in each step."""
        self.optimizer.zero_grad(set_to_none=False)

    def forward(self, batches: list[Batch], *, features: bool = False) -> torch.Tensor:
        batch = batches[0].to(self.world.device)
        bounds = batch.boundaries
        if bounds is None or batch.rows is not None or bounds.tokens > MOST_ROUNDED:
            return self.module(batch, features=features)
        longest = max(_QUERIES, 1 << (bounds.longest - 1).bit_length())
        shape = (features, bounds.tokens, len(bounds.starts), len(bounds.cumulative), longest)
        if shape not in self.recordings:
            if shape not in self._seen or len(self.recordings) == _MOST_GRAPHS:
                self._seen.add(shape)
                return self.module(batch, features=features)
            fixed = dataclasses.replace(bounds, longest=longest, _cache={})
            self.recordings[shape] = self._record(dataclasses.replace(batch, boundaries=fixed), features)
        recording = self.recordings[shape]
        for static, tensor in zip(_inputs(recording.batch), _inputs(batch), strict=True):
            static.copy_(tensor)
        outputs: torch.Tensor = _Replay.apply(self._anchor, recording)
        return outputs

    def _record(self, batch: Batch, features: bool) -> _Recording:
        """Record both passes, which computes nothing."""
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        totals, grads = list[torch.Tensor](), list[torch.Tensor]()
        with torch.cuda.graph(forward, pool=self._pool, capture_error_mode="thread_local"):
            outputs = self.module(batch, features=features)
        grad_outputs = torch.zeros_like(outputs)
        with torch.cuda.graph(backward, pool=self._pool, capture_error_mode="thread_local"):
            added = torch.autograd.grad(outputs, self._trained, grad_outputs, allow_unused=True)
            for weight, grad in zip(self._trained, added, strict=True):
                if grad is not None:
                    assert weight.grad is not None, "the pass of this shape that came first has made it"
                    totals.append(weight.grad)
                    grads.append(grad)
            torch._foreach_add_(totals, grads)
        return _Recording(batch, outputs.detach(), grad_outputs, forward, backward)


class GraphDDPStrategy(GraphStrategy):
    """The same in each of several processes, whose gradients are averaged once a step, between the graphs.

    All ranks start from the same weights: model files are compared, and the head comes from the main process. Without
    DistributedDataParallel the exchange does not overlap the backward pass, which replayed takes a few milliseconds.
    """

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        yield
        if last:
            trained = trained_params(self.optimizer)
            self.world.all_reduce_gradients(trained)
            gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
            torch._foreach_div_(gradients, self.world.world_size)


def _inputs(batch: Batch) -> list[torch.Tensor]:
    assert batch.boundaries is not None
    return [*batch.tensors.values(), batch.boundaries.starts, batch.boundaries.cumulative]

"""Forward and backward pass of a step as one CUDA graph, where starting its kernels takes longer than they do.

A graph runs the same kernels on the same memory again, so batches have to come in few sizes: filling takes a batch's
tokens up to the next budget. The filling is one more text, that the others do not see and nobody reads, so gradients
are what they were. https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from classify import batch_norm
from classify.config import TrainingConfig
from classify.errors import ClassifyError, InputError
from classify.memory import out_of_memory
from classify.model import LoadedModel
from classify.packing import PackedBatch, fill_up, ragged_kernel_applies
from classify.precision import Precision
from classify.runtime import Runtime
from classify.transfer import send

# The smallest step between budgets, in tokens; else an eighth of the power of two below.
_WIDTH = 64
# Beyond so many tokens a GPU computes for longer than Python takes to start its kernels.
_LARGEST = 16_384
# A size pays for its recording when it has come so often; no more than so many are kept.
_SEEN = 3
_KEPT = 32
# Passes before the recording, in which libraries choose algorithms and reserve memory.
_WARM_UP = 3

Key = tuple[int, int, int]
Work = Callable[[], torch.Tensor]


class Graph(Protocol):
    """What is asked of a `torch.cuda.CUDAGraph`."""

    def replay(self) -> Any:
        """Run it once more."""

    def pool(self) -> Any:
        """The memory it runs in, which others may share."""


Capture = Callable[[Work, Any], tuple[Graph, torch.Tensor]]


def budget(tokens: int) -> int:
    """The tokens that a batch of so many is filled up to: at least one more, at most an eighth and `_WIDTH` more."""
    width = max(_WIDTH, (1 << tokens.bit_length()) >> 4)
    return (tokens // width + 1) * width


def longest_within(length: int, filling: int) -> int:
    """The length to plan kernels for: a power of two that neither a text nor the filling exceeds."""
    return 1 << (max(_WIDTH, length, filling) - 1).bit_length()


def record(work: Work, pool: Any) -> tuple[Graph, torch.Tensor]:
    """Record what `work` does on the GPU, in the memory of `pool` (None: its own); results appear in the tensor."""
    # Dropout must not draw on from where warming up has come to.
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = work()
    return graph, result


@dataclass(frozen=True)
class _Recorded:
    """A recorded pass: where its inputs are put, how it is run, where its loss appears."""

    inputs: tuple[torch.Tensor, ...]
    graph: Graph
    loss: torch.Tensor


def check(model: LoadedModel, precision: Precision, runtime: Runtime, config: TrainingConfig) -> None:
    """Raise InputError where `cuda_graphs` is asked for and a pass cannot be recorded."""
    if not config.cuda_graphs:
        return
    packed = model.packed and ragged_kernel_applies(runtime.device, precision.half, model.head_size)
    for expected, true in (
        ("a GPU (CUDA)", runtime.device.type == "cuda"),
        ("one process with one device", runtime.world_size * runtime.replicas == 1 and not runtime.distributed),
        ("a model that is not spread over devices", runtime.plan.strategy != "model"),
        ("bf16 autocast", precision.half is torch.bfloat16 and precision.level == 1),
        ("packed texts and the kernel for them", packed),
        ("no gradient checkpointing", not config.gradient_checkpointing),
        ("a model that reads first tokens", getattr(model.stock.config, "classifier_pooling", "") != "mean"),
        ("a model without BatchNorm", batch_norm.count(model.stock) == 0),
    ):
        if not true:
            raise InputError(f"cuda_graphs: true in --config needs {expected}; leave it out.")


class Graphs:
    """The passes of one model, recorded by size once a size has come often; others are run as they are.

    `loss_sum` (batch, truth) is the forward pass; `parameters` those that it gives gradients. Whether a pass is
    recorded or not changes nothing about its filling, so that a resumed run draws the dropout of an uninterrupted one.
    """

    def __init__(
        self,
        loss_sum: Callable[[PackedBatch, torch.Tensor], torch.Tensor],
        parameters: Sequence[nn.Parameter],
        capture: Capture = record,
    ):
        self._loss_sum = loss_sum
        self._parameters = parameters
        self._capture = capture
        self._gradients: list[torch.Tensor] = []
        self._records = True
        self._seen: Counter[Key] = Counter()
        self._recorded: dict[Key, _Recorded] = {}

    @property
    def count(self) -> int:
        """Passes recorded so far."""
        return len(self._recorded)

    def stop(self) -> bool:
        """Give the memory of all recordings back and make no more; whether there is any that this can free."""
        recording, self._records = self._records and bool(self._gradients), False
        self._recorded.clear()
        self._gradients.clear()
        return recording

    def backward(self, batch: PackedBatch, truth: torch.Tensor, factor: float) -> torch.Tensor:
        """Add the gradients of `factor` times the summed loss of N texts to the parameters'; returns that sum.

        `batch` is on the host still, `truth` (N,) on the device. The result is overwritten by the next call.
        """
        if batch.boundaries.tokens > _LARGEST:
            return self._plain(batch, truth, factor)
        filled = _filled(batch)
        key = (filled.boundaries.tokens, len(truth), filled.boundaries.longest)
        self._seen[key] += 1
        if key not in self._recorded and self._seen[key] >= _SEEN and self._records and self.count < _KEPT:
            self._recorded[key] = self._record(filled.to(truth.device), truth)
        if key not in self._recorded:
            return self._plain(filled, truth, factor)
        recorded = self._recorded[key]
        self._place_gradients()
        values = (*_tensors(filled), truth, torch.tensor(factor))
        for place, value in zip(recorded.inputs, values, strict=True):
            place.copy_(send(value, place.device), non_blocking=True)
        recorded.graph.replay()
        return recorded.loss

    def _plain(self, batch: PackedBatch, truth: torch.Tensor, factor: float) -> torch.Tensor:
        loss = self._loss_sum(batch.to(truth.device), truth)
        (loss * factor).backward()
        return loss.detach()

    def _place_gradients(self) -> None:
        """Make the memory that recordings add to the parameters' gradients, with what is in these already."""
        if not self._gradients:
            self._gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        fresh = [g for p, g in zip(self._parameters, self._gradients, strict=True) if p.grad is None]
        if fresh:
            torch._foreach_zero_(fresh)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not None and parameter.grad is not gradient:
                gradient.copy_(parameter.grad)
            parameter.grad = gradient

    def _record(self, batch: PackedBatch, truth: torch.Tensor) -> _Recorded:
        own = _copied(batch)
        own_truth = truth.clone()
        factor = torch.zeros((), device=truth.device)  # so that warming up adds nothing to the gradients
        self._place_gradients()

        def work() -> torch.Tensor:
            loss = self._loss_sum(own, own_truth)
            (loss * factor).backward()
            return loss.detach()

        # All share their memory: what one leaves there, its loss, is read before the next one runs.
        pool = next((recorded.graph.pool() for recorded in self._recorded.values()), None)
        try:
            graph, loss = self._capture(work, pool)
        except RuntimeError as error:
            first: BaseException = error  # ending a recording that has failed fails, too
            while first.__context__ is not None:
                first = first.__context__
            if out_of_memory(first):
                raise first from None
            told = str(first).partition("\n")[0]
            raise ClassifyError(
                f"cuda_graphs: a pass of this model cannot be recorded ({told}); leave it out."
            ) from None
        return _Recorded((*_tensors(own), own_truth, factor), graph, loss)


def _filled(batch: PackedBatch) -> PackedBatch:
    bounds = batch.boundaries
    tokens = budget(bounds.tokens)
    return fill_up(batch, tokens, longest_within(bounds.longest, tokens - bounds.tokens))


def _tensors(batch: PackedBatch) -> tuple[torch.Tensor, ...]:
    bounds = batch.boundaries
    return batch.input_ids, batch.position_ids, bounds.starts, bounds.cumulative


def _copied(batch: PackedBatch) -> PackedBatch:
    """The batch in memory of its own."""
    ids, positions, starts, cumulative = (tensor.clone() for tensor in _tensors(batch))
    bounds = dataclasses.replace(batch.boundaries, starts=starts, cumulative=cumulative, _layouts={})
    return PackedBatch(ids, positions, bounds)

"""Out of memory for real: the process may take so many MiB more than it has, and has to get by with them."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler
from classify.data.tokenize import TokenizedSplit, load_tokenizer, tokenize
from classify.distributed.memory import out_of_memory
from classify.errors import ClassifyError, RankError
from classify.evaluation.inference import compute_logits
from classify.modeling.classifier import Classifier
from classify.modeling.find import resolve_model
from classify.modeling.load import freeze_unused, load_pretrained
from classify.modeling.packing import Batch
from tests.support import tiny
from tests.support.processes import run_distributed_test
from tests.support.runs import data_and_model, make_trainer
from tests.support.worlds import start_world

ROWS = 2048
MMAP_THRESHOLD = -3  # of glibc's mallopt


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step over all rows needs about 1.5 GiB beyond what the process has, half of them about 0.75.

    So much because a limit of address space is a blunt one: a thread's heap reserves 64 to 128 MiB of it, and what one
    has reserved before the limit is set may be used, or given back, after it.
    """
    return tiny.make_model(tmp_path_factory.mktemp("wide") / "bert", intermediate_size=4096)


def train_with(folder: Path, megabytes: int | None, rows_per_step: int = ROWS) -> tuple[int, list[Any], list[Any]]:
    """Two steps, over all rows unless it is said otherwise: micro-batches at the end, where they were cut, losses.

    With `megabytes` the first rank may take no more address space than it has plus so much.
    """
    rows = tiny.table_rows(ROWS)
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in rows], 48)
    labels = sorted({label for _, label in rows})
    model = load_pretrained(resolve_model(str(folder)), labels, seed=5, pad_token_id=0, dropout=0.0)
    model.install_kernels(torch.device("cpu"))
    freeze_unused(model, tokens, 0)
    model.use_packing(True)
    data = TokenizedSplit(tokens, np.arange(ROWS), np.array([labels.index(label) for _, label in rows]))
    config = TrainingConfig(use_cpu=True, max_steps=2, learning_rate=1e-3, logging_steps=1)
    world = start_world(config)
    trainer = make_trainer(model, data, config, world, rows_per_step)
    with trainer.strategy.accumulate(last=False):  # threads and libraries are there now
        trainer.compute_gradients(BatchSampler(ROWS, 8, config.seed).step_at(0))
    trainer.strategy.optimizer.zero_grad(set_to_none=True)
    if megabytes is not None and world.is_main:
        # What a failed attempt frees counts against the limit otherwise, wherever glibc keeps it.
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 65536)
        limit = psutil.Process().memory_info().vms + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    cuts, losses = [], []
    for event in trainer.steps():
        cuts.append(trainer.num_micro_batches)
        losses.append(event.loss)
    world.close()
    return trainer.num_micro_batches, cuts, losses


def cut_a_step(folder: Path, losses: list[float]) -> None:
    parts, cut, own = train_with(folder, 700)
    assert parts > 1
    assert cut == [parts, parts]
    assert own == pytest.approx(losses, rel=1e-5)


@pytest.fixture(scope="module")
def unlimited(wide_model: Path) -> list[float]:
    """The losses of a process that may take what it likes."""
    parts, _, losses = train_with(wide_model, None)
    assert parts == 1
    return losses


@pytest.mark.slow
def test_the_step_that_did_not_fit_is_done_in_smaller_micro_batches(wide_model: Path, unlimited: list[float]) -> None:
    run_distributed_test(cut_a_step, 1, wide_model, unlimited)


def test_an_evaluation_keeps_the_batches_that_fit(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = data_and_model(model_folder)
    world = start_world(TrainingConfig(use_cpu=True))
    expected, sizes = compute_logits(model, data.tokens, data.rows, world), list[int]()
    forward = Classifier.forward

    def forward_of_few(classifier: Classifier, batch: Batch, **options: bool) -> torch.Tensor:
        output = forward(classifier, batch, **options)
        sizes.append(len(output))
        if len(output) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return output

    monkeypatch.setattr(Classifier, "forward", forward_of_few)
    for _ in range(2):
        np.testing.assert_allclose(compute_logits(model, data.tokens, data.rows, world), expected, atol=1e-6)
    assert [size > 16 for size in sizes] == [True, True, *([False] * (len(sizes) - 2))]


def test_a_single_text_that_does_not_fit_ends_the_run(model_folder: Path) -> None:
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True)
    trainer = make_trainer(model, data, config, start_world(config), 8)
    step = trainer.batches.step_at(0)
    while trainer.num_micro_batches < len(step.indices):
        trainer.halve_micro_batches(step, "no room")
    with pytest.raises(ClassifyError, match=r"step 1: rank 0 is out of memory \(no room\); continue .*--gradient-ch"):
        trainer.halve_micro_batches(step, "no room")


def test_of_several_ranks_the_one_without_memory_says_what_to_type(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = data_and_model(model_folder)
    config = TrainingConfig(use_cpu=True)
    trainer = make_trainer(model, data, config, start_world(config), 8)
    step = trainer.batches.step_at(0)
    faults = [MemoryError("no room")]

    def compute(_: Any) -> tuple[torch.Tensor, float]:
        if faults:
            raise faults.pop()
        return torch.zeros(()), 1.0

    monkeypatch.setattr(trainer, "compute_gradients", compute)
    monkeypatch.setattr(trainer.strategy, "optimizer_step", lambda _: torch.zeros(()))
    monkeypatch.setattr(type(start_world(config)), "distributed", True)
    monkeypatch.setattr(type(trainer.world), "world_size", 2)
    with pytest.raises(RankError, match=r"step 1: rank 0 is out of memory .*--gradient-accumulation-steps 2"):
        trainer.train_step(step, 1e-3)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("NCCL error ... ncclUnhandledCudaError: Last error: Cuda failure 2 'out of memory'"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, memory: bool) -> None:
    assert out_of_memory(error) is memory

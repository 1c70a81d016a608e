"""What a process knows of itself, and DataParallel over packed batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from classify.config import TrainingConfig
from classify.data.tokens import load_tokenizer, tokenize
from classify.devices import ParallelMode
from classify.hub import resolve_model
from classify.model import load_model
from classify.runtime import BatchDataParallel
from classify.train_state import micro_batches
from tests import tiny


def test_a_single_process_on_the_cpu() -> None:
    config = TrainingConfig(use_cpu=True)
    assert config.device == torch.device("cpu")
    assert config._setup_devices is config._setup_devices
    assert config.n_gpu == 0
    assert config.parallel_mode is ParallelMode.NOT_PARALLEL
    assert (config.world_size, config.process_index, config.local_process_index) == (1, 0, 0)
    assert config.runtime.local_rank == -1
    assert config.runtime.is_main


def test_values_are_those_of_transformers() -> None:
    from transformers import TrainingArguments

    theirs = TrainingArguments(output_dir="unused", use_cpu=True, report_to="none")
    ours = TrainingConfig(use_cpu=True)
    assert ours.device == theirs.device
    assert ours.n_gpu == theirs.n_gpu
    assert ours.parallel_mode.value == theirs.parallel_mode.value
    assert (ours.world_size, ours.process_index, ours.local_process_index) == (
        theirs.world_size,
        theirs.process_index,
        theirs.local_process_index,
    )


def test_one_process_answers_without_a_group() -> None:
    runtime = TrainingConfig(use_cpu=True).runtime
    runtime.barrier()
    assert runtime.sum([1.0, 2.0]) == [1.0, 2.0]
    assert runtime.any(True)
    assert runtime.broadcast({"a": [1]}) == {"a": [1]}
    assert runtime.gather(torch.arange(3)).tolist() == [0, 1, 2]
    runtime.close()
    runtime.close()


def test_data_parallel_gets_one_packed_batch_a_replica(model_folder: Path) -> None:
    """torch would cut the (1, T) ids along dimension 0; each replica must get whole texts, and their order stay."""
    texts = [text for text, _ in tiny.table_rows(11)]
    tokens = tokenize(load_tokenizer(str(model_folder)), texts, 64)
    model = load_model(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
    model.use_packing(True)
    rows = np.arange(11)
    (pieces,) = micro_batches(model, tokens.lengths_of(rows), rank=0, world_size=1, parts=1, replicas=2)
    batches = [model.batch(tokens, rows[piece]) for piece in pieces]
    stand_in: Any = SimpleNamespace(src_device_obj=torch.device("cpu"))
    inputs, kwargs = BatchDataParallel.scatter(stand_in, (batches,), None, [0, 1])
    assert len(inputs) == len(kwargs) == 2
    model.classifier.eval()
    with torch.no_grad():
        gathered = torch.cat([model.classifier(*one, **more) for one, more in zip(inputs, kwargs, strict=True)])
        whole = model.classifier(model.batch(tokens, rows))
    assert (gathered - whole[np.concatenate(pieces)]).abs().max() < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_data_parallel_on_two_gpus(model_folder: Path) -> None:
    config = TrainingConfig()
    assert config.parallel_mode is ParallelMode.NOT_DISTRIBUTED
    tokens = tokenize(load_tokenizer(str(model_folder)), [text for text, _ in tiny.table_rows(11)], 64)
    model = load_model(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
    model.use_packing(True)
    model.classifier.to(config.device)
    wrapped = config.runtime.wrap(model.classifier)
    batches = [model.batch(tokens, np.arange(0, 6)), model.batch(tokens, np.arange(6, 11))]
    got = config.runtime.forward(wrapped, batches)
    want = torch.cat([model.classifier(batch.to(config.device)) for batch in batches])
    assert got.device == config.device
    assert (got - want).abs().max() < 1e-4

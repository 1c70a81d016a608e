"""Worker of test_exactness: trains 20 steps in every case of one world size and stores the weights.

Arguments: model folder, folder for the results, strategy. The ranks' environment decides the world size.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from classify import train_state, trainer
from classify.config import TrainingConfig
from classify.data.tokens import TrainingSet, load_tokenizer, tokenize
from classify.hub import resolve_model
from classify.inference import logits_of
from classify.model import LoadedModel, freeze_unused, load_model
from classify.runtime import Runtime
from classify.sharding import gathered
from tests import tiny

ROWS = 57  # with a batch of 8, the last one of an epoch holds a single row
BATCH = 8
STEPS = 20
SEED = 3
LEARNING_RATE = 1e-3


def data_and_model(folder: Path) -> tuple[TrainingSet, LoadedModel]:
    """The rows and the model that every case begins with; dropout 0, as exactness asks."""
    rows = tiny.table_rows(ROWS)
    labels = sorted({label for _, label in rows})
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in rows], 64)
    numbers = np.array([labels.index(label) for _, label in rows])
    model = load_model(resolve_model(str(folder)), labels, seed=SEED, pad_token_id=0, dropout=0.0)
    return TrainingSet(tokens, np.arange(ROWS), numbers), model


def count_exchanges(model_folder: Path, runtime: Runtime, micro: int) -> tuple[int, list[str]]:
    """Gradient exchanges of three DistributedDataParallel steps, of a model with a layer that its forward never uses.

    Also the names of what was found unused.
    """
    data, model = data_and_model(model_folder)
    model.use_packing(True)
    model.stock.spare = torch.nn.Linear(3, 3)
    unused = freeze_unused(model, data.tokens, 0)
    config = TrainingConfig(use_cpu=True, max_steps=3, gradient_accumulation_steps=micro, seed=SEED)
    exchanges: list[int] = []

    def counted(state, bucket):  # type: ignore[no-untyped-def]  # torch wants its own annotations, or none
        exchanges.append(bucket.index())
        return allreduce_hook(state, bucket)

    state = train_state.make_state(model, config, runtime)
    assert isinstance(state.wrapped, DistributedDataParallel)
    state.wrapped.register_comm_hook(None, counted)
    list(trainer.fit(state, data, config, runtime, batch_size=BATCH))
    return len(exchanges), unused


def _digest(model: LoadedModel) -> str:
    """Of the weights' bits."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.stock.parameters())).hexdigest()


def main(model_folder: Path, results: Path, strategy: Any = "auto") -> None:
    """Run every case of this world size in one process group."""
    first = TrainingConfig(use_cpu=True, strategy=strategy)
    runtime = first.runtime
    where = "apart-" if runtime.plan.launch.spans_machines else ""
    place = (first.parallel_mode.value, first.world_size, first.process_index, first.local_process_index, first.n_gpu)
    (results / f"place-{where}{runtime.world_size}-{runtime.rank}.txt").write_text(repr(place))
    for packed in (True, False):
        for micro in (1, 2, 4):
            data, model = data_and_model(model_folder)
            model.use_packing(packed)
            config = TrainingConfig(
                use_cpu=True,
                learning_rate=LEARNING_RATE,
                max_steps=STEPS,
                gradient_accumulation_steps=micro,
                seed=SEED,
                logging_steps=1,
            )
            state = train_state.make_state(model, config, runtime)
            events = list(trainer.fit(state, data, config, runtime, batch_size=BATCH))
            logits = logits_of(model, data.tokens, data.rows, runtime)
            tensors = gathered(dict(model.stock.named_parameters()), keep=runtime.is_main)
            digests = runtime.gather_texts(_digest(model) if strategy != "fsdp" else "")
            assert len(set(digests)) == 1, "the ranks hold other weights"
            if runtime.is_main:
                weights = {f"w/{name}": tensor.numpy() for name, tensor in tensors.items()}
                way = ("sharded-" if strategy == "fsdp" else where) + ("packed" if packed else "padded")
                np.savez(
                    results / f"{runtime.world_size}-{micro}-{way}.npz",
                    logits=logits,
                    losses=np.array([event.loss for event in events]),
                    **weights,
                )
    if runtime.world_size == 2 and strategy == "auto":
        found = {micro: count_exchanges(model_folder, runtime, micro) for micro in (1, 4)}
        (results / f"exchanges-{where}{runtime.rank}.json").write_text(json.dumps(found))
    runtime.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

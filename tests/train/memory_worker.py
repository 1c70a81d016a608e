"""Train in a process that may take no more memory than it has plus so many MiB, and tell how it went.

Arguments: model folder, MiB for the first rank (the others are not limited), steps.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from pathlib import Path

import numpy as np
import psutil

from classify import rehearsal, train_state, trainer
from classify.config import TrainingConfig
from classify.data.plan import BatchPlan
from classify.data.tokens import TrainingSet, load_tokenizer, tokenize
from classify.errors import ClassifyError
from classify.hub import resolve_model
from classify.model import LoadedModel, freeze_unused, load_model
from tests import tiny

ROWS = 2048


def data_and_model(folder: Path) -> tuple[TrainingSet, LoadedModel]:
    """2,048 texts and a model without dropout."""
    rows = tiny.table_rows(ROWS)
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in rows], 48)
    labels = sorted({label for _, label in rows})
    model = load_model(resolve_model(str(folder)), labels, seed=5, pad_token_id=0, dropout=0.0)
    freeze_unused(model, tokens, 0)
    model.use_packing(True)
    numbers = np.array([labels.index(label) for _, label in rows])
    return TrainingSet(tokens, np.arange(ROWS), numbers), model


def main(folder: Path, megabytes: int, steps: int) -> None:
    """One line of JSON: micro-batches at the end, losses, or the fault."""
    data, model = data_and_model(folder)
    config = TrainingConfig(use_cpu=True, max_steps=steps, learning_rate=1e-3, logging_steps=1)
    runtime = config.runtime
    state = train_state.make_state(model, config, runtime)
    batches = BatchPlan(ROWS, ROWS, config.seed)
    small = BatchPlan(ROWS, 8, config.seed).step_at(0)
    bare = dataclasses.replace(state, wrapped=model.classifier)
    trainer.backward(bare, data, small, config, runtime)  # threads and libraries are there now
    state.optimizer.zero_grad(set_to_none=True)
    if megabytes and runtime.is_main:
        limit = psutil.Process().memory_info().vms + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        if runtime.distributed:
            rehearsal.rehearse(state, data, [batches.step_at(0)], config, runtime)
            # So small a limit leaves no room for what gloo's threads take on the way.
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        events = list(trainer.fit(state, data, config, runtime, batch_size=ROWS))
        told = {"losses": [event.loss for event in events], "cut": [event.cut_into for event in events]}
    except ClassifyError as error:
        told = {"fault": str(error)}
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(json.dumps({"parts": state.parts, **told}))
    runtime.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

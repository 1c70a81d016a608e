"""Worker of test_batch_norm: trains a BERT with a BatchNorm before its head, and stores weights and statistics.

Arguments: model folder, folder for the results, "synchronised" or "alone".
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from classify import train_state, trainer
from classify.config import TrainingConfig
from classify.inference import logits_of
from classify.model import LoadedModel
from tests.distributed.exact_worker import data_and_model

SEED = 3


def with_batch_norm(model: LoadedModel) -> LoadedModel:
    """The tiny BERT with a BatchNorm over texts between its pooled output and its classes."""
    torch.manual_seed(SEED)
    norm = torch.nn.BatchNorm1d(model.hidden_size)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    model.stock.classifier = torch.nn.Sequential(norm, model.stock.classifier)
    return model


def main(model_folder: Path, results: Path, way: str) -> None:
    """One step of 4 rows, and one of 8; then steps of 3, of which one of two ranks gets two, and the last of 4 none.

    By itself a rank needs two rows, so several get steps of 8 only.
    """
    # With AdamW's usual epsilon a gradient that is rounding alone (a key's bias) would move as far as any other.
    settings = {"use_cpu": True, "seed": SEED, "learning_rate": 1e-3, "adam_epsilon": 1e-3}
    config = TrainingConfig(sync_batch_norm=way == "synchronised", **settings)
    several = config.world_size > 1 and not config.sync_batch_norm
    for batch_size, steps in ((8, 1),) if several else ((8, 1), (4, 1), (3, 6)):
        data, model = data_and_model(model_folder)
        with_batch_norm(model).use_packing(True)
        config.max_steps = steps
        state = train_state.make_state(model, config, config.runtime)
        list(trainer.fit(state, data, config, config.runtime, batch_size=batch_size))
        logits = logits_of(model, data.tokens, data.rows, config.runtime)
        if config.runtime.is_main:
            tensors = {name: tensor.numpy() for name, tensor in model.stock.state_dict().items()}
            np.savez(results / f"{way}-{config.runtime.world_size}-{batch_size}.npz", logits=logits, **tensors)
    config.runtime.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

"""The estimate of memory beside what a step really holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler
from classify.modeling.hub import resolve_model
from classify.modeling.memory_estimate import count_weights, training_need
from classify.modeling.precision import choose_precision
from tests.support import tiny
from tests.support.runs import ROWS, data_and_model, make_trainer

pytestmark = pytest.mark.slow

SIZE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for the layers to outweigh the rest."""
    return tiny.make_model(tmp_path_factory.mktemp("estimate") / "bert", **SIZE)


@pytest.mark.parametrize(("name", "level"), [("fp32", None), ("bf16", None), ("auto", "O2"), ("auto", "O3")])
def test_a_step_takes_what_is_estimated_or_a_little_less(folder: Path, name: str, level: str | None) -> None:
    """Weights, gradients and moments to a few per cent, which are the head; what the backward pass needs, roughly."""
    data, model = data_and_model(folder)
    for module in model.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    model.use_packing(True)
    config = TrainingConfig(use_cpu=True, max_steps=1, opt_level=level)
    model.set_precision(choose_precision(name, torch.device("cpu"), level))
    trainer = make_trainer(model, data, config, config.start(), 8)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.model.parameters(), *model.model.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    step = BatchSampler(ROWS, ROWS, 0).step_at(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.train_step(step)
    lengths = data.tokens.lengths(data.rows)
    need = training_need(
        model.model.config.to_dict(),
        (count_weights(resolve_model(str(folder)).weight_counts), 0),
        ROWS,
        float(lengths.mean()),
        half=name == "bf16",
        level=level,
    )
    activations = sum(storage.nbytes() for storage in saved.values())
    assert 0.9 * activations < need.activations < 1.6 * activations
    moments = sum(
        v.nbytes for values in trainer.strategy.optimizer.state.values() for k, v in values.items() if k != "step"
    )
    weights = sum(parameter.nbytes for parameter in model.model.parameters())
    assert weights == pytest.approx(need.weights, rel=0.05)
    masters = sum(master.nbytes for master in getattr(trainer.strategy, "masters", {}).values())
    assert moments + masters == pytest.approx(need.optimizer, rel=0.05)

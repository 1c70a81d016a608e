"""Recorded passes: the same weights as without. On a CPU a recording is its work done again, on the same memory."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from classify import graphs, packing, train_state, trainer
from classify.config import TrainingConfig
from classify.errors import ClassifyError, InputError
from classify.graphs import budget
from classify.model import LoadedModel
from classify.precision import choose_precision
from tests.distributed.exact_worker import data_and_model

STEPS = 30
BATCH = 8  # of 57 rows: the last step of an epoch holds one


class Again:
    """A graph as a CPU has it: the work done anew, and its result into the same memory.

    A real one adds to the gradients' memory as it was when it was recorded, so that must be theirs whenever it runs.
    """

    def __init__(self, work: Callable[[], torch.Tensor], weights: list[torch.nn.Parameter], pool: Any):
        self._work, self._weights = work, weights
        self._memory = self._gradients()
        self._pool = pool or object()
        self.result = work().clone()  # a graph's work is done before it is recorded, too

    def _gradients(self) -> list[int]:
        return [weight.grad.data_ptr() for weight in self._weights if weight.grad is not None]

    def replay(self) -> None:
        assert len(self._memory) == len(self._weights)
        assert self._gradients() == self._memory
        self.result.copy_(self._work())

    def pool(self) -> object:
        return self._pool


def again(model: LoadedModel, made: list[Again] | None = None) -> graphs.Capture:
    """What records a model's passes on a CPU; the recordings are noted in `made`."""
    weights = [weight for weight in model.stock.parameters() if weight.requires_grad]

    def capture(work: Callable[[], torch.Tensor], pool: Any) -> tuple[Again, torch.Tensor]:
        graph = Again(work, weights, pool)
        if made is not None:
            made.append(graph)
        return graph, graph.result

    return capture


def ragged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, *_: Any, scale: float, **__: Any
) -> torch.Tensor:
    """What torch's varlen attention computes on a GPU: it knows of the texts by their ends alone."""
    pieces = [
        scaled_dot_product_attention(*(t[a:b].transpose(0, 1) for t in (q, k, v)), scale=scale).transpose(0, 1)
        for a, b in itertools.pairwise(ends.tolist())
    ]
    return torch.cat(pieces)


@pytest.fixture
def ragged_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ragged_kernel_applies", lambda *_: True)
    monkeypatch.setattr(packing, "varlen_attn", ragged)


def trained(
    folder: Path,
    capture: Callable[[LoadedModel], graphs.Capture] | None = None,
    dropout: float = 0.0,
    **settings: Any,
) -> tuple[LoadedModel, list[float | None], Any]:
    """The model behind thirty steps, their losses, and what recorded them (None without a `capture`)."""
    data, model = data_and_model(folder)
    model.use_packing(True)
    for module in model.stock.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    # An epsilon that does not blow up gradients that are rounding alone.
    steps = {"max_steps": STEPS, "learning_rate": 1e-3, "adam_epsilon": 1e-3, "logging_steps": 1}
    config = TrainingConfig(**{"use_cpu": True, **steps, **settings}, cuda_graphs=capture is not None)
    model.compute_in(choose_precision(config.asked_precision, config.runtime.device))
    model.token_multiple = 1  # as on a GPU, whatever this CPU wants: recorded passes have a filling of their own
    model.classifier.to(config.runtime.device)
    state = train_state.make_state(model, config, config.runtime)
    if state.graphs is not None:
        assert capture is not None
        state.graphs._capture = capture(model)
    losses = [event.loss for event in trainer.fit(state, data, config, config.runtime, batch_size=BATCH)]
    return model, losses, state.graphs


def difference(one: LoadedModel, two: LoadedModel) -> float:
    """Distance of two models' weights, as a share of their norm."""
    a, b = (torch.cat([p.detach().flatten() for p in model.stock.parameters()]) for model in (one, two))
    return float((a - b).norm() / a.norm())


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 430, 1000, 1024, 5000, 16_384])
def test_a_budget_leaves_room_for_filling_and_little_more(tokens: int) -> None:
    assert tokens < budget(tokens) <= tokens + max(64, tokens // 8)


def test_budgets_are_few() -> None:
    assert len({budget(tokens) for tokens in range(256, 1024)}) == 12


def test_a_filled_batch_gives_the_same_gradients(model_folder: Path) -> None:
    """Through this program's own attention, which knows of texts by their runs."""
    data, model = data_and_model(model_folder)
    model.use_packing(True)
    batch = model.batch(data.tokens, data.rows[:BATCH])
    assert isinstance(batch, packing.PackedBatch)
    found = []
    tokens = batch.boundaries.tokens
    for one in (batch, packing.fill_up(batch, budget(tokens), budget(tokens))):
        logits = model.classifier(one)
        assert len(logits) == BATCH
        logits.square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.stock.parameters() if p.grad is not None]))
        model.classifier.zero_grad(set_to_none=True)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro", [1, 3])  # three: recorded and other passes within one step
@pytest.mark.usefixtures("ragged_kernel")
def test_recorded_passes_train_the_same_weights(
    model_folder: Path, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, losses, _ = trained(model_folder, gradient_accumulation_steps=micro)
    model, found, recorder = trained(model_folder, again, gradient_accumulation_steps=micro)
    assert recorder.count > 0
    assert difference(plain, model) < 1e-5
    assert found == pytest.approx(losses, rel=1e-4)
    monkeypatch.setattr(graphs, "_KEPT", 0)
    filled, *_ = trained(model_folder, again, gradient_accumulation_steps=micro)
    assert difference(filled, model) == 0


@pytest.mark.usefixtures("ragged_kernel")
def test_recordings_share_their_memory(model_folder: Path) -> None:
    made: list[Again] = []
    trained(model_folder, lambda model: again(model, made), gradient_accumulation_steps=3)
    assert len(made) > 1
    assert len({id(graph.pool()) for graph in made}) == 1


@pytest.mark.usefixtures("ragged_kernel")
def test_memory_that_runs_out_ends_the_recording_first(model_folder: Path) -> None:
    """The same passes fitted before they were recorded, so no micro-batch is cut for it."""
    plain, losses, _ = trained(model_folder)

    def full(model: LoadedModel) -> graphs.Capture:
        first = again(model)

        def capture(work: Callable[[], torch.Tensor], pool: Any) -> Any:
            if pool is None:
                return first(work, pool)
            try:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            finally:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

        return capture

    model, found, recorder = trained(model_folder, full)
    assert recorder.count == 0
    assert not recorder.stop(), "a second time it is another's fault"
    assert difference(plain, model) < 1e-5
    assert found == pytest.approx(losses, rel=1e-4)


@pytest.mark.usefixtures("ragged_kernel")
def test_a_recording_that_fails_is_told(model_folder: Path) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    with pytest.raises(ClassifyError, match=r"cannot be recorded \(CUDA error: .* capturing\); leave it out\."):
        trained(model_folder, lambda _: refused)


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("a GPU (CUDA)", {"device": torch.device("cpu")}),
        ("one process with one device", {"world_size": 2}),
        ("one process with one device", {"replicas": 2}),
        ("a model that is not spread over devices", {"strategy": "model"}),
        ("bf16 autocast", {"precision": "fp32"}),
        ("bf16 autocast", {"level": "O2"}),
        ("packed texts and the kernel for them", {"packed": False}),
        ("packed texts and the kernel for them", {"kernel": False}),
        ("no gradient checkpointing", {"gradient_checkpointing": True}),
        ("a model that reads first tokens", {"pooling": "mean"}),
        ("a model without BatchNorm", {"norm": True}),
        (None, {}),
    ],
)
def test_what_cannot_be_recorded_is_told(
    model_folder: Path, expected: str | None, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "device": GPU, "world_size": 1, "replicas": 1, "strategy": "none", "precision": "bf16", "level": None,
        "packed": True, "kernel": True, "gradient_checkpointing": False, "pooling": "cls", "norm": False, **changes,
    }  # fmt: skip
    monkeypatch.setattr(graphs, "ragged_kernel_applies", lambda *_: given["kernel"])
    _, model = data_and_model(model_folder)
    model.packed = given["packed"]
    model.stock.config.classifier_pooling = given["pooling"]
    if given["norm"]:
        model.stock.norm = torch.nn.BatchNorm1d(2)
    config = TrainingConfig(cuda_graphs=True, gradient_checkpointing=given["gradient_checkpointing"])
    precision = choose_precision(given["precision"], torch.device("cpu"), given["level"])
    place = {"device": given["device"], "world_size": given["world_size"], "replicas": given["replicas"]}
    plan = types.SimpleNamespace(strategy=given["strategy"])
    runtime: Any = types.SimpleNamespace(**place, plan=plan, distributed=given["world_size"] > 1)
    if expected is None:
        graphs.check(model, precision, runtime, config)
        return
    with pytest.raises(InputError) as caught:
        graphs.check(model, precision, runtime, config)
    assert str(caught.value) == f"cuda_graphs: true in --config needs {expected}; leave it out."


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("micro", [1, 2])
def test_a_gpu_replays_what_it_would_compute(model_folder: Path, micro: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the same filled passes that are never recorded: the dropout of recorded ones is the same, too."""
    settings = {"use_cpu": False, "strategy": "none", "precision": "bf16", "gradient_accumulation_steps": micro}
    model, found, recorder = trained(model_folder, lambda _: graphs.record, 0.1, **settings)
    assert recorder.count > 0
    monkeypatch.setattr(graphs, "_KEPT", 0)
    plain, losses, recorder = trained(model_folder, lambda _: graphs.record, 0.1, **settings)
    assert recorder.count == 0
    assert difference(plain, model) < 1e-3
    assert found == pytest.approx(losses, rel=1e-2)

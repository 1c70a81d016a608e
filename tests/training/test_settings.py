"""What each setting of a step does to the weights, against plain torch on the stock model."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import cross_entropy

from classify.config.schema import TrainingConfig
from classify.data.sampler import BatchSampler
from classify.errors import InputError
from classify.modeling.classifier import Classifier
from classify.modeling.layers import parameter_depths
from classify.modeling.load import checkpoint_activations, freeze
from classify.tasks import regression, single_label
from classify.tasks.base import read_class_weights
from classify.tasks.losses import BinaryCrossEntropy, CrossEntropy
from tests.support.runs import data_and_model, make_trainer
from tests.support.worlds import start_world

BATCH = 19  # three steps an epoch of the 57 rows
SEED = 3


def fresh(folder: Path) -> tuple[Any, Classifier]:
    data, model = data_and_model(folder)
    model.use_packing(True)
    return data, model


def after_one_step(folder: Path, **settings: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients of the first step as clipping sees them (none is clipped), and the loss told."""
    data, model = fresh(folder)
    prepare = settings.pop("prepare", lambda _: None)
    prepare(model)
    data = dataclasses.replace(data, targets=settings.pop("labels", data.targets))
    config = TrainingConfig(use_cpu=True, max_steps=1, seed=SEED, logging_steps=1, max_grad_norm=0.0, **settings)
    trainer = make_trainer(
        model, data, config, start_world(config), BATCH, single_label.make("abc").head.loss(config, data.targets)
    )
    caught: dict[str, torch.Tensor] = {}

    def note(*_: Any) -> None:
        caught.update({n: p.grad.clone() for n, p in model.model.named_parameters() if p.grad is not None})

    trainer.strategy.optimizer.register_step_pre_hook(note)
    (event,) = trainer.steps()
    assert event.loss is not None
    return caught, event.loss


def plain(
    folder: Path, labels: npt.NDArray[np.int64] | None = None, **loss: Any
) -> tuple[dict[str, torch.Tensor], float]:
    """The same from the textbook: padded rows, torch's own mean."""
    data, model = data_and_model(folder)
    model.use_packing(False)
    rows = BatchSampler(57, BATCH, SEED).step_at(0).indices
    logits = model(model.batch(data.tokens, rows))
    targets = data.targets if labels is None else labels
    mean = cross_entropy(logits, torch.from_numpy(targets[rows]), **loss)
    mean.backward()
    result = {n: p.grad for n, p in model.model.named_parameters() if p.grad is not None}
    return result, mean.item()


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("micro", [1, 3])
def test_plain_loss(model_folder: Path, micro: int) -> None:
    got, loss = after_one_step(model_folder, gradient_accumulation_steps=micro)
    want, mean = plain(model_folder)
    assert loss == pytest.approx(mean, rel=1e-5)
    assert_same(got, want)


@pytest.mark.parametrize("micro", [1, 3])
def test_smoothed_labels(model_folder: Path, micro: int) -> None:
    got, loss = after_one_step(model_folder, label_smoothing_factor=0.2, gradient_accumulation_steps=micro)
    want, mean = plain(model_folder, label_smoothing=0.2)
    assert loss == pytest.approx(mean, rel=1e-5)
    assert_same(got, want)


@pytest.mark.parametrize("micro", [1, 3])
def test_class_weights_stand_in_numerator_and_denominator(model_folder: Path, micro: int) -> None:
    """torch divides its weighted mean by the sum of weights; so does a batch that is cut into micro-batches."""
    data, _ = data_and_model(model_folder)
    labels: npt.NDArray[np.int64] = np.where(data.targets == 0, 1, data.targets)  # a class has no row
    counts = np.bincount(labels, minlength=3)
    weights = single_label.make("abc").head.class_weights(TrainingConfig(class_weights="balanced"), labels)
    assert weights is not None
    np.testing.assert_allclose(weights, [1.0, 57 / (2 * counts[1]), 57 / (2 * counts[2])], rtol=1e-6)
    got, loss = after_one_step(model_folder, class_weights="balanced", gradient_accumulation_steps=micro, labels=labels)
    want, mean = plain(model_folder, labels, weight=torch.from_numpy(weights))
    assert loss == pytest.approx(mean, rel=1e-5)
    assert_same(got, want)
    unweighted, _ = plain(model_folder, labels)
    gap = max(float((want[name] - unweighted[name]).abs().max()) for name in want)
    assert gap > 1e-3, "weights that change nothing would show nothing"


@pytest.mark.parametrize("weighted", [False, True])
def test_the_focal_loss_is_that_of_its_paper(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(7, 3, generator=draw), torch.tensor([0, 1, 2, 0, 1, 2, -100])
    weights = np.array([1.0, 2.0, 3.0], dtype=np.float32) if weighted else None
    probabilities = logits[:6].softmax(1)[torch.arange(6), targets[:6]]
    factor = torch.ones(6) if weights is None else torch.from_numpy(weights)[targets[:6]]
    expected = float((-factor * (1 - probabilities) ** 2 * probabilities.log()).sum())
    assert float(CrossEntropy(0.0, weights, 2.0).loss_sum(logits, targets)) == pytest.approx(expected, rel=1e-5)


def test_the_focal_loss_of_several_labels() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(4, 3, generator=draw), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [255] * 3])
    present, p = targets[:3].bool(), logits[:3].sigmoid()
    right = torch.where(present, p, 1 - p)
    expected = float((-((1 - right) ** 2) * right.log()).sum()) / 3
    loss = BinaryCrossEntropy(gamma=2.0).loss_sum(logits, targets.to(torch.uint8))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"a": 1}', "with a number for each of 'a', 'b'. Got 'a'."),
        ('{"a": 1, "b": 2, "z": 1}', "Got 'a', 'b', 'z'."),
        ('{"a": 1, "b": -2}', "the weight of 'b' must be a number above 0. Got -2 instead"),
        ("[1, 2]", "Got a list."),
        ("a: 1", "It cannot be read"),
    ],
)
def test_a_file_of_class_weights_that_does_not_fit(tmp_path: Path, content: str, line: str) -> None:
    (tmp_path / "w.json").write_text(content)
    with pytest.raises(InputError, match=re.escape(line)):
        read_class_weights(str(tmp_path / "w.json"), ["a", "b"])


@pytest.mark.parametrize("settings", [{"class_weights": "balanced"}, {"loss": "focal"}])
def test_scores_have_no_classes_to_weigh(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="scores have no classes"):
        regression.make(["score"]).check_settings(TrainingConfig(**settings))


def test_gradient_checkpointing_changes_nothing(model_folder: Path) -> None:
    calls = []

    def prepare(model: Classifier) -> None:
        checkpoint_activations(model.model)
        layer = model.model.bert.encoder.layer[0].attention
        layer.register_forward_hook(lambda *_: calls.append(1))

    got, _ = after_one_step(model_folder, prepare=prepare)
    assert len(calls) == 2, "a layer is computed again for the backward pass"
    assert_same(got, plain(model_folder)[0])


@pytest.mark.parametrize(("embeddings", "layers", "frozen"), [(True, 0, {0}), (False, 1, {0, 1}), (True, 2, {0, 1, 2})])
def test_frozen_parts_get_no_gradient_and_the_rest_the_same(
    model_folder: Path, embeddings: bool, layers: int, frozen: set[int]
) -> None:
    got, _ = after_one_step(model_folder, prepare=lambda m: freeze(m, embeddings=embeddings, layers=layers))
    want = plain(model_folder)[0]
    depth = parameter_depths(data_and_model(model_folder)[1].model)
    assert set(depth.values()) == {0, 1, 2, 3}
    assert_same(got, {name: gradient for name, gradient in want.items() if depth[name] not in frozen})


def test_layerwise_decay_of_the_learning_rate(model_folder: Path) -> None:
    """Head 1, second layer 0.5, first 0.25, embeddings 0.125 of the rate; seen in the size of Adam's first step."""
    data, model = fresh(model_folder)
    config = TrainingConfig(
        use_cpu=True, max_steps=1, learning_rate=1e-3, layerwise_lr_decay=0.5, weight_decay=0.0, warmup_steps=0.0,
        lr_scheduler_type="constant",
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in model.model.named_parameters()}
    trainer = make_trainer(model, data, config, start_world(config), BATCH)
    list(trainer.steps())
    depth = parameter_depths(model.model)
    for name, parameter in model.model.named_parameters():
        moved = float((parameter.detach() - before[name]).abs().max())
        if not name.endswith("key.bias"):
            assert moved == pytest.approx(1e-3 * 0.5 ** (3 - depth[name]), rel=0.02), name


# The rates of eight steps, two of them warm-up, as their names are understood everywhere; written out, not computed by
# the function under test.
RATES = {
    "linear": [1 / 2, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    "cosine": [1 / 2, 1, *(0.5 * (1 + math.cos(math.pi * n / 6)) for n in range(6))],
    "inverse_sqrt": [1 / 2, 1, *(math.sqrt(2 / n) for n in range(3, 9))],
    "constant_with_warmup": [1 / 2, 1, 1, 1, 1, 1, 1, 1],
    "constant": [1.0] * 8,
}


@pytest.mark.parametrize("schedule", RATES)
def test_schedules_move_the_weights_as_a_plain_loop_does(model_folder: Path, schedule: str) -> None:
    """Eight steps, over the end of the second epoch, beside torch's AdamW with the rates written out above."""
    data, model = fresh(model_folder)
    config = TrainingConfig(
        use_cpu=True, max_steps=8, seed=SEED, learning_rate=1e-3, weight_decay=0.0, max_grad_norm=0.0, warmup_steps=2.0,
        lr_scheduler_type=schedule,
    )  # fmt: skip
    trainer = make_trainer(model, data, config, start_world(config), BATCH)
    list(trainer.steps())

    other, stock = data_and_model(model_folder)
    stock.use_packing(False)
    optimizer = torch.optim.AdamW(stock.model.parameters(), weight_decay=0.0)
    plan = BatchSampler(57, BATCH, SEED)
    for number, rate in enumerate(RATES[schedule]):
        rows = plan.step_at(number * BATCH).indices
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        optimizer.zero_grad()
        cross_entropy(stock(stock.batch(other.tokens, rows)), torch.from_numpy(other.targets[rows])).backward()
        optimizer.step()
    moved = 0.0
    for (name, got), want, start in zip(
        model.model.named_parameters(),
        stock.model.parameters(),
        data_and_model(model_folder)[1].model.parameters(),
        strict=True,
    ):
        if not name.endswith("key.bias"):  # attention does not depend on them; Adam steps along their rounding
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
            moved = max(moved, float((want.detach() - start.detach()).abs().max()))
    assert moved > 2e-3

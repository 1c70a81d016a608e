"""Law 1 for every task: processes, micro-batches and packing change no weight, for labels, scores and text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from classify.config.schema import TrainingConfig
from classify.data.tokenize import POLICIES, TokenizedSplit, load_tokenizer, tokenize
from classify.distributed.sharding import gather_full
from classify.distributed.world import World
from classify.evaluation.inference import compute_logits
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.tables.labels import ClassNames
from classify.tasks import hierarchy, multi_column, multi_label, regression, single_label
from classify.tasks.base import MISSING, Task
from classify.training import contrastive
from tests.support import tiny
from tests.support.processes import run_distributed_test
from tests.support.runs import LEARNING_RATE, ROWS, SEED, make_trainer
from tests.support.tasks import CLASSES, make_labels, score_of, words_of
from tests.support.worlds import start_world

pytestmark = pytest.mark.distributed

BATCH, STEPS = 8, 6
# Micro-batches per step, and whether texts are packed. Every way on every number of processes is compared in
# test_exactness.py; here each task is divided over processes once in each of the two forms of a batch.
PLAIN = (1, False)
WAYS: dict[int | str, list[tuple[int, bool]]] = {1: [(1, True), (2, False)], 3: [(2, True)], "sharded": [(2, False)]}


def tasks() -> dict[str, tuple[Task, Any, dict[str, str]]]:
    """Each task with the targets of the rows, and further settings."""
    marks = np.array([[label in make_labels(n) for label in CLASSES] for n in range(ROWS)], dtype=np.uint8)
    scores = np.array([float(score_of(n)) for n in range(ROWS)], dtype=np.float32)
    classes = np.arange(ROWS) % 3
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], ROWS).astype(np.float32)
    number = regression.make(["score"], float(scores.mean()), float(scores.std()), 1.0)
    columns = multi_column.make(
        [("topic", single_label.make(CLASSES)), ("tags", multi_label.make(CLASSES)), ("score", number)]
    )
    cells = multi_column.pack(columns.columns, [classes, marks, scores])
    for place, column in enumerate(columns.columns):  # each is empty in a fifth of the rows
        cells[place::5, column.cells] = MISSING
    labels = ["a > x", "a > y", "b"]
    paths = hierarchy.make(labels, hierarchy.Tree.of([*labels, "a"], ">"), ClassNames())
    leaves = np.eye(3, dtype=np.float32)[classes]
    leaves[::4, :2] = [1, 1]
    leaves[::4, 2] = 0
    return {
        "paths": (paths, leaves, {"class_weights": "balanced"}),
        "pairs": (single_label.make(CLASSES), classes, {}),
        "labels": (multi_label.make(CLASSES), marks, {}),
        "balanced labels": (multi_label.make(CLASSES), marks, {"class_weights": "balanced"}),
        "focal labels": (multi_label.make(CLASSES), marks, {"loss": "focal"}),
        "focal": (single_label.make(CLASSES), classes, {"loss": "focal"}),
        "balanced classes": (
            single_label.make(CLASSES),
            np.minimum(np.arange(ROWS) % 5, 2),
            {"class_weights": "balanced"},
        ),
        "soft classes": (single_label.make(CLASSES), soft, {"class_weights": "balanced"}),
        "weighted labels": (multi_label.make(CLASSES), marks, {}),
        "weighted scores": (regression.make(["score"], float(scores.mean()), float(scores.std()), 1.0), scores, {}),
        "chunks": (single_label.make(CLASSES), classes, {}),
        "weighted columns": (columns, cells, {}),
        "scores": (regression.make(["score"], float(scores.mean()), float(scores.std()), 1.0), scores, {}),
    }


def train_task(
    folder: Path, world: World, name: str, micro: int, packed: bool
) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    """Train a task a few steps; return the logits of all rows, and the weights by name on the main process."""
    task, targets, settings = tasks()[name]
    first = [words_of(n, make_labels(n)) for n in range(ROWS)]
    second = [words_of(n + 1, make_labels(n)[:1]) for n in range(ROWS)] if name == "pairs" else None
    tokens = tokenize(load_tokenizer(str(folder)), first, 48, second=second)
    if name == "chunks":
        tokens = tokens.cut(9, POLICIES["chunks"])
        assert tokens.collate(np.arange(ROWS)).rows is not None
    model = load_pretrained(
        resolve_model(str(folder)),
        task.labels,
        seed=SEED,
        pad_token_id=0,
        dropout=0.0,
        problem_type=task.head.problem_type,
    )
    model.install_kernels(torch.device("cpu"))
    model.use_packing(packed)
    config = TrainingConfig(
        use_cpu=True, learning_rate=LEARNING_RATE, max_steps=STEPS, seed=SEED,
        gradient_accumulation_steps=micro, **settings,  # type: ignore[arg-type]
    )  # fmt: skip
    weights = None
    if name.startswith(("soft", "weighted")):
        weights = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
    data = TokenizedSplit(tokens, np.arange(ROWS), targets, weights)
    trainer = make_trainer(model, data, config, world, BATCH, task.head.loss(config, targets))
    contrastive.contrastive_warmup(trainer.strategy, data, task, 3)
    list(trainer.steps())
    logits = compute_logits(model, tokens, data.rows, world)
    return logits, gather_full(dict(model.model.named_parameters()), keep=world.is_main)


def train_every_task(folder: Path, results: Path, strategy: Any = "auto") -> None:
    """Train in every way of this world size, and store weights and logits."""
    world = start_world(TrainingConfig(use_cpu=True, strategy=strategy))
    size: int | str = "sharded" if strategy == "fsdp" else world.world_size
    for name in NAMES:
        for micro, packed in [*WAYS[size], *([PLAIN] if size == 1 else [])]:
            logits, tensors = train_task(folder, world, name, micro, packed)
            if world.is_main:
                stored = {"logits": logits, **{f"w/{key}": tensor.numpy() for key, tensor in tensors.items()}}
                save_file(stored, results / f"{name}-{size}-{micro}-{packed}.safetensors")
    world.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    model = tiny.make_model(folder / "model", spread=0.1)
    for world in (1, 3):
        run_distributed_test(train_every_task, world, model, folder)
    run_distributed_test(train_every_task, 2, model, folder, "fsdp")
    return folder


def weights(file: Path) -> Any:
    """All weights but key biases, on which attention does not depend."""
    result = load_file(file)
    names = sorted(name for name in result if name.startswith("w/") and not name.endswith("key.bias"))
    return np.concatenate([result[name].ravel().astype(np.float64) for name in names]), result["logits"]


NAMES = [name for name in tasks() if name != "labels"]  # those with weights are no easier


@pytest.mark.parametrize(("world", "micro", "packed"), [(world, *way) for world in WAYS for way in WAYS[world]])
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_one_process(
    results: Path, name: str, world: int | str, micro: int, packed: bool
) -> None:
    expected, logits = weights(results / f"{name}-1-1-False.safetensors")
    got, again = weights(results / f"{name}-{world}-{micro}-{packed}.safetensors")
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)
    assert np.abs(again - logits).max() <= 1e-3


@pytest.mark.parametrize("name", ["pairs", "labels", "scores"])
def test_the_first_step_is_that_of_transformers_own_loss(tmp_path: Path, name: str) -> None:
    """`problem_type` decides transformers' loss; gradients of the same rows are the same."""
    from transformers import AutoModelForSequenceClassification

    folder = tiny.make_model(tmp_path / "model", spread=0.1)
    task, targets, _ = tasks()[name]
    rows = np.arange(6)
    texts = [words_of(n, make_labels(n)) for n in rows.tolist()]
    second = [words_of(n + 1, []) for n in rows.tolist()] if name == "pairs" else None
    ours = load_pretrained(
        resolve_model(str(folder)),
        task.labels,
        seed=SEED,
        pad_token_id=0,
        dropout=0.0,
        problem_type=task.head.problem_type,
    )
    stock = AutoModelForSequenceClassification.from_config(ours.model.config)
    stock.load_state_dict(ours.model.state_dict())
    encoded = load_tokenizer(str(folder))(texts, second, padding=True, return_tensors="pt")
    given = torch.from_numpy(targets[rows])
    if name == "labels":
        given = given.float()
    elif name == "scores":
        given = (given - task.head.center) / task.head.scale
    loss = stock(**encoded, labels=given).loss
    loss.backward()
    tokens = tokenize(load_tokenizer(str(folder)), texts, 64, second=second)
    config = TrainingConfig(use_cpu=True)
    term = task.head.loss(config, targets)
    total = term.loss_sum(ours(ours.batch(tokens, rows)), torch.from_numpy(targets[rows]))
    mine = total / term.weight_sum(targets[rows])
    mine.backward()
    assert mine.item() == pytest.approx(loss.item(), rel=1e-5)
    for one, other in zip(ours.model.parameters(), stock.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)

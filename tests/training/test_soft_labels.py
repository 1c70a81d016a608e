"""Columns prob_<label> are what rows train towards, and --weight-column how much: from the table to the weights."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.errors import InputError, Interrupted
from classify.tasks import multi_label, regression, single_label
from classify.tasks.base import Task
from classify.tasks.losses import CrossEntropy, SoftCrossEntropy
from classify.training.parts import GivenLoss
from classify.training.run import train
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.runs import make_config, read_json, stop_at
from tests.support.tasks import CASES

LABELS = ["app", "card", "money"]
ROWS = tiny.table_rows(90)
SETTINGS: dict[str, Any] = {"dropout": 0.0, "contrastive_steps": 3}


def write(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def shares(label: str, most: float) -> list[float]:
    """The probability of each label, `most` of the given one."""
    return [most if other == label else (1 - most) / 2 for other in LABELS]


def soft_rows(most: float) -> list[list[object]]:
    return [[text, label, *shares(label, most)] for text, label in ROWS]


HEADER = ["text", "label", *(f"prob_{label}" for label in LABELS)]


def test_certain_probabilities_are_labels(model_folder: Path, tmp_path: Path) -> None:
    """With the labels, without, and without probabilities: the same weights."""
    tables = {
        "beside": write(tmp_path / "beside.csv", HEADER, soft_rows(1.0)),
        "instead": write(
            tmp_path / "instead.csv", [HEADER[0], *HEADER[2:]], [[row[0], *row[2:]] for row in soft_rows(1.0)]
        ),
        "labels": tiny.write_table(tmp_path / "labels.csv", ROWS),
    }
    runs = {
        name: train(make_config(model_folder, table, tmp_path / name, **SETTINGS)) for name, table in tables.items()
    }
    for name in ("beside", "instead"):
        assert difference(runs[name], runs["labels"]) < 1e-5
        losses = [read_json(runs[one] / "metrics.json")["test"]["loss"] for one in (name, "labels")]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_what_is_uncertain_is_learned_as_uncertain(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a temperature the confidences follow the probabilities; some rows have a label alone."""
    rows = [row if number % 5 else [*row[:2], "", "", ""] for number, row in enumerate(soft_rows(0.6))]
    table, settings = write(tmp_path / "my.csv", HEADER, rows), {"num_train_epochs": 25.0, "learning_rate": 2e-3}
    folders = [
        train(make_config(model_folder, table, tmp_path / name, calibrate="none", soft_labels=name, **settings))
        for name in ("auto", "none")
    ]
    printed = capsys.readouterr().out
    assert "soft labels: 72 rows train towards probabilities of 3 labels" in printed
    assert "--soft-labels none)" in printed
    confidence = []
    for folder in folders:
        with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
            confidence.append(np.mean([float(row["confidence"]) for row in csv.DictReader(file)]))
    assert confidence[0] < 0.6 < confidence[1]


def test_a_row_of_weight_0_is_not_trained_on(model_folder: Path, tmp_path: Path) -> None:
    """Nor does it matter what its label is."""
    parts = ["train"] * 70 + ["eval"] * 10 + ["test"] * 10
    rows = [[*row, part, 2] for row, part in zip(ROWS, parts, strict=True)]
    header, noise = (
        ["text", "label", "split", "weight"],
        [[f"{text} {text}", "card", "train", 0] for text, _ in ROWS[:20]],
    )
    settings = {**SETTINGS, "weight_column": "weight", "split_column": "split"}
    runs = [
        train(make_config(model_folder, write(tmp_path / f"{name}.csv", header, table), tmp_path / name, **settings))
        for name, table in (("clean", rows), ("noisy", [*rows, *noise]))
    ]
    assert difference(*runs) < 1e-3  # the other texts share the tables, whose sums are rounded otherwise


def test_a_run_goes_on_as_if_it_had_not_been_stopped(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write(tmp_path / "my.csv", HEADER, soft_rows(0.8))
    whole = train(make_config(model_folder, table, tmp_path / "whole", contrastive_steps=3))
    with monkeypatch.context() as patch:
        stop_at(3, patch, signal.SIGTERM)
        with pytest.raises(Interrupted):
            train(make_config(model_folder, table, tmp_path / "stopped", contrastive_steps=3, save_steps=1))
    resumed = train(
        make_config(model_folder, table, tmp_path / "stopped", contrastive_steps=3, resume_from_checkpoint=True)
    )
    assert difference(resumed, whole) < 1e-6


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((0.5, 0.2, 0.2), r"line 4: the columns prob_\* sum to 0.9; expected 1.*--soft-labels none"),
        ((-0.2, 0.6, 0.6), r"line 4: column 'prob_app' holds -0.2; expected a probability from 0 to 1"),
        (("high", 0.5, 0.5), r"line 4: column 'prob_app' holds 'high'; expected a probability"),
        (("", 0.5, 0.5), r"line 4: some of the columns prob_\* are empty"),
    ],
)
def test_what_is_no_probability_is_refused(
    model_folder: Path, tmp_path: Path, cells: tuple[Any, ...], message: str
) -> None:
    rows = soft_rows(0.8)
    rows[2][2:] = cells
    table = write(tmp_path / "my.csv", HEADER, rows)
    with pytest.raises(InputError, match=message):
        train(make_config(model_folder, table, tmp_path / "out"))


def test_a_given_loss_counts_every_row() -> None:
    targets, logits = torch.eye(3), torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    own = SoftCrossEntropy()
    given = GivenLoss(lambda outputs, aims: -(aims * outputs.log_softmax(dim=1)).sum(dim=1), own)
    assert float(given.loss_sum(logits, targets)) == pytest.approx(float(own.loss_sum(logits, targets)))


def test_a_column_that_names_no_class_is_refused(model_folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", [*HEADER[:-1], "prob_cash"], soft_rows(0.8))
    with pytest.raises(InputError, match="columns 'prob_cash': no row has such a label"):
        train(make_config(model_folder, table, tmp_path / "out"))


@pytest.mark.parametrize(
    ("weight", "message"), [(-1, "lines 2, .* no weight of 0 or more"), (0, "the weight 0 in all rows")]
)
def test_what_is_no_weight_is_refused(model_folder: Path, tmp_path: Path, weight: float, message: str) -> None:
    table = write(tmp_path / "my.csv", ["text", "label", "w"], [[*row, weight] for row in ROWS])
    with pytest.raises(InputError, match=message):
        train(make_config(model_folder, table, tmp_path / "out", weight_column="w"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"label_smoothing": 0.2}, {"gamma": 2.0}, {"class_weights": np.array([1, 2, 3], np.float32)}],
    ids=str,
)
def test_the_loss_of_certain_targets_is_cross_entropy(settings: dict[str, Any]) -> None:
    logits = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(20) % 3
    hard, soft = CrossEntropy(**settings), SoftCrossEntropy(**settings)
    targets = torch.eye(3)[numbers]
    assert float(soft.loss_sum(logits, targets)) == pytest.approx(float(hard.loss_sum(logits, numbers)), rel=1e-5)
    assert soft.weight_sum(targets.numpy()) == pytest.approx(hard.weight_sum(numbers.numpy()))
    weights = torch.linspace(0, 2, 20)
    for loss, given in ((hard, numbers), (soft, targets)):
        rows = [float(loss.loss_sum(logits[n : n + 1], given[n : n + 1])) for n in range(20)]
        assert float(loss.loss_sum(logits, given, weights)) == pytest.approx(float(np.dot(rows, weights)), rel=1e-5)
    assert soft.weight_sum(targets.numpy(), weights.numpy()) == pytest.approx(
        hard.weight_sum(numbers.numpy(), weights.numpy())
    )


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        (single_label.make(LABELS), np.arange(60) % 3),
        (single_label.make(LABELS), np.eye(3, dtype=np.float32)[np.arange(60) % 3] * 0.7 + np.float32(0.1)),
        (multi_label.make(["a", "b"]), np.array([[n % 3 == 0, n % 2] for n in range(60)], dtype=np.uint8)),
        (multi_label.make(["a", "b"]), np.array([[n % 3 / 3, n % 5 / 5] for n in range(60)], dtype=np.float32)),
        (regression.make(["score"], 2.0, 1.5, 1.0), np.arange(60, dtype=np.float32) % 7),
    ],
    ids=["classes", "soft classes", "labels", "soft labels", "scores"],
)
def test_a_head_fits_a_row_of_weight_2_as_two_rows(task: Task, targets: np.ndarray) -> None:
    draw = np.random.default_rng(0)
    features, weights = draw.normal(size=(60, 8)).astype(np.float32), np.where(np.arange(60) < 20, 2.0, 1.0)
    rows = np.repeat(np.arange(60), weights.astype(int))
    # Weights are 1 on average, so that the penalty has the same meaning; a ridge has it per row.
    scale = 1.0 if task.name == "regression" else 60 / 80
    weighted = task.head.fit_standard(features, targets, 0.1, None, weights.astype(np.float32))
    repeated = task.head.fit_standard(features[rows], targets[rows], 0.1 * scale, None, None)
    np.testing.assert_allclose(weighted[0], repeated[0], atol=2e-3)
    np.testing.assert_allclose(weighted[1], repeated[1], atol=2e-3)


@pytest.mark.parametrize("name", ["labels", "scores"])
def test_weights_and_probabilities_of_other_tasks(model_folder: Path, tmp_path: Path, name: str) -> None:
    """Each label has a probability of its own; a score has a weight alone."""
    header = ["text", "prob_app", "prob_card", "weight"] if name == "labels" else ["text", "score", "weight"]
    rows = [
        [text, *((0.9 * (label == "app"), 0.8) if name == "labels" else (f"{len(text) / 9:.1f}",)), number % 3]
        for number, (text, label) in enumerate(ROWS)
    ]
    settings = {"task": "multi" if name == "labels" else "regression", "weight_column": "weight"}
    settings |= {} if name == "labels" else {"label_column": "score"}
    folder = train(make_config(model_folder, write(tmp_path / "my.csv", header, rows), tmp_path / "out", **settings))
    assert read_json(folder / "metrics.json")["task"] == ("multi_label" if name == "labels" else "regression")
    sizes = read_json(folder / "run.json")["inspection"]["splits"]
    assert sizes["train"] < 60  # a third of the rows weighs nothing


def test_labels_of_several_people_are_the_shares_of_a_text(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three labels of each text, one of them another one: the run is that of the shares as probabilities."""
    people, parts = ["ann", "bo", "cy"], ["train"] * 70 + ["eval"] * 10 + ["test"] * 10
    others = {"app": "card", "card": "money", "money": "app"}
    rows: list[list[object]] = []
    shares: list[list[object]] = []
    for (text, label), part in zip(ROWS, parts, strict=True):
        given = [label, label, others[label]] if part == "train" else [label]
        rows += [[text, one, who, part] for one, who in zip(given, people, strict=False)]
        counts = [given.count(one) / len(given) for one in LABELS]
        shares += [[text, one, part, *counts, 1 / len(given)] for one in given]
    voted = write(tmp_path / "voted.csv", ["text", "label", "who", "split"], rows)
    weighed = write(tmp_path / "weighed.csv", ["text", "label", "split", *HEADER[2:], "w"], shares)
    settings = {**SETTINGS, "split_column": "split"}
    folder = train(make_config(model_folder, voted, tmp_path / "voted", annotator_column="who", **settings))
    assert "annotators: 3 people labelled 90 texts; of two labels of a text 33 % agree" in capsys.readouterr().out
    same = train(make_config(model_folder, weighed, tmp_path / "weighed", weight_column="w", **settings))
    assert difference(folder, same) < 1e-5


@pytest.mark.parametrize("name", ["lists", "scores"])
def test_several_people_of_other_tasks(model_folder: Path, tmp_path: Path, name: str) -> None:
    case, table = CASES[name], tmp_path / "my.csv"
    rows = [[*case.row(number), who] for number in range(60) for who in ("ann", "bo")]
    write(table, [*case.header, "who"], rows)
    train(make_config(model_folder, table, tmp_path / "out", annotator_column="who", folds=0, **case.options))
    write(table, [*case.header, "prob_a", "prob_b", "who"], [[*row[:-1], 1, 0, row[-1]] for row in rows])
    with pytest.raises(InputError, match=r"--annotator-column: columns prob_\* say it, too"):
        train(make_config(model_folder, table, tmp_path / "both", annotator_column="who", **case.options))

"""Columns prob_<label> are what rows train towards, and --weight-column how much: from the table to the weights."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.errors import InputError, Interrupted
from classify.tasks import multi_label, regression, single_label
from classify.tasks.base import FitRows, Task
from classify.tasks.losses import CrossEntropy, SoftCrossEntropy
from classify.tasks.registry import recognize
from classify.training.parts import GivenLoss
from classify.training.run import train
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.runs import make_config, read_json, stop_at
from tests.support.tasks import CASES

LABELS = ["app", "card", "money"]
ROWS = tiny.table_rows(90)
SETTINGS: dict[str, Any] = {"dropout": 0.0, "contrastive_steps": 3}
SOFT: dict[str, Any] = {**SETTINGS, "soft_labels": True}


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
        name: train(make_config(model_folder, table, tmp_path / name, **{**SETTINGS, "soft_labels": name != "labels"}))
        for name, table in tables.items()
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
        train(make_config(model_folder, table, tmp_path / str(soft), calibrate="none", soft_labels=soft, **settings))
        for soft in (True, False)
    ]
    printed = capsys.readouterr().out
    assert "soft labels: 72 rows train towards probabilities of 3 labels" in printed
    assert "columns 'prob_app', 'prob_card', 'prob_money' not read; --soft-labels trains towards them" in printed
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
    whole = train(make_config(model_folder, table, tmp_path / "whole", contrastive_steps=3, soft_labels=True))
    with monkeypatch.context() as patch:
        stop_at(3, patch, signal.SIGTERM)
        with pytest.raises(Interrupted):
            train(
                make_config(
                    model_folder, table, tmp_path / "stopped", contrastive_steps=3, soft_labels=True, save_steps=1
                )
            )
    resumed = train(
        make_config(
            model_folder,
            table,
            tmp_path / "stopped",
            contrastive_steps=3,
            soft_labels=True,
            resume_from_checkpoint=True,
        )
    )
    assert difference(resumed, whole) < 1e-6


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((0.5, 0.2, 0.2), r"line 4: the columns prob_\* sum to 0.9; expected 1.*drop --soft-labels"),
        ((-0.2, 0.6, 0.6), r"line 4: column 'prob_app' holds -0.2; expected a probability from 0 to 1"),
        (("high", 0.5, 0.5), r"column 'prob_app': expected a probability.*high"),
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
        train(make_config(model_folder, table, tmp_path / "out", **SOFT))


def test_a_given_loss_counts_every_row() -> None:
    targets, logits = torch.eye(3), torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    own = SoftCrossEntropy()
    given = GivenLoss(lambda outputs, aims: -(aims * outputs.log_softmax(dim=1)).sum(dim=1), own)
    assert float(given.loss_sum(logits, targets)) == pytest.approx(float(own.loss_sum(logits, targets)))


def test_columns_that_name_no_class_are_refused(model_folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", [*HEADER[:2], "prob_a", "prob_b", "prob_c"], soft_rows(0.8))
    with pytest.raises(InputError, match="none of the columns 'prob_a', 'prob_b', 'prob_c' names a label"):
        train(make_config(model_folder, table, tmp_path / "out", **SOFT))


def targets_of(table: Path, **settings: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The labels, the targets and the soft targets of the training rows."""
    tables = read_tables(DataConfig(data=str(table), soft_labels=True, **settings))
    task = recognize(tables)
    train_split = split_table(tables, task.targets, 42).train
    assert train_split.soft_targets is not None
    return task.labels, train_split.targets, train_split.soft_targets


def test_a_label_that_is_not_the_most_probable_one_is_a_correction(tmp_path: Path) -> None:
    rows = [[*row[:1], "money", *row[2:]] if number % 9 == 0 else row for number, row in enumerate(soft_rows(0.8))]
    _, targets, soft = targets_of(write(tmp_path / "my.csv", HEADER, rows))
    assert (soft.argmax(axis=1) == targets).all()
    assert np.unique(soft.max(axis=1)).tolist() == pytest.approx([0.8, 1.0])


def test_labels_in_a_column_of_any_name_count(tmp_path: Path) -> None:
    """Where there is none the most probable ones do; columns that predict has renamed are not read."""
    named = write(tmp_path / "my.csv", ["text", "intent", *HEADER[2:], "predicted_label"], [
        [*row, "app"] for row in soft_rows(0.8)
    ])  # fmt: skip
    labels, targets, _ = targets_of(named)
    assert np.bincount(targets).min() > 20
    renamed = ["predicted_label_input", *(f"{name}_input" for name in HEADER[2:])]
    rows = [[row[0], *row[2:], "app", *shares("app", 0.9)] for row in soft_rows(0.8)]
    again = write(tmp_path / "again.csv", ["text", *HEADER[2:], *renamed], rows)
    assert targets_of(again)[0] == labels
    header = ["text", "prob_0", "prob_10", "prob_2"]
    numbered = write(tmp_path / "numbers.csv", header, [[row[0], *row[2:]] for row in soft_rows(0.8)])
    assert targets_of(numbered, label_names="0=none,10=ten,2=two")[0] == ["none", "ten", "two"]


def test_predictions_without_labels_are_a_question(tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", ["text", *HEADER[2:], "predicted_label"], [
        [row[0], *row[2:], row[1]] for row in soft_rows(0.8)
    ])  # fmt: skip
    with pytest.raises(InputError, match='"predicted_label" or --soft-labels for the probabilities'):
        read_tables(DataConfig(data=str(table)))


def test_a_class_of_no_label_is_a_class(tmp_path: Path) -> None:
    header, rows = [*HEADER, "prob_other"], [[*row, 0.0] for row in soft_rows(1.0)]
    labels, _, soft = targets_of(write(tmp_path / "my.csv", header, rows))
    assert (labels, soft.shape[1]) == ([*LABELS, "other"], 4)


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
    weighted = task.head.fit_standard(FitRows(features, targets, None, weights.astype(np.float32)), 0.1)
    repeated = task.head.fit_standard(FitRows(features[rows], targets[rows]), 0.1 * scale)
    np.testing.assert_allclose(weighted[0], repeated[0], atol=2e-3)
    np.testing.assert_allclose(weighted[1], repeated[1], atol=2e-3)


@pytest.mark.parametrize("name", ["labels", "scores"])
def test_weights_and_probabilities_of_other_tasks(model_folder: Path, tmp_path: Path, name: str) -> None:
    """Each label has a probability of its own; a score has a weight alone."""
    several = ["text", "label", "prob_app", "prob_card", "weight"]
    header = several if name == "labels" else ["text", "score", "weight"]
    rows = [
        [text, *(("card|app", 0.9, 0.8) if label == "app" else ("card", 0.1, 0.7)), number % 3]
        if name == "labels"
        else [text, f"{len(text) / 9:.1f}", number % 3]
        for number, (text, label) in enumerate(ROWS)
    ]
    settings = {"task": "multi" if name == "labels" else "regression", "weight_column": "weight"}
    settings |= {"soft_labels": True} if name == "labels" else {"label_column": "score"}
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
        shares += [[text, label, part, *counts, 1 / len(given)] for _ in given]
    voted = write(tmp_path / "voted.csv", ["text", "label", "who", "split"], rows)
    weighed = write(tmp_path / "weighed.csv", ["text", "label", "split", *HEADER[2:], "w"], shares)
    settings: dict[str, Any] = {**SETTINGS, "split_column": "split"}
    folder = train(make_config(model_folder, voted, tmp_path / "voted", annotator_column="who", **settings))
    assert "annotators: 3 people labelled 90 texts; of two labels of a text 33 % agree" in capsys.readouterr().out
    settings |= {"weight_column": "w", "soft_labels": True}
    same = train(make_config(model_folder, weighed, tmp_path / "weighed", **settings))
    assert difference(folder, same) < 1e-5


@pytest.mark.parametrize("name", ["lists", "scores"])
def test_several_people_of_other_tasks(model_folder: Path, tmp_path: Path, name: str) -> None:
    case, table = CASES[name], tmp_path / "my.csv"
    rows = [[*case.row(number), who] for number in range(60) for who in ("ann", "bo")]
    write(table, [*case.header, "who"], rows)
    train(make_config(model_folder, table, tmp_path / "out", annotator_column="who", folds=0, **case.options))
    soft = [[*row[:-1], 1, 0, row[-1]] for row in rows]
    write(table, [*case.header, "prob_a", "prob_b", "who"], soft)
    settings = {**case.options, "annotator_column": "who", "soft_labels": True}
    with pytest.raises(InputError, match="--annotator-column and --soft-labels both say"):
        train(make_config(model_folder, table, tmp_path / "both", **settings))


def test_a_vote_of_weight_0_does_not_count(tmp_path: Path) -> None:
    rows = [[text, one, who, weight] for text, label in ROWS for one, who, weight in
            ((label, "ann", 1), (label, "bo", 0.5), (LABELS[LABELS.index(label) - 1], "cy", 0))]  # fmt: skip
    table = write(tmp_path / "my.csv", ["text", "label", "who", "w"], rows)
    tables = read_tables(DataConfig(data=str(table), annotator_column="who", weight_column="w"))
    split = split_table(tables, recognize(tables).targets, 42).train
    assert split.soft_targets is not None
    assert split.weights is not None
    assert (split.soft_targets.max(axis=1) == 1).all()
    assert set(np.round(split.weights / split.weights.max(), 3).tolist()) == {0.5, 1.0}

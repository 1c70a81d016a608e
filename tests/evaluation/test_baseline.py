"""The TF-IDF baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from classify.evaluation import baseline
from classify.tables.formats.registry import read_table
from classify.tasks.base import Task
from classify.tasks.baseline_job import BaselineJob
from classify.tasks.multi_label import MultiLabel
from classify.tasks.regression import Regression
from classify.tasks.single_label import SingleLabel
from tests.support import tiny
from tests.support.processes import ROOT

TASK = SingleLabel("abc")


def test_held_out_texts_are_scored_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features of a million texts would take gigabytes."""
    rows = tiny.table_rows(90)
    texts, labels = [text for text, _ in rows], np.unique([label for _, label in rows], return_inverse=True)[1]
    fit = (texts[:60], labels[:60], texts[60:], labels[60:], 0)
    whole = TASK.baseline(*fit)
    sizes: list[int] = []
    predict = LogisticRegression.predict

    def predict_block(self: LogisticRegression, features: Any) -> Any:
        sizes.append(features.shape[0])
        return predict(self, features)

    monkeypatch.setattr(baseline, "_BLOCK", 7)
    monkeypatch.setattr(LogisticRegression, "predict", predict_block)
    in_blocks = TASK.baseline(*fit)
    assert in_blocks.metrics == whole.metrics
    assert (sum(sizes), max(sizes)) == (30, 7)


@pytest.mark.parametrize(("name", "lacking"), [("tickets.zh.csv", True), ("tickets.csv", False)])
def test_where_texts_have_no_spaces_it_reads_characters(name: str, lacking: bool) -> None:
    """Words cannot be found there, and what looks like them is whole sentences."""
    table = read_table(str(ROOT / "data" / name))
    texts, labels = table.column("text"), np.unique(table.column("label"), return_inverse=True)[1]
    assert baseline.lack_spaces(texts) == lacking
    order = np.random.default_rng(0).permutation(len(texts))
    train, test = order[len(texts) // 4 :], order[: len(texts) // 4]
    fit = [texts[row] for row in train], labels[train], [texts[row] for row in test], labels[test], 0
    task = SingleLabel([str(number) for number in range(8)])
    accuracy = task.baseline(*fit).metrics["accuracy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline, "lack_spaces", lambda _: not lacking)
        assert accuracy >= task.baseline(*fit).metrics["accuracy"] + 0.05


@pytest.mark.parametrize(
    "way",
    [
        "rows",
        "regression",
        pytest.param("folds", marks=pytest.mark.slow),
        pytest.param("labels", marks=pytest.mark.slow),
    ],
)
def test_another_process_fits_the_same_baseline(way: str) -> None:
    draw = np.random.default_rng(0)
    topics = draw.integers(0, 2, 60)
    texts = [
        f"{'the invoice is wrong' if topic else 'a parcel has not come'} {row % 7}" for row, topic in enumerate(topics)
    ]
    task: Task = SingleLabel(["parcel", "invoice"])
    targets: Any = topics
    if way == "regression":
        task, targets = Regression(["score"]), topics + 0.1
    elif way == "labels":
        task, targets = MultiLabel(["parcel", "invoice"]), np.stack([1 - topics, topics], axis=1).astype(np.float32)
    folds = np.arange(60) % 3 if way == "folds" else None
    job = BaselineJob(task, texts[:50], targets[:50], texts[50:], targets[50:], folds, seed=1)
    if folds is not None:
        job = BaselineJob(task, texts, targets, [], targets, folds, seed=1)
    here, there = job.result(), job.start().result()
    assert there.predicted.dtype == here.predicted.dtype
    assert there.predicted.tolist() == here.predicted.tolist()
    assert (there.metrics, there.rows, there.name) == (here.metrics, here.rows, here.name)


def test_another_process_says_what_it_could_not_fit() -> None:
    targets = np.arange(10) % 2
    running = BaselineJob(SingleLabel(["a", "b"]), ["!"] * 10, targets, ["?"], targets[:1], None, seed=1).start()
    with pytest.raises(ValueError, match="empty vocabulary"):
        running.result()
    killed = BaselineJob(SingleLabel(["a", "b"]), ["no"] * 10, targets, ["?"], targets[:1], None, seed=1).start()
    killed.process.kill()
    with pytest.raises(MemoryError, match="ended by signal 9"):
        killed.result()

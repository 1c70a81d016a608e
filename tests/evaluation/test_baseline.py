"""The TF-IDF baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from classify.evaluation import baseline
from classify.tables.read import read_table
from classify.tasks import single_label
from tests.support import tiny
from tests.support.processes import ROOT

TASK = single_label.make("abc")


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
    task = single_label.make([str(number) for number in range(8)])
    accuracy = task.baseline(*fit).metrics["accuracy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline, "lack_spaces", lambda _: not lacking)
        assert accuracy >= task.baseline(*fit).metrics["accuracy"] + 0.05

"""The TF-IDF baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from classify.evaluation import baseline
from classify.tasks.single_label import SingleLabel
from tests.support import tiny

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

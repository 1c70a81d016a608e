"""Which scored weights a run keeps."""

from __future__ import annotations

import numpy as np

from classify.tasks import single_label
from classify.training.progress import Progress

ROWS, RARE, EPOCHS, RUNS = 200, 10, 3, 200


def test_chance_keeps_no_earlier_epoch_of_an_imbalanced_table() -> None:
    """All epochs find a rare class half of the time and err on 3 % of the others, so none is better than the last."""
    draw = np.random.default_rng(0)
    targets = (np.arange(ROWS) < RARE).astype(np.int64)
    error_rates = np.where(targets == 1, 0.5, 0.03)
    earlier = 0
    for _ in range(RUNS):
        progress = Progress()
        for epoch in range(1, EPOCHS + 1):
            predicted = targets ^ (draw.random(ROWS) < error_rates)
            progress.step = epoch
            scores = {**single_label.make(["a", "b"]).scores.metrics(predicted, targets), "loss": 1.0}
            progress.add_score(scores, epoch, "macro_f1")
        earlier += progress.choose_kept("auto", "macro_f1", "accuracy", ROWS)["epoch"] < EPOCHS
    assert earlier < 0.05 * RUNS

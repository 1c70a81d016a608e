"""The default model learns: trained end to end on the sample data, it scores well above words counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.cli import main
from classify.tables.read import read_table
from tests.support import tiny
from tests.support.processes import ROOT
from tests.support.runs import read_json

pytestmark = pytest.mark.slow

FLOOR = 0.60
CLEAR = [
    ("I was charged twice on this month's invoice, please refund the double payment", "billing"),
    ("I forgot my password and cannot log in to my account", "account_access"),
    ("Where is my package? The tracking has not moved for a week", "shipping"),
    ("Please cancel my subscription at the end of the month", "cancellation"),
]


@pytest.mark.embedded
@pytest.mark.timeout(600)  # a hundred seconds of a core without bf16, beside two other workers
def test_the_default_model_learns_the_sample_data(tmp_path: Path) -> None:
    """Two epochs over half of the rows, scored on a quarter (252 rows), in fp32, 30 s of a core.

    Seen with seeds 0, 1 and 2: accuracy 0.667, 0.667 and 0.690. On the same rows the TF-IDF baseline has 0.476, a
    logistic regression on the model before training 0.571, always the largest class 0.159.
    """
    table = read_table(str(ROOT / "data" / "tickets.csv"))
    rows = list(zip(table.column("text"), table.column("label"), strict=True))
    parts = {"data": (0, 1, 4, 5, 8, 9, 12, 13), "eval-data": (3,), "test-data": (2, 6, 10, 14)}
    words = ["train", "--cpu", "--precision", "fp32", "--seed", "0", "--report-to", "none"]
    for name, places in parts.items():
        chosen = [row for number, row in enumerate(rows) if number % 16 in places]
        words += [f"--{name}", str(tiny.write_table(tmp_path / f"{name}.csv", chosen))]
    out = tmp_path / "out"
    assert (
        main(
            [*words, "--epochs", "2", "--learning-rate", "1e-4", "--contrastive-steps", "20", "--output-dir", str(out)]
        )
        == 0
    )
    scores = read_json(out / "metrics.json")
    assert scores["test"]["rows"] == 252
    assert scores["test"]["accuracy"] > FLOOR
    assert scores["baseline"]["accuracy"] < FLOOR - 0.1, "the floor means more than counting words"
    assert scores["majority"]["accuracy"] < FLOOR - 0.4
    assert scores["best_epoch"] > 0, "what is kept has been fine-tuned"
    new = tiny.write_table(tmp_path / "new.csv", CLEAR, header=("text", "expected"))
    assert main(["predict", "--model", str(out), "--data", str(new), "--out", str(tmp_path / "p.csv"), "--cpu"]) == 0
    predicted = read_table(str(tmp_path / "p.csv"))
    assert predicted.column("predicted_label") == [label for _, label in CLEAR]

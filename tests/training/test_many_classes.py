"""Over 1,000 classes: what grows with rows times classes is done in one pass, and no table has a column for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classify.cli import main
from classify.tasks import heads, single_label
from classify.tasks.base import FitRows
from classify.tasks.columns import PredictionColumns
from classify.training.linear_probe import row_limit
from tests.support import tiny
from tests.support.runs import read_json

CLASSES = 1_200


def test_a_discriminant_finds_the_classes() -> None:
    draw = np.random.default_rng(0)
    middles = draw.normal(size=(CLASSES, 64))
    numbers = np.repeat(np.arange(CLASSES), 4)
    features = (middles[numbers] + 0.4 * draw.normal(size=(len(numbers), 64))).astype(np.float32)
    head = single_label.make([f"c{number}" for number in range(CLASSES)]).head
    weight, bias = head.fit(FitRows(features, numbers))
    new = middles + 0.4 * draw.normal(size=middles.shape)
    assert ((new @ weight.T + bias).argmax(axis=1) == np.arange(CLASSES)).mean() > 0.95


def test_its_weights_are_rows_that_occur_again() -> None:
    draw = np.random.default_rng(0)
    features, numbers = draw.normal(size=(60, 5)), draw.integers(3, size=60)
    counts = draw.integers(1, 4, size=60)
    repeated = np.repeat(np.arange(60), counts)
    weighted = heads.fit_discriminant(features, numbers, 4, counts.astype(np.float32))
    again = heads.fit_discriminant(features[repeated], numbers[repeated], 4, None)
    for one, other in zip(weighted, again, strict=True):
        np.testing.assert_allclose(one[:3], other[:3], rtol=1e-6)


def test_the_final_probe_learns_from_rows_of_each() -> None:
    assert row_limit(10_000, is_final=True) == 200_000
    assert row_limit(10_000, is_final=False) == 20_000
    assert row_limit(100, is_final=True) == 20_000


def test_a_table_has_the_most_probable_labels() -> None:
    task = single_label.make([f"c{number}" for number in range(CLASSES)])
    names = PredictionColumns(task).names
    assert names[:4] == ["predicted_label", "confidence", "label_1", "prob_1"]
    assert len(names) == 22
    assert len(PredictionColumns(task, top_k=3).names) == 8


@pytest.mark.slow
def test_a_run_of_many_classes(model_folder: Path, tmp_path: Path) -> None:
    vocabulary = list(dict.fromkeys(tiny.WORDS))
    pairs = [(one, other) for one in vocabulary for other in vocabulary][:CLASSES]
    rows = [(f"{one} {other} {filler}", f"{one} {other}") for one, other in pairs for filler in ("the", "my", "a")]
    table = tiny.write_table(tmp_path / "many.csv", rows)
    words = ["--data", str(table), "--label-column", "label", "--text-column", "text", "--model", str(model_folder)]
    assert main(["train", *words, "--preset", "fast", "--cpu", "--output-dir", str(tmp_path / "out")]) == 0
    metrics, page = read_json(tmp_path / "out" / "metrics.json"), (tmp_path / "out" / "report.html").read_text()
    assert metrics["baseline"]["name"] == "tfidf-bayes"
    assert len(metrics["test"]["per_class"]) == CLASSES
    assert metrics["test"]["accuracy"] > metrics["majority"]["accuracy"]
    assert "the 100 classes with the lowest F1" in page
    assert len(page) < 5_000_000

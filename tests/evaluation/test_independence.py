"""Scores, intervals and tests are of texts, not rows, that no model of theirs was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.evaluation.bootstrap import f1_intervals, macro_f1_interval
from classify.evaluation.metrics import INDEPENDENT, Sampling, share_interval, wilson_interval
from classify.evaluation.scored_rows import ScoredRows, sign_test
from classify.evaluation.slices import find_weak, list_slices
from classify.report.result import Result
from classify.tasks.regression import correlation_interval
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json

ACCURACY, CLASSES = 0.75, 4


def draw_copies(seed: int, rows: int, repeated: float) -> tuple[Any, Any, Any]:
    """Texts (rows,), of which a share repeats 100 ones, their targets, and predictions: 75 % right, by text."""
    draw = np.random.default_rng(seed)
    texts = np.where(draw.random(rows) < repeated, draw.integers(0, 100, rows), 1000 + np.arange(rows))
    number = np.unique(texts, return_inverse=True)[1]
    targets = draw.integers(0, CLASSES, number.max() + 1)
    wrong = draw.random(len(targets)) >= ACCURACY
    return texts, targets[number], ((targets + wrong) % CLASSES)[number]


@pytest.mark.parametrize("repeated", [0.3, 0.9])
def test_intervals_hold_where_texts_repeat(repeated: float) -> None:
    """95 % of them, where those of rows that are taken for independent hold 90 and 60 %."""
    held = dict.fromkeys(("accuracy", "f1", "as rows"), 0)
    for seed in range(200):
        texts, targets, predicted = draw_copies(seed, 400, repeated)
        copies = Sampling(texts)
        low, high = share_interval(targets == predicted, copies)
        held["accuracy"] += low <= ACCURACY <= high
        low, high = macro_f1_interval(targets, predicted, seed, copies) or (0.0, 0.0)
        held["f1"] += low <= ACCURACY <= high
        low, high = share_interval(targets == predicted)
        held["as rows"] += low <= ACCURACY <= high
    assert min(held["accuracy"], held["f1"]) >= 182
    assert held["as rows"] < held["accuracy"]


def test_intervals_of_folds_hold() -> None:
    """Models of folds share training rows: scores of a logistic regression, of 5 folds, hold the final model's."""
    from sklearn.linear_model import LogisticRegression

    centers, held, as_rows = np.random.default_rng(1).normal(size=(3, 10)), 0, 0
    for seed in range(120):
        draw = np.random.default_rng(seed)
        targets = draw.integers(0, 3, 3100)
        features = 0.6 * centers[targets] + draw.normal(size=(3100, 10))
        folds, predicted = np.arange(100) % 5, np.empty(100, dtype=int)
        for fold in range(5):
            fitted = LogisticRegression().fit(features[:100][folds != fold], targets[:100][folds != fold])
            predicted[folds == fold] = fitted.predict(features[:100][folds == fold])
        final = LogisticRegression().fit(features[:100], targets[:100]).score(features[100:], targets[100:])
        right = predicted == targets[:100]
        for sampling in (Sampling(folds=5), INDEPENDENT):
            low, high = share_interval(right, sampling)
            held += (low <= final <= high) and sampling.folds
            as_rows += (low <= final <= high) and not sampling.folds
    assert held >= 5 * 114
    assert as_rows < 114


def test_different_texts_count_as_rows() -> None:
    right = np.arange(50) < 40
    # Each text once right and once wrong.
    assert share_interval(right[[0, -1] * 4], Sampling(np.repeat(np.arange(4), 2))) == wilson_interval(2, 4)
    assert share_interval(right, Sampling(np.arange(50))) == share_interval(right) == wilson_interval(40, 50)
    assert share_interval(np.ones(9, dtype=bool), Sampling(np.arange(9) // 3)) == wilson_interval(3, 3), "3 texts"
    assert correlation_interval(0.5, 60, Sampling(np.arange(60) // 2)) == correlation_interval(0.5, 30)
    assert correlation_interval(0.5, 6, Sampling(np.arange(6) // 2)) is None
    targets, predicted = np.arange(60) % 4, np.arange(60) % 3
    as_texts, as_rows = (
        macro_f1_interval(targets, predicted, 1, one) for one in (Sampling(np.arange(60)), INDEPENDENT)
    )
    assert as_texts == as_rows


def test_intervals_of_several_labels() -> None:
    """Each text twice is as many texts once."""
    draw = np.random.default_rng(0)
    targets, predicted = (draw.random((60, 3)) < 0.4).astype(np.uint8), (draw.random((60, 3)) < 0.4).astype(np.uint8)
    twice = [np.repeat(part, 2, axis=0) for part in (targets, predicted)]
    once = f1_intervals(targets, predicted, 0, INDEPENDENT)
    assert f1_intervals(*twice, 0, Sampling(np.repeat(np.arange(60), 2))) == once
    assert f1_intervals(*twice, 0, INDEPENDENT) != once


def test_a_text_counts_once_in_tests() -> None:
    """The paired test of two equal models errs in 5 % at most, and no group is weak by its copies alone."""
    texts, _, _ = draw_copies(0, 600, 0.5)
    columns = {"source": [("web", "mail")[int(text) % 2] for text in texts]}
    slices = list_slices([str(text) for text in texts], columns, several_languages=False)
    sure = weak = 0
    for seed in range(100):
        draws = [draw_copies(seed + offset, 600, 0.5) for offset in (0, 1000)]
        hashes = draws[0][0].astype(np.uint64)
        number = np.unique(hashes, return_inverse=True)[1]
        first, second = (np.random.default_rng([seed, n]).random(number.max() + 1)[number] < 0.8 for n in (0, 1))
        rows = ScoredRows(hashes, first, np.zeros((600, 2), np.float32), None, None).independent
        sure += sign_test(first[rows], second[rows]).p < 0.05
        by_text = np.random.default_rng([seed, 2]).random(len(np.unique(texts)))
        right = (by_text[np.unique(texts, return_inverse=True)[1]] < 0.8).astype(float)
        independent = np.sort(np.unique(texts, return_index=True)[1])
        weak += bool(find_weak(slices, right, independent)[0])
    assert sure <= 10
    assert weak <= 10


def test_scores_of_new_texts_are_the_headline(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Where test texts were trained on, too, terminal and report show the others; metrics.json has both."""
    rows = tiny.table_rows(80)
    tiny.write_table(tmp_path / "train.csv", rows)
    other = [(f"{text} again", label) for text, label in tiny.table_rows(40, seed=9)]
    tiny.write_table(tmp_path / "test.csv", [*rows[:30], *other])
    config = make_config(
        model_folder, tmp_path / "train.csv", tmp_path / "out", test_data=str(tmp_path / "test.csv"), max_steps=2
    )
    out = train(config)
    metrics, result = read_json(out / "metrics.json"), Result.read(out)
    unseen = metrics["test"]["unseen"]
    seen = 70 - unseen["rows"]
    assert metrics["test"]["rows"] == 70
    assert 20 < seen <= 30, "the others are in the validation split"
    assert {"unseen"} <= metrics["baseline"].keys() & metrics["majority"].keys()
    assert metrics["baseline"]["unseen"]["accuracy"] < metrics["baseline"]["accuracy"], "it knows the others by heart"
    assert metrics["baseline"]["paired"]["better"] + metrics["baseline"]["paired"]["worse"] <= unseen["rows"]
    headline = f"test ({unseen['rows']} of 70 rows, whose text was not trained on): accuracy {unseen['accuracy']:.4f}"
    assert headline in capsys.readouterr().out
    notes = [one["text"] for one in read_json(out / "run.json")["findings"]]
    assert any(note.startswith(f"with the {seen} test texts that are also in the training split") for note in notes)
    assert result.scores["accuracy"] == unseen["accuracy"]
    assert result.baseline is not None
    assert result.baseline["accuracy"] == metrics["baseline"]["unseen"]["accuracy"]
    assert len(result.texts) == len(result.rows.targets) == len(result.predicted) == unseen["rows"]
    assert sum(text.endswith(" again") for text in result.texts) == 40
    assert result.scored.endswith(f"test rows, without {seen} rows whose text was trained on")
    assert set(result.explanations) <= set(range(unseen["rows"]))

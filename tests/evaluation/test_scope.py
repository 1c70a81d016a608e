"""Texts of none of the classes are told by the nearest training text and the confidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from classify.evaluation.scope import Held, Scope, summarize
from classify.tasks import single_label
from classify.tasks.columns import PredictionColumns
from classify.training.open_set import fit

CLASSES, WIDTH = 4, 16


def _draw(seed: int, rows: int, classes: list[int]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return features around a direction per class, and the classes."""
    draw = np.random.default_rng(seed)
    targets = draw.choice(classes, rows)
    features = 4 * np.eye(WIDTH)[targets] + draw.normal(size=(rows, WIDTH))
    return features.astype(np.float32), targets


def _held(seed: int, classes: list[int], rows: int = 200) -> tuple[Held, npt.NDArray[np.int64]]:
    features, targets = _draw(seed, rows, classes)
    return Held(features, features[:, :CLASSES]), targets


KNOWN, UNKNOWN = [0, 1, 2, 3], [8, 9]
EXAMPLES, TARGETS = _draw(0, 300, KNOWN)
INSIDE, INSIDE_TARGETS = _held(1, KNOWN)


@pytest.mark.parametrize("outside", [None, _held(2, UNKNOWN)[0]], ids=["classes left out", "rows"])
def test_other_classes_are_rejected(outside: Held | None, tmp_path: Path) -> None:
    scope = fit("none", EXAMPLES, TARGETS, INSIDE, INSIDE_TARGETS, outside)
    (inside, targets), (other, _) = _held(3, KNOWN), _held(4, UNKNOWN)
    right = inside.logits.argmax(axis=1) == targets
    kept, rest = (scope.probabilities(held.features, held.logits) for held in (inside, other))
    entry = scope.describe(kept, right, rest)
    assert entry["accepted"] == pytest.approx(0.95, abs=0.05)
    assert entry["accuracy"] <= min(entry["accepted"], right.mean())
    assert entry["recall"] > 0.7
    assert entry["auroc"] > 0.95
    assert f"{len(rest)} 'none' rows rejected" in summarize(entry)
    scope.write(tmp_path)
    again = Scope.read(tmp_path, scope.as_settings())
    assert again is not None
    np.testing.assert_array_equal(again.probabilities(inside.features, inside.logits), kept)
    assert again.threshold == scope.threshold


@pytest.mark.parametrize("seed", range(4))
def test_of_two_classes_the_unlike_texts_are_rejected(seed: int) -> None:
    """Each is left out in turn, so that one is left, of which every text is sure; and the classes hardly differ."""
    draw = np.random.default_rng(seed)

    def near(rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        targets = draw.integers(0, 2, rows)
        features = np.eye(WIDTH)[[0] * rows] * 4 + np.eye(WIDTH)[targets + 1] + draw.normal(size=(rows, WIDTH))
        return features.astype(np.float32), targets

    (examples, targets), (inside, inside_targets), (new, _) = near(200), near(100), near(100)
    held = Held(inside, inside[:, 1:3])
    scope = fit("none", examples, targets, held, inside_targets, None)
    far = (4 * np.eye(WIDTH)[[9] * 50] + draw.normal(size=(50, WIDTH))).astype(np.float32)
    kept, rest = scope.probabilities(new, new[:, 1:3]), scope.probabilities(far, far[:, 1:3])
    assert scope.describe(kept, np.ones(100, dtype=bool), rest)["auroc"] > 0.9


def test_without_rows_outside_no_rate_is_claimed() -> None:
    scope = fit("none", EXAMPLES, TARGETS, INSIDE, INSIDE_TARGETS, None)
    inside = scope.probabilities(INSIDE.features, INSIDE.logits)
    entry = scope.describe(inside, INSIDE.logits.argmax(axis=1) == INSIDE_TARGETS, inside[:0])
    assert "auroc" not in entry
    assert "AUROC" not in summarize(entry)
    assert (inside >= scope.threshold).mean() >= 0.95, "the threshold keeps 95 % of the rows it is chosen on"


def test_cells() -> None:
    scope = Scope("none", 0.5, EXAMPLES.astype(np.float16), np.ones(2), 0.0)
    fields = [["a", "0.9"], ["b", "0.8"]]
    assert list(scope.mark(fields, np.array([0.5, 0.25]), ".3g")) == [["a", "0.9", "0.5"], ["none", "0.75", "0.25"]]
    columns = PredictionColumns(replace(single_label.make("ab"), scope=scope))
    assert columns.names == ["predicted_label", "confidence", "in_scope", "prob_a", "prob_b"]
    (cells,) = columns.cells(np.array([[0.0, 0.0, 0.25]], dtype=np.float32))
    assert cells == ["none", "0.75", "0.25", "0.5", "0.5"]

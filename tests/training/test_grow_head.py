"""An output layer that gets rows for new classes."""

from __future__ import annotations

import numpy as np

from classify.tasks.multi_label import MultiLabel
from classify.tasks.single_label import SingleLabel


def drawn(classes: int, rows: int = 400, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Features whose means differ by class, not standardized, and the classes."""
    draw = np.random.default_rng(0)
    targets = draw.integers(classes, size=rows)
    means = 2.0 * draw.normal(size=(classes, width))
    return (5.0 + 3.0 * (means[targets] + draw.normal(size=(rows, width)))).astype(np.float32), targets


def test_new_classes_are_told_from_old_ones() -> None:
    features, targets = drawn(5)
    old = targets < 3
    task = SingleLabel(list("abcde"))
    weight, bias = np.zeros((5, 8), dtype=np.float32), np.zeros(5, dtype=np.float32)
    weight[:3], bias[:3] = SingleLabel(list("abc")).fit_head(features[old], targets[old])
    kept = weight[:3].copy(), bias[:3].copy()
    task.grow_head(features, targets, (weight, bias), np.arange(5) >= 3)
    assert (weight[:3] == kept[0]).all()
    assert (bias[:3] == kept[1]).all()
    right = (features @ weight.T + bias).argmax(axis=1) == targets
    anew = np.add(features @ (fit := task.fit_head(features, targets))[0].T, fit[1]).argmax(axis=1) == targets
    assert right.mean() > anew.mean() - 0.05
    assert right[~old].mean() > 0.8


def test_new_labels_beside_old_ones() -> None:
    features, targets = drawn(3)
    labels = np.stack([targets == 0, targets != 1, targets == 2], axis=1).astype(np.uint8)
    task = MultiLabel(list("abc"))
    weight, bias = task.fit_head(features, labels)
    grown, shift = weight.copy(), bias.copy()
    grown[2], shift[2] = 0, 0
    task.grow_head(features, labels, (grown, shift), np.array([False, False, True]))
    assert (grown[:2] == weight[:2]).all()
    assert (((features @ grown.T + shift) > 0)[:, 2] == labels[:, 2]).mean() > 0.9

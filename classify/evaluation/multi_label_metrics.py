"""Scores of predicted label sets, thresholds, and the baseline's estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.evaluation.metrics import (
    INDEPENDENT,
    RESAMPLES,
    Array,
    Sampling,
    Scores,
    bootstrap_interval,
    scores_by_class,
)

# Numbers of texts that are resampled at a time.
_CELLS = 1 << 22
THRESHOLD = 0.5
# Values of `thresholds` in metrics.json: the rows that they were chosen on, besides rows that are not scored.
SCORED_ROWS = "scored rows"
OTHER_FOLDS = "other folds"
# Rows of a label from which F1 chooses its threshold.
_ENOUGH = 10
# Share of the rows on which the baseline chooses its thresholds.
_HELD_OUT = 0.2


def decision_metrics(predicted: Array, targets: Array) -> dict[str, float]:
    """Micro and macro F1, mean Jaccard index and subset accuracy of 0 and 1 (rows, labels)."""
    both = predicted.astype(bool) & targets.astype(bool)
    micro, macro = _f1_scores(both.sum(axis=0)[None], predicted.sum(axis=0)[None], targets.sum(axis=0)[None])
    return {
        "micro_f1": float(micro[0]),
        "macro_f1": float(macro[0]),
        "jaccard": float(jaccard(predicted, targets).mean()),
        "subset_accuracy": float((predicted == targets).all(axis=1).mean()),
    }


def jaccard(predicted: Array, targets: Array) -> npt.NDArray[np.float64]:
    """(rows,) common over all labels of each row, 1 where both are none (Godbole and Sarawagi, 2004)."""
    both = predicted.astype(bool) & targets.astype(bool)
    sizes = (predicted.astype(bool) | targets.astype(bool)).sum(axis=1)
    shares: npt.NDArray[np.float64] = np.where(sizes > 0, both.sum(axis=1) / np.maximum(sizes, 1), 1.0)
    return shares


def score(
    predicted: Array,
    probabilities: Array,
    targets: Array,
    labels: Sequence[str],
    *,
    loss: float,
    seed: int,
    sampling: Sampling = INDEPENDENT,
) -> Scores:
    """Score predictions (rows, labels).

    Average precision is the mean over labels with a row, the area under the ROC curve over those that also have a row
    without them. `seed` is that of the bootstrap intervals over texts.
    """
    from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

    columns = precision_recall_fscore_support(targets, predicted, average=None, zero_division=0.0)
    precisions = {
        number: float(average_precision_score(targets[:, number], probabilities[:, number]))
        for number in np.flatnonzero(targets.any(axis=0)).tolist()
    }
    per_class = scores_by_class(labels, columns)
    for number, label in enumerate(labels):
        per_class[label]["average_precision"] = precisions.get(number, 0.0)
    average = float(np.mean(list(precisions.values()))) if precisions else 0.0
    varied = np.flatnonzero(targets.any(axis=0) & ~targets.all(axis=0))
    support = targets.sum(axis=0, dtype=np.float64)
    details = {
        "weighted_f1": float(np.average(columns[2], weights=support)) if support.any() else 0.0,
        "roc_auc": float(roc_auc_score(targets[:, varied], probabilities[:, varied])) if len(varied) else 0.5,
        "loss": loss,
    }
    metrics = {**decision_metrics(predicted, targets), "average_precision": average}
    return Scores(metrics, len(targets), details, _intervals(predicted, targets, seed, sampling), per_class)


def choose_thresholds(probabilities: npt.NDArray[np.float64], targets: Array) -> npt.NDArray[np.float64]:
    """(labels,) the thresholds with the highest F1 on these rows.

    On few rows that is a matter of chance. So a label with fewer than 10 rows gets the threshold at which it is
    predicted for as many rows (PCut: Yang, 2001, "A Study of Thresholding Strategies for Text Categorization", section
    2.2). A label without rows gets 0.5.
    """
    thresholds = np.full(targets.shape[1], THRESHOLD)
    for number in np.flatnonzero(targets.any(axis=0)).tolist():
        order = np.argsort(-probabilities[:, number], kind="stable")
        ranked = probabilities[order, number]
        hits = np.cumsum(targets[order, number], dtype=np.int64)
        # A cut lies between two different probabilities.
        cuts = np.flatnonzero(np.append(ranked[:-1] != ranked[1:], True))
        if hits[-1] >= _ENOUGH:
            f1 = 2 * hits[cuts] / (cuts + 1 + hits[-1])
            cut = int(cuts[f1.argmax()])
        else:
            cut = int(cuts[cuts < hits[-1]].max(initial=-1))
        above = ranked[cut] if cut >= 0 else 1.0
        below = ranked[cut + 1] if cut + 1 < len(ranked) else 0.0
        thresholds[number] = (above + below) / 2
    return thresholds


class ThresholdedRegression:
    """One logistic regression per label, each with a threshold chosen by F1 on a fifth of the rows."""

    def __init__(self, seed: int):
        self.seed = seed

    def fit(self, features: Any, targets: Array) -> Self:
        """Fit on sparse features (rows, width) and 0 or 1 for each label (rows, labels)."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        order = np.random.default_rng(self.seed).permutation(len(targets))
        held_out, fit_rows = np.split(order, [max(1, round(_HELD_OUT * len(order)))])
        model = OneVsRestClassifier(LogisticRegression(C=10, solver="liblinear", random_state=self.seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, or a label in all rows: not actionable
            probabilities = model.fit(features[fit_rows], targets[fit_rows]).predict_proba(features[held_out])
            self._thresholds = choose_thresholds(probabilities, targets[held_out])
            self._model = model.fit(features, targets)
        return self

    def predict(self, features: Any) -> npt.NDArray[np.uint8]:
        return (self._model.predict_proba(features) >= self._thresholds).astype(np.uint8)


def _f1_scores(both: Array, predicted: Array, targets: Array) -> tuple[Array, Array]:
    """(n,) micro F1, and macro F1 over labels that occur, from counts (n, labels)."""
    total = predicted + targets
    f1 = np.divide(2.0 * both, total, out=np.zeros(total.shape), where=total > 0)
    micro = 2.0 * both.sum(axis=1) / np.maximum(total.sum(axis=1), 1)
    return micro, f1.sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)


def _intervals(
    predicted: Array, targets: Array, seed: int, sampling: Sampling
) -> dict[str, tuple[float, float] | None]:
    """95 % intervals of micro and macro F1 over resampled texts, each with all its copies."""
    group = sampling.group(len(targets))
    texts = int(group.max()) + 1
    counted = np.zeros((texts, 3 * targets.shape[1]), dtype=np.float32)
    np.add.at(counted, group, np.concatenate([predicted & targets, predicted, targets], axis=1))
    generator, scores = np.random.default_rng(seed), []
    for start in range(0, RESAMPLES, block := max(1, _CELLS // texts)):
        draws = generator.multinomial(texts, np.full(texts, 1 / texts), size=min(block, RESAMPLES - start))
        counts = np.split(draws.astype(np.float32) @ counted, 3, axis=1)
        scores.append(np.stack(_f1_scores(*counts)))
    observed = _f1_scores(*(part[None] for part in np.split(counted.sum(axis=0), 3)))
    classes = {"micro_f1": 1, "macro_f1": targets.shape[1]}
    drawn = zip(classes.items(), np.concatenate(scores, axis=1), observed, strict=True)
    return {name: bootstrap_interval(part, float(whole[0]), count, sampling) for (name, count), part, whole in drawn}

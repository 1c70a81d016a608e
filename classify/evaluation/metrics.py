"""The scores of a split, what they are computed from, and intervals of shares; resamples are in `bootstrap`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.console import count_cells, pad_text
from classify.files import write_json

Array = npt.NDArray[Any]

# Metrics that are smaller for better models.
ERRORS = frozenset({"loss", "mse", "mae"})
# Values of `thresholds` in metrics.json: the rows that they were chosen on, besides rows that are not scored.
SCORED_ROWS = "scored rows"
OTHER_FOLDS = "other folds"
# Of the normal distribution, for intervals of 95 %.
NORMAL_QUANTILE = 1.959963984540054
_SHARE = re.compile(
    r"((macro|micro|weighted|hierarchical)_)?f1|((balanced|subset|top_\d+)_)?accuracy|(average_)?precision|recall|jaccard"
)
# Best and worst classes that a long table lists.
_LISTED = 20
# Characters of a class name that the table shows.
_NAME_WIDTH = 28


@dataclass(frozen=True)
class Scores:
    """Metrics of one split by name, 95 % intervals of some of them, and per-class scores if there are classes.

    `metrics` are printed, `details` are for metrics.json, trackers and --metric-for-best-model. `predicted` counts the
    rows predicted as each class. Of several label columns there are the scores of each,
    of a hierarchy those of each level.
    """

    metrics: dict[str, float]
    rows: int
    details: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    predicted: dict[str, int] = field(default_factory=dict)
    columns: dict[str, Scores] = field(default_factory=dict)
    levels: tuple[dict[str, float], ...] = ()

    @property
    def values(self) -> dict[str, float]:
        return {**self.metrics, **self.details}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def as_json(self) -> dict[str, Any]:
        intervals = {f"{name}_interval": pair and list(pair) for name, pair in self.intervals.items()}
        if self.columns:
            columns = {name: one.as_json() for name, one in self.columns.items()}
            return {**self.values, "rows": self.rows, "columns": columns}
        levels = {"levels": list(self.levels)} if self.levels else {}
        return {**self.values, "rows": self.rows, **intervals, **levels, "per_class": self.per_class}


@dataclass(frozen=True)
class Sampling:
    """How scored rows depend on each other, which intervals and tests have to know.

    `texts` (rows,) are equal for duplicate texts: these are right or wrong together, so a text is one draw, not a row.
    The models of `folds` share most of their training rows, so their errors vary together.
    """

    texts: Array | None = None
    folds: int = 0

    @property
    def variance(self) -> float:
        """How much larger the variance of a score over folds is than that over as many independent rows.

        1 + k / (k - 1) for k folds (Nadeau and Bengio, 2003, "Inference for the Generalization Error", section 3).
        """
        return 1.0 if self.folds < 2 else 1.0 + self.folds / (self.folds - 1)

    def take(self, rows: Array) -> Sampling:
        """That of some of the rows."""
        return self if self.texts is None else replace(self, texts=self.texts[rows])

    def group(self, rows: int) -> Array:
        """(rows,) the number of each row's text, from 0."""
        return np.arange(rows) if self.texts is None else np.unique(self.texts, return_inverse=True)[1]


INDEPENDENT = Sampling()


@dataclass(frozen=True)
class Baseline:
    """Metrics on the rows that score the model, the number of training rows, and the seconds for both."""

    metrics: dict[str, Any]
    rows: int
    seconds: float
    name: str
    predicted: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.metrics, "seconds": self.seconds, "rows": self.rows}


@dataclass(frozen=True)
class MajorityBaseline:
    """Metrics of predicting the most frequent label of training for all rows."""

    label: str
    metrics: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"label": self.label, **self.metrics}


def write_metrics(
    folder: Path,
    majority: MajorityBaseline,
    unseen: tuple[Scores, Baseline | None, MajorityBaseline] | None,
    **entries: Any,
) -> None:
    """Write metrics.json of a run or an evaluation, with these `entries`, among them "eval", "test" and "baseline".

    `unseen` are the scores of model and baselines on the rows whose text was not trained on, where these are some.
    """
    most_frequent = majority.as_json()
    if unseen is not None:
        scores, on_new, majority_on_new = unseen
        (entries["test"] or entries["eval"])["unseen"] = scores.as_json()
        most_frequent["unseen"] = majority_on_new.metrics
        if on_new is not None:
            entries["baseline"]["unseen"] = on_new.metrics
    write_json(folder / "metrics.json", {**entries, "majority": most_frequent})


def display_name(name: str) -> str:
    return name.replace("_", " ").replace("f1", "F1").replace("mcc", "MCC").replace("roc auc", "ROC AUC")


def is_share(name: str) -> bool:
    return _SHARE.fullmatch(name) is not None


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """The metrics in a line, without those of several columns."""
    shown = {name: value for name, value in metrics.items() if not isinstance(value, Mapping)}
    return ", ".join(f"{display_name(name)} {value:.4f}" for name, value in shown.items())


def softmax(logits: Array) -> Array:
    """(rows, classes) probabilities, in float64."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))))


def cross_entropy(logits: Array, targets: Array) -> float:
    """The mean negative log-likelihood of the targets; 0 if there are no rows."""
    if not len(targets):
        return 0.0
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    likely = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.mean(likely[np.arange(len(targets)), targets]))


def binary_cross_entropy(logits: Array, targets: Array) -> float:
    """The mean over all elements of logits and targets (0 or 1), of one shape; 0 if there are none."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - logits * targets)) if targets.size else 0.0


def divide(numerator: Array, denominator: Array) -> npt.NDArray[np.float64]:
    """Elementwise; 0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros(denominator.shape), where=denominator > 0)


def label_scores(labels: Sequence[str], right: Array, predicted: Array, targets: Array) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and rows of each label.

    They follow from the rows (labels,) that have it among the predictions, among the targets, and `right`, in both.
    """
    columns = {
        "precision": divide(right, predicted),
        "recall": divide(right, targets),
        "f1": divide(2.0 * right, predicted + targets),
        "support": targets.astype(np.int64),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {label: dict(zip(columns, row, strict=True)) for label, row in zip(labels, rows, strict=True)}


def holm(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The p-values (tests,) corrected for their number (Holm, 1979, Scandinavian Journal of Statistics 6)."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


def wilson_interval(right: Any, rows: Any, z: float = NORMAL_QUANTILE) -> tuple[Array, Array]:
    """Wilson's 95 % score intervals (1927) of `right` correct rows out of `rows`, at least one, elementwise.

    They have a width even if all rows are correct, or none: 20 of 20 give 0.839 to 1. `z` is the quantile of the normal
    distribution of another level.
    """
    share = np.asarray(right) / rows
    middle = share + z**2 / (2 * rows)
    half = z * np.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return np.maximum(0, (middle - half) / (1 + z**2 / rows)), np.minimum(1, (middle + half) / (1 + z**2 / rows))


def share_interval(right: Array, sampling: Sampling = INDEPENDENT) -> tuple[float, float]:
    """The 95 % interval of a share of `right` rows (rows,), see `wilson_interval`.

    Duplicate texts, and folds, count as the fewer independent rows that would vary as much (Kish, 1965, "Survey
    Sampling", section 8.2: the design effect).
    """
    share, rows, group = float(right.mean()), len(right), sampling.group(len(right))
    texts = int(group.max()) + 1
    independent = float(texts)
    if 0 < share < 1 and 1 < texts < rows:
        squares = float((np.bincount(group, right - share) ** 2).sum())
        if squares > 0:  # else all texts are right equally often, of their copies
            independent = min(rows, share * (1 - share) * rows**2 / squares * (texts - 1) / texts)
    independent /= sampling.variance
    low, high = wilson_interval(share * independent, independent)
    return float(low), float(high)


def table(scores: Scores) -> str:
    """Format the per-class table, most frequent class first, then the metrics that have an interval.

    Of more than 40 classes it has the 20 with the highest F1 and the 20 with the lowest. Each of several columns has a
    table.
    """
    if scores.columns:
        return "\n\n".join(f"{name} ({one.rows:,} rows)\n{table(one)}" for name, one in scores.columns.items())
    name_width = min(_NAME_WIDTH, max([8, *map(count_cells, scores.per_class)]))
    lines = [f"{'':{name_width}}  precision  recall      f1   rows"] if scores.per_class else []
    omitted = len(scores.per_class) - 2 * _LISTED
    order = "f1" if omitted > 0 else "support"
    for place, (name, one) in enumerate(sorted(scores.per_class.items(), key=lambda item: -item[1][order])):
        if omitted > 0 and place == _LISTED:
            lines.append(f"... {omitted} classes between (metrics.json has all)")
        if omitted <= 0 or not _LISTED <= place < _LISTED + omitted:
            numbers = f"{one['precision']:9.3f} {one['recall']:7.3f} {one['f1']:7.3f} {one['support']:6d}"
            lines.append(f"{pad_text(name, name_width)}  {numbers}")
    for name, interval in scores.intervals.items():
        between = "" if interval is None else f"  (95 % CI {interval[0]:.3f} to {interval[1]:.3f})"
        lines.append(f"{display_name(name):{name_width}}  {scores[name]:9.3f}{between}")
    for one in scores.levels:
        line = f"accuracy {one['accuracy']:.3f}, macro F1 {one['macro_f1']:.3f}"
        lines.append(f"level {one['level']:.0f} ({one['nodes']:.0f} nodes): {line}")
    return "\n".join(lines)

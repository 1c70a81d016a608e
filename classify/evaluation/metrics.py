"""Metrics of classes and of scores, with 95 % intervals."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.console import count_cells, pad_text

Array = npt.NDArray[Any]

# Metrics that are smaller for better models.
ERRORS = frozenset({"loss", "mse", "mae"})

# Of the normal distribution, for intervals of 95 %.
_NORMAL_QUANTILE = 1.959963984540054
# Resamples of a bootstrap interval, and of that of label sets.
RESAMPLES = 1000
_SHARE = re.compile(
    r"((macro|micro|weighted)_)?f1|((balanced|subset|top_\d+)_)?accuracy|(average_)?precision|recall|jaccard"
)
# Numbers of resamples that are held at a time.
_CELLS = 5_000_000
# Classes above which the share of rows with the right class among the `_TOP` most probable ones is of interest, and
# the percentiles of resampled macro F1 are far too low.
_MANY_CLASSES = 20
# Of the most probable classes, as ImageNet is scored.
_TOP = 5
# Best and worst classes that a long table lists.
_LISTED = 20


@dataclass(frozen=True)
class Scores:
    """Metrics of one split by name, 95 % intervals of some of them, and per-class scores if there are classes.

    `metrics` are printed, `details` are for metrics.json, trackers and --metric-for-best-model. `predicted` counts the
    rows predicted as each class.
    """

    metrics: dict[str, float]
    rows: int
    details: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    predicted: dict[str, int] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        return {**self.metrics, **self.details}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def as_json(self) -> dict[str, Any]:
        intervals = {f"{name}_interval": pair and list(pair) for name, pair in self.intervals.items()}
        return {**self.values, "rows": self.rows, **intervals, "per_class": self.per_class}


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

    def group(self, rows: int) -> Array:
        """(rows,) the number of each row's text, from 0."""
        return np.arange(rows) if self.texts is None else np.unique(self.texts, return_inverse=True)[1]


INDEPENDENT = Sampling()


def display_name(name: str) -> str:
    return name.replace("_", " ").replace("f1", "F1").replace("mcc", "MCC").replace("roc auc", "ROC AUC")


def is_share(name: str) -> bool:
    """Whether a metric of this program is a share, which reads best in percent."""
    return _SHARE.fullmatch(name) is not None


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics in one line, four digits each."""
    return ", ".join(f"{display_name(name)} {value:.4f}" for name, value in metrics.items())


def softmax(logits: Array) -> Array:
    """(rows, classes) probabilities, in float64."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))))


def binary_cross_entropy(logits: Array, targets: Array) -> float:
    """The mean over all elements of logits and targets (0 or 1), of one shape; 0 if there are none."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - logits * targets)) if targets.size else 0.0


def cross_entropy(logits: Array, targets: Array) -> float:
    """The mean negative log-likelihood of the targets; 0 if there are no rows."""
    from scipy.special import log_softmax

    likely = log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(targets)), targets]
    return float(-np.mean(likely)) if len(targets) else 0.0


def regression_metrics(predicted: Array, targets: Array) -> dict[str, float]:
    """Pearson's and Spearman's correlation (0 where one side is constant), mean squared and absolute error."""
    from scipy.stats import rankdata

    predicted, targets = predicted.astype(np.float64), targets.astype(np.float64)
    errors = predicted - targets
    return {
        "pearson": _correlation(predicted, targets),
        "spearman": _correlation(rankdata(predicted), rankdata(targets)),
        "mse": float(np.mean(errors**2)),
        "mae": float(np.mean(np.abs(errors))),
    }


def _correlation(first: Array, second: Array) -> float:
    # Of a constant the mean is rounded, so differences from it need not be 0.
    if not len(first) or not np.ptp(first) or not np.ptp(second):
        return 0.0
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm > 0 else 0.0


def correlation_interval(correlation: float, rows: int, sampling: Sampling = INDEPENDENT) -> tuple[float, float] | None:
    """The 95 % interval of a correlation by Fisher's transformation (1921); None for fewer than 4 texts."""
    rows = int((sampling.group(rows).max(initial=-1) + 1) / sampling.variance)
    if rows < 4 or abs(correlation) >= 1:
        return None
    middle, half = np.arctanh(correlation), _NORMAL_QUANTILE / np.sqrt(rows - 3)
    return float(np.tanh(middle - half)), float(np.tanh(middle + half))


def score_classes(
    logits: Array, targets: Array, labels: Sequence[str], seed: int, sampling: Sampling = INDEPENDENT
) -> Scores:
    """Score logits (rows, classes) against class indices (rows,); `seed` is for the interval of macro F1.

    Balanced accuracy is the mean recall of the classes in `targets`. Two classes also have the F1 of the second one, as
    scikit-learn's f1_score and GLUE's MRPC and QQP; more than 20 have the share of rows whose class is among the five
    most probable ones.
    """
    from sklearn.metrics import f1_score, matthews_corrcoef, precision_recall_fscore_support

    predicted = logits.argmax(axis=1)
    columns = precision_recall_fscore_support(targets, predicted, labels=np.arange(len(labels)), zero_division=0.0)
    per_class = scores_by_class(labels, columns)
    recalls = [scores["recall"] for scores in per_class.values() if scores["support"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all rows of one class: 0
        mcc = float(matthews_corrcoef(targets, predicted))
    details = {
        "weighted_f1": float(f1_score(targets, predicted, average="weighted", zero_division=0.0)),
        "balanced_accuracy": float(np.mean(recalls)) if recalls else 0.0,
        "mcc": mcc,
        "loss": cross_entropy(logits, targets),
    }
    if len(labels) == 2:
        details["f1"] = per_class[labels[1]]["f1"]
    if len(labels) > _MANY_CLASSES:
        best = np.argpartition(-logits, _TOP - 1, axis=1)[:, :_TOP]
        details["top_5_accuracy"] = float((best == targets[:, None]).any(axis=1).mean())
    return Scores(
        classification_metrics(predicted, targets),
        len(targets),
        details,
        {
            "accuracy": share_interval(predicted == targets, sampling),
            "macro_f1": macro_f1_interval(targets, predicted, seed, sampling),
        },
        per_class,
        dict(zip(labels, np.bincount(predicted, minlength=len(labels)).tolist(), strict=True)),
    )


def scores_by_class(labels: Sequence[str], columns: Sequence[Array]) -> dict[str, dict[str, float]]:
    """Each label's numbers of scikit-learn's columns (labels,): precision, recall, F1 and rows."""
    return {
        label: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for label, precision, recall, f1, support in zip(labels, *columns, strict=True)
    }


def class_metrics(classes: int) -> tuple[str, ...]:
    """The names of all metrics of that many classes."""
    names = ["macro_f1", "accuracy", "weighted_f1", "balanced_accuracy", "mcc", "loss"]
    names += ["f1"] * (classes == 2) + ["top_5_accuracy"] * (classes > _MANY_CLASSES)
    return tuple(names)


def classification_metrics(predicted: Array, targets: Array) -> dict[str, float]:
    """Accuracy and macro F1 of class indices (rows,), the mean over the classes in `targets` or `predicted`."""
    from sklearn.metrics import f1_score

    macro_f1 = float(f1_score(targets, predicted, average="macro", zero_division=0.0))
    return {"accuracy": float(np.mean(predicted == targets)), "macro_f1": macro_f1}


def holm(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The p-values (tests,) corrected for their number (Holm, 1979, Scandinavian Journal of Statistics 6)."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


def wilson_interval(right: Any, rows: Any, z: float = _NORMAL_QUANTILE) -> tuple[Array, Array]:
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
        errors = np.bincount(group, right - share)
        independent = min(rows, share * (1 - share) * rows**2 / float((errors**2).sum()) * (texts - 1) / texts)
    independent /= sampling.variance
    low, high = wilson_interval(share * independent, independent)
    return float(low), float(high)


def macro_f1_interval(
    targets: Array, predicted: Array, seed: int, sampling: Sampling = INDEPENDENT
) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of macro F1 (Efron, 1979); None if all resamples score the same.

    That happens if all rows are right, or all wrong: at the edge of its range a bootstrapped quantity has no valid
    interval (Andrews, 2000, Econometrica 68(2)).

    Texts are resampled with all their copies. Those with the same (target, predicted) pairs are exchangeable, so a
    resample is one multinomial draw over the kinds of texts that occur, and the cost hardly depends on the rows.
    """
    from scipy.sparse import csr_array

    cells, cell_of = np.unique(np.stack([targets, predicted]), axis=1, return_inverse=True)
    pairs, classes = cells.shape[1], np.unique(cells)
    kinds, counts = _kinds_of_texts(cell_of.reshape(-1), sampling.group(len(targets)), pairs)
    texts = int(counts.sum())
    # 1 where the target, or the prediction, of a pair is a class.
    of_target, of_predicted = (
        csr_array((np.ones(pairs), (np.arange(pairs), np.searchsorted(classes, row))), shape=(pairs, len(classes)))
        for row in cells
    )
    hit = (cells[0] == cells[1]).astype(np.float64)

    def mean_f1(rows: Array) -> Array:
        """(n,) macro F1 of how many rows have each pair (n, pairs)."""
        total, both = rows @ (of_target + of_predicted), (rows * hit) @ of_target
        f1 = np.divide(2.0 * both, total, out=np.zeros(total.shape), where=total > 0)
        return np.asarray(f1.sum(axis=1) / (total > 0).sum(axis=1))

    generator, block, scores = np.random.default_rng(seed), max(1, _CELLS // max(pairs, len(counts))), []
    for start in range(0, RESAMPLES, block):
        draws = generator.multinomial(texts, counts / texts, size=min(block, RESAMPLES - start))
        scores.append(mean_f1(draws @ kinds))
    observed = float(mean_f1((counts @ kinds)[None])[0])
    return bootstrap_interval(np.concatenate(scores), observed, len(classes), sampling)


def _kinds_of_texts(cells: Array, texts: Array, count: int) -> tuple[Any, Array]:
    """How often each of `count` cells is in each kind of text (kinds, count), and the texts of each kind.

    `cells` (rows,) and `texts` (rows,) are numbers.
    """
    from scipy.sparse import csr_array, eye_array

    if len(texts) == texts.max() + 1:
        return eye_array(count, format="csr"), np.bincount(cells, minlength=count)
    order = np.lexsort((cells, texts))
    parts = np.split(cells[order], np.flatnonzero(np.diff(texts[order])) + 1)
    kinds = Counter(tuple(part.tolist()) for part in parts)
    sizes = np.array([len(kind) for kind in kinds])
    columns = np.concatenate([np.array(kind) for kind in kinds])
    rows = np.repeat(np.arange(len(kinds)), sizes)
    matrix = csr_array((np.ones(len(columns)), (rows, columns)), shape=(len(kinds), count))
    return matrix, np.array(list(kinds.values()))


def bootstrap_interval(
    scores: Array, observed: float, classes: int, sampling: Sampling = INDEPENDENT
) -> tuple[float, float] | None:
    """The 95 % interval from resampled scores; None if all are the same.

    It is that of percentiles, of many classes the basic one (Davison and Hinkley, 1997, section 5.2): macro F1 of few
    rows a class is too low, and that of resamples once more. That of folds is wider, see `Sampling.variance`.
    """
    low, high = np.percentile(scores, [2.5, 97.5])
    if low == high:
        return None
    if classes > _MANY_CLASSES:
        low, high = 2 * observed - high, 2 * observed - low
    wider = sampling.variance**0.5
    low, high = (observed + wider * (end - observed) if wider > 1 else end for end in (low, high))
    return max(0.0, float(low)), min(1.0, float(high))


def table(scores: Scores, width: int = 28) -> str:
    """Format the per-class table, most frequent class first, then the metrics that have an interval.

    Of more than 40 classes it has the 20 with the highest F1 and the 20 with the lowest.
    """
    name_width = min(width, max([8, *map(count_cells, scores.per_class)]))
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
    return "\n".join(lines)

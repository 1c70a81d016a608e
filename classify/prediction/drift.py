"""Compare a new table with the rows that scored a run: has what the model reads changed?

Each property is tested by itself (Rabanser et al., 2019, "Failing Loudly"), and a classifier tells the two tables
apart by their words (Lopez-Paz and Oquab, 2017, "Revisiting Classifier Two-Sample Tests").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classify import tasks
from classify.data.split_record import SplitRecord
from classify.errors import InputError
from classify.evaluation.metrics import holm
from classify.evaluation.scored_rows import ScoredRows
from classify.files import read_json
from classify.modeling.coverage import count_unknown
from classify.prediction.predictor import Predictor
from classify.tables.roles import TextColumns
from classify.tables.table import EMPTY, Table, TextHashes
from classify.tasks.columns import read_predictions

# Rows of each table that the classifier sees at most, and at least.
_ROWS = 2_000
_FEWEST = 4
# New texts that are shown as most unlike the run's.
_SHOWN = 3
_FEATURES = 20_000
_PERMUTATIONS = 2_000
# Share of false alarms, over all properties together.
_LEVEL = 0.05

Numbers = npt.NDArray[np.float64]


class Properties(NamedTuple):
    """What two tables are compared by: texts, numbers (rows,) by name, and predicted labels by label column."""

    texts: Sequence[str]
    numbers: dict[str, Numbers]
    labels: dict[str, list[str]]


@dataclass(frozen=True)
class Change:
    """A property of the run's rows and of the new ones in words, and the p-value of their being alike."""

    name: str
    before: str
    now: str
    p: float
    clear: bool = False


@dataclass(frozen=True)
class Drift:
    """The changes of all properties, and the AUROC of the classifier, 0.5 where it cannot tell the tables apart.

    `rows` counts the compared rows of the run and of the new table, of which `left_out` are not compared. `unlike` are
    the new texts that the classifier is most certain of.
    """

    rows: tuple[int, int]
    changes: tuple[Change, ...]
    auroc: float
    unlike: tuple[str, ...]
    left_out: int = 0


def compare_with_run(predictor: Predictor, table: Table, texts: TextColumns) -> Drift:
    """Compare a table with the rows that scored a run.

    In both, only texts count that occur once in the two tables together. With the same rule for both, neither replies
    that recur nor the size of a table look like a change, and no row that the model was trained on counts. Where models
    of folds predicted the run's rows, predictions are not compared. A collective. Raises InputError where the folder
    lacks the rows, or no row is left.
    """
    folder = Path(predictor.folder)
    try:
        scored = ScoredRows.read(folder)
        written = predictor.texts.derive(read_predictions(folder))
        metrics = read_json(folder / "metrics.json")
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--model {folder}: the rows that scored it cannot be read ({error}).") from None
    hashes = table.text_hashes(texts.whole)
    of_run = SplitRecord.find(predictor.folder).find_parts(hashes) >= 0
    rows = _occur_once(hashes, of_run | np.isin(hashes, scored.hashes))
    seen = np.isin(scored.hashes, hashes)
    kept = _occur_once(scored.hashes, seen if scored.trained is None else seen | scored.trained)
    if not len(rows) or not len(kept):
        which = "the run's scored rows have" if len(rows) else f"{table.path} has"
        raise InputError(f"--data {table.path}: {which} no text that occurs once in both tables together.")
    earlier = current = None
    if not (metrics["test"] or metrics["eval"]).get("folds"):
        earlier, (current, _) = scored.logits[kept], predictor.task.split(predictor.table_outputs(table, texts, rows))
    before = _measure(predictor, written.take(predictor.texts.whole, kept), earlier)
    now = _measure(predictor, table.take(texts.whole, rows), current)
    return replace(find_drift(before, now, seed=0), left_out=len(table) - len(rows))


def _occur_once(hashes: TextHashes, left_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    _, first, times = np.unique(hashes, return_index=True, return_counts=True)
    rows = np.sort(first[times == 1])
    return rows[~(left_out | (hashes == EMPTY))[rows]]


def _measure(predictor: Predictor, texts: Sequence[str], logits: npt.NDArray[np.float32] | None) -> Properties:
    """The properties of texts and, with `logits`, of their predictions."""
    labels: dict[str, list[str]] = {}
    unknown, total = count_unknown(predictor.tokenize(texts), predictor.tokenizer)
    numbers = {
        "characters (median)": np.array([len(text) for text in texts], dtype=np.float64),
        "tokens unknown to the model (mean)": unknown / np.maximum(1, total),
    }
    task = predictor.task
    parts = [(f" of {one.name}", one.task, one.outputs) for one in task.columns] or [("", task, slice(None))]
    for name, part, outputs in parts:
        if logits is None:
            break
        probabilities = part.answers.probabilities(logits[:, outputs])
        if part.answers.has_labels:
            numbers[f"certainty{name} (median)"] = part.answers.certainty(probabilities)
        else:
            numbers[f"predicted score{name} (median)"] = probabilities[:, 0]
        if part.answers.has_confidence:
            labels[name] = part.targets.decode(part.answers.decide(probabilities))
    return Properties(texts, numbers, labels)


def find_drift(before: Properties, now: Properties, seed: int) -> Drift:
    """Compare two tables; the p-values are corrected for the number of properties."""
    changes = [_compare_numbers(name, before.numbers[name], now.numbers[name]) for name in before.numbers]
    changes += [_compare_labels(name, labels, now.labels[name], seed) for name, labels in before.labels.items()]
    auroc, p, unlike = _tell_apart(before.texts, now.texts, seed)
    changes.append(Change("distinguishable by words (AUROC)", "0.500", f"{auroc:.3f}", p))
    corrected = holm(np.array([change.p for change in changes])).tolist()
    changes = [replace(change, p=p, clear=p < _LEVEL) for change, p in zip(changes, corrected, strict=True)]
    return Drift((len(before.texts), len(now.texts)), tuple(changes), auroc, unlike)


def _compare_numbers(name: str, before: Numbers, now: Numbers) -> Change:
    """Compare distributions by the test of Kolmogorov and Smirnov."""
    from scipy.stats import ks_2samp

    middle = np.mean if name.endswith("(mean)") else np.median
    p = float(ks_2samp(before, now, method="asymp").pvalue)
    return Change(name, f"{middle(before):.3g}", f"{middle(now):.3g}", p)


def _compare_labels(column: str, before: list[str], now: list[str], seed: int) -> Change:
    """Compare the shares of predicted labels, behind whose name the `column` is said; name the one that changed most.

    The p-value is the share of permuted tables whose chi-square is as large: with many or rare labels the distribution
    of chi-square itself alarms falsely.
    """
    values, places = np.unique(before + now, return_inverse=True)
    counts = np.stack([np.bincount(part, minlength=len(values)) for part in np.split(places, [len(before)])])
    shares = counts / counts.sum(axis=1, keepdims=True)
    most = int(np.abs(shares[1] - shares[0]).argmax())
    total = counts.sum(axis=0)
    expected = total * len(before) / total.sum()
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(total, len(before), size=_PERMUTATIONS)
    # With both margins fixed, chi-square is this but for a factor.
    observed, permuted = (((first - expected) ** 2 / expected).sum(axis=-1) for first in (counts[0], drawn))
    p = (1 + (permuted >= observed * (1 - 1e-9)).sum()) / (1 + _PERMUTATIONS)
    name = f"share of {str(values[most])!r}{column}"
    return Change(name, f"{shares[0, most]:.3f}", f"{shares[1, most]:.3f}", float(p))


def _tell_apart(before: Sequence[str], now: Sequence[str], seed: int) -> tuple[float, float, tuple[str, ...]]:
    """The AUROC of a classifier of the two tables, its p-value, and the new texts most unlike the others.

    A logistic regression on the baseline's features is trained on one half of the rows; the p-value is that of the test
    of Mann and Whitney on the other half. Scores of cross-validation would not be independent.
    """
    from scipy.stats import mannwhitneyu
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline

    if min(len(before), len(now)) < _FEWEST:
        return 0.5, 1.0, ()
    draw = np.random.default_rng(seed)
    parts = [[part[row] for row in np.sort(draw.permutation(len(part))[:_ROWS]).tolist()] for part in (before, now)]
    texts = parts[0] + parts[1]
    is_new = np.repeat([False, True], list(map(len, parts)))
    model = make_pipeline(tasks.baseline.make_features(texts, _FEATURES), LogisticRegression(C=1.0))
    learned, tested = train_test_split(np.arange(len(texts)), test_size=0.5, stratify=is_new, random_state=seed)
    tasks.heads.one_blas_thread(model.fit)([texts[row] for row in learned.tolist()], is_new[learned])
    scores, positive = model.decision_function([texts[row] for row in tested.tolist()]), is_new[tested]
    test = mannwhitneyu(scores[positive], scores[~positive], alternative="greater")
    auroc = float(test.statistic / (positive.sum() * (~positive).sum()))
    unlike = tested[positive][np.argsort(-scores[positive], kind="stable")[:_SHOWN]]
    return auroc, float(test.pvalue), tuple(texts[row] for row in unlike.tolist())

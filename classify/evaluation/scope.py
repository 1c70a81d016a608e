"""Tell texts that belong to none of the classes: by the nearest training text and the confidence.

The similarity is that of the output layer's inputs (Sun et al., 2022, "Out-of-Distribution Detection with Deep Nearest
Neighbors"), the confidence the largest probability (Hendrycks and Gimpel, 2017). docs/open-set.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.metrics import softmax

FILE = "in_scope.safetensors"
OUTSIDE_FILE = "out_of_scope.csv"
COLUMN = "in_scope"
# The place of the column: after the label and its confidence.
_PLACE = 2
# Share of held-out texts of the classes that are above the default threshold.
_KEPT = 0.95
# Classes below which the confidence counts nothing: of two, one alone is left where the other is left out.
_FEWEST = 3
# Classes from which on the confidence counts as much as the similarity.
_MANY = 50
# Training texts to compare with.
EXAMPLES = 10_000
# Texts that are compared at once.
_BLOCK = 1_024
_SMALLEST = 1e-9

Array = npt.NDArray[Any]


class Held(NamedTuple):
    """Rows that the model was not trained on: `features` (rows, width) and calibrated `logits` (rows, classes)."""

    features: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]

    def take(self, rows: Array) -> Held:
        return Held(self.features[rows], self.logits[rows])


@dataclass(frozen=True)
class Scope:
    """The probability that a text belongs to one of the classes; below `threshold` `label` is what is predicted.

    It is the probability among texts of which half do. `examples` (n, width) are features of training texts, of length
    1; `weights` (2,) and `bias` belong to a logistic regression on the largest similarity and the log odds of the
    largest probability.
    """

    label: str
    threshold: float
    examples: npt.NDArray[np.float16]
    weights: npt.NDArray[np.float64]
    bias: float

    @classmethod
    def fit(
        cls, label: str, examples: Array, targets: Array, inside: Held, inside_targets: Array, outside: Held | None
    ) -> Self:
        """Fit on held-out rows of the classes and on rows `outside` of them, when training ends.

        Without such rows each class is left out in turn: its rows are outside of the others. How much the confidence
        is worth follows from the number of classes. The threshold keeps 95 % of the rows `inside`.
        """
        from sklearn.linear_model import LogisticRegression

        examples = _normalize(examples)
        own, others = _measure(examples, inside), []
        if outside is not None:
            others.append(_measure(examples, outside))
        else:
            for number in np.unique(inside_targets).tolist():
                left_out, rest = inside.take(np.flatnonzero(inside_targets == number)), targets != number
                if rest.any():
                    left_out.logits[:, number] = -np.inf
                    others.append(_measure(examples[rest], left_out))
        measures = np.concatenate([own, *others])
        classes = inside.logits.shape[1]
        mixture = np.array([[1.0], [0.0 if classes < _FEWEST else min(1.0, classes / _MANY)]])
        middle, scale = own.mean(axis=0), own.std(axis=0) + _SMALLEST
        is_inside = np.arange(len(measures)) < len(own)
        model = LogisticRegression(class_weight="balanced").fit((measures - middle) / scale @ mixture, is_inside)
        # Where the rows do not show it, more similar is more probable all the same.
        slope = np.where(model.coef_[0] > 0, model.coef_[0], 1.0)
        weights = mixture @ slope / scale
        fitted = cls(label, 0.0, examples.astype(np.float16), weights, float(model.intercept_[0] - weights @ middle))
        kept = np.quantile(fitted.probabilities(*inside), 1 - _KEPT, method="lower")
        return replace(fitted, threshold=float(kept))

    def probabilities(self, features: Array, logits: Array) -> npt.NDArray[np.float32]:
        """The probability (rows,) that each row belongs to a class."""
        odds = _measure(self.examples.astype(np.float32), Held(features, logits)) @ self.weights + self.bias
        return (1 / (1 + np.exp(-odds))).astype(np.float32)

    def holds(self, in_scope: Array) -> npt.NDArray[np.bool_]:
        """Whether each of these probabilities (rows,) reaches the threshold, in double precision."""
        return np.asarray(in_scope.astype(np.float64) >= self.threshold)

    def names(self, names: list[str]) -> list[str]:
        """The names of a task's columns with that of the probability."""
        return [*names[:_PLACE], COLUMN, *names[_PLACE:]]

    def mark(self, fields: Iterable[list[str]], in_scope: Array, digits: str) -> Iterator[list[str]]:
        """Yield a task's cells with the probability; below the threshold with `label` and its own probability."""
        for cells, share, holds in zip(fields, in_scope.tolist(), self.holds(in_scope).tolist(), strict=True):
            own = cells[:_PLACE] if holds else [self.label, f"{1 - share:{digits}}"]
            yield [*own, f"{share:{digits}}", *cells[_PLACE:]]

    def describe(self, inside: Array, right: Array, outside: Array, *, fitted: bool = False) -> dict[str, Any]:
        """The entry of metrics.json, from the probabilities of scored rows inside and outside of the classes.

        `right` (rows inside,) are those whose class is predicted correctly. `fitted`: the threshold was set on the rows
        inside.
        """
        accepted = self.holds(inside)
        entry = {
            "label": self.label,
            "threshold": self.threshold,
            "rows": len(inside),
            "accepted": float(accepted.mean()),
            "accuracy": float((accepted & right).mean()),
            "out_of_scope_rows": len(outside),
            **({"threshold_set_on": "scored rows"} if fitted else {}),
        }
        if len(outside):
            from sklearn.metrics import roc_auc_score

            is_inside = np.repeat([1, 0], [len(inside), len(outside)])
            entry["recall"] = float((~self.holds(outside)).mean())
            entry["auroc"] = float(roc_auc_score(is_inside, np.concatenate([inside, outside])))
        return entry

    def as_settings(self) -> dict[str, Any]:
        entry = {"label": self.label, "threshold": self.threshold, "score": "nearest training text, confidence"}
        return {COLUMN: entry}

    def write(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        save_file({"examples": self.examples, "weights": np.append(self.weights, self.bias)}, folder / FILE)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> Self | None:
        """The scope of a result folder with these settings; None where it was trained without one.

        Raises InputError where its file was not copied with the others.
        """
        if COLUMN not in settings:
            return None
        from safetensors.numpy import load_file

        entry = settings[COLUMN]
        if not (folder / FILE).is_file():
            raise InputError(
                f"{folder}: {FILE} is missing; {entry['label']!r} cannot be recognized without it. Copy it from the "
                f'trained folder, or delete the entry "{COLUMN}" of classify.json to predict the others.'
            )
        stored = load_file(folder / FILE)
        *weights, bias = stored["weights"].tolist()
        return cls(entry["label"], entry["threshold"], stored["examples"], np.array(weights), bias)


def summarize(entry: dict[str, Any]) -> str:
    """The entry of metrics.json as a line."""
    rows, outside = entry["rows"], entry["out_of_scope_rows"]
    chosen = ", on which the threshold was set," if "threshold_set_on" in entry else ""
    accepted, right = (f"{100 * entry[name]:.1f} %" for name in ("accepted", "accuracy"))
    parts = [f"{accepted} of {rows:,} texts{chosen} accepted, {right} accepted and right"]
    if outside:
        parts.append(f"{100 * entry['recall']:.1f} % of {outside:,} {entry['label']!r} rows rejected")
        parts.append(f"AUROC {entry['auroc']:.3f}")
    return f"in scope: {'; '.join(parts)} (from {entry['threshold']:.2f}; --min-in-scope of classify predict)"


def _normalize(features: Array) -> npt.NDArray[np.float32]:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), _SMALLEST)


def _measure(examples: npt.NDArray[np.float32], held: Held) -> npt.NDArray[np.float64]:
    """(rows, 2) the largest cosine similarity with an example, and the log odds of the largest probability."""
    features, similarity = _normalize(held.features), np.empty(len(held.features))
    for start in range(0, len(features), _BLOCK):
        similarity[start : start + _BLOCK] = (features[start : start + _BLOCK] @ examples.T).max(axis=1)
    confidence = softmax(held.logits).max(axis=1).clip(_SMALLEST, 1 - _SMALLEST)
    return np.column_stack([similarity, np.log(confidence) - np.log1p(-confidence)])

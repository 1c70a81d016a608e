"""Tell texts that belong to none of the classes: by the nearest training text and the confidence.

The similarity is that of the output layer's inputs (Sun et al., 2022, "Out-of-Distribution Detection with Deep Nearest
Neighbors"), the confidence the largest probability (Hendrycks and Gimpel, 2017). docs/open-set.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.metrics import softmax

FILE, OUTSIDE_FILE = "in_scope.safetensors", "out_of_scope.csv"
COLUMN = "in_scope"
# The place of the column: after the label and its confidence.
_PLACE = 2
# Share of held-out texts of the classes that are above the default threshold.
_KEPT = 0.95
# Classes below which the confidence counts nothing: of two, one alone is left where the other is left out. From `_MANY`
# classes on it counts as much as the similarity.
_FEWEST, _MANY = 3, 50
# Training texts to compare with, and texts compared at once.
EXAMPLES, _BLOCK = 10_000, 1_024
_SMALLEST = 1e-9

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Held:
    """Rows that the model was not trained on: `features` (rows, width) and calibrated `logits` (rows, classes)."""

    features: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]

    def take(self, rows: Array) -> Held:
        return Held(self.features[rows], self.logits[rows])

    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return self.features, self.logits


@dataclass(frozen=True)
class Scope:
    """The probability that a text belongs to one of the classes; below `threshold` `label` is what is predicted.

    The probability is that where half of the texts do.

    `examples` (n, width) are features of training texts, of length 1; `weights` (2,) and `bias` those of a logistic
    regression on the largest similarity and the log odds of the largest probability.
    """

    label: str
    threshold: float
    examples: npt.NDArray[np.float16]
    weights: npt.NDArray[np.float64]
    bias: float

    @classmethod
    def fit(
        cls,
        label: str,
        examples: npt.NDArray[np.float32],
        targets: npt.NDArray[np.int64],
        inside: Held,
        inside_targets: npt.NDArray[np.int64],
        outside: Held | None,
    ) -> Self:
        """Fit on held-out rows of the classes and on rows `outside` of them.

        Without such rows each class is left out in turn: its rows are outside of the others. How much the confidence
        is worth follows from the number of classes. The threshold keeps 95 % of the rows `inside`.
        """
        from sklearn.linear_model import LogisticRegression

        examples = _normalize(examples)
        parts = [(_measure(examples, inside), 1)]
        if outside is not None:
            parts.append((_measure(examples, outside), 0))
        else:
            for number in np.unique(inside_targets).tolist():
                rows, others = np.flatnonzero(inside_targets == number), targets != number
                if others.any():
                    left_out = inside.take(rows)
                    left_out.logits[:, number] = -np.inf
                    parts.append((_measure(examples[others], left_out), 0))
        measures = np.concatenate([part for part, _ in parts])
        is_inside = np.repeat([kind for _, kind in parts], [len(part) for part, _ in parts])
        classes = inside.logits.shape[1]
        mixture = np.array([[1.0], [0.0 if classes < _FEWEST else min(1.0, classes / _MANY)]])
        middle, scale = parts[0][0].mean(axis=0), parts[0][0].std(axis=0) + _SMALLEST
        model = LogisticRegression(class_weight="balanced").fit((measures - middle) / scale @ mixture, is_inside)
        # Where the rows do not show it, more similar is more probable all the same.
        slope = np.where(model.coef_[0] > 0, model.coef_[0], 1.0)
        weights = mixture @ slope / scale
        fitted = cls(label, 0.0, examples.astype(np.float16), weights, float(model.intercept_[0] - weights @ middle))
        kept = np.quantile(fitted.probabilities(inside.features, inside.logits), 1 - _KEPT, method="lower")
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
        """Yield a task's cells with the probability; below the threshold with `label` and its own."""
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
        """The entry of classify.json."""
        return {
            COLUMN: {"label": self.label, "threshold": self.threshold, "score": "nearest training text, confidence"}
        }

    def write(self, folder: Path) -> None:
        """Write the file of a result folder."""
        from safetensors.numpy import save_file

        weights = np.append(self.weights, self.bias)
        save_file({"examples": self.examples, "weights": weights}, folder / FILE)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> Self | None:
        """Read that of a result folder with these settings; None where it was trained without one.

        Raises InputError where its file was not copied with the others.
        """
        if COLUMN not in settings:
            return None
        from safetensors.numpy import load_file

        if not (folder / FILE).is_file():
            raise InputError(
                f"{folder}: {FILE} is missing; {settings[COLUMN]['label']!r} cannot be recognized without it. Copy it "
                f'from the trained folder, or delete the entry "{COLUMN}" of classify.json to predict the others.'
            )
        stored, entry = load_file(folder / FILE), settings[COLUMN]
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

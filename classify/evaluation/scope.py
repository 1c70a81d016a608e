"""Tell texts that belong to none of the classes: by the nearest training text and the confidence.

The similarity is that of the output layer's inputs (Sun et al., 2022, "Out-of-Distribution Detection with Deep Nearest
Neighbors"), the confidence the largest probability (Hendrycks and Gimpel, 2017). docs/open-set.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from classify.errors import InputError
from classify.evaluation.metrics import softmax

FILE = "in_scope.safetensors"
OUTSIDE_FILE = "out_of_scope.csv"
COLUMN = "in_scope"
# Texts that are compared at once.
_BLOCK = 1_024
SMALLEST = 1e-9

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
    1; `weights` (2,) and `bias` belong to a logistic regression on what `measure` gives. `training.open_set` fits it.
    """

    label: str
    threshold: float
    examples: npt.NDArray[np.float16]
    weights: npt.NDArray[np.float64]
    bias: float

    def probabilities(self, features: Array, logits: Array) -> npt.NDArray[np.float32]:
        """The probability (rows,) that each row belongs to a class."""
        odds = measure(self.examples.astype(np.float32), Held(features, logits)) @ self.weights + self.bias
        return (1 / (1 + np.exp(-odds))).astype(np.float32)

    def holds(self, in_scope: Array) -> npt.NDArray[np.bool_]:
        """Whether each of these probabilities (rows,) reaches the threshold, in double precision."""
        return np.asarray(in_scope.astype(np.float64) >= self.threshold)

    def mark(self, fields: Iterable[list[str]], in_scope: Array, digits: str) -> Iterator[list[str]]:
        """Yield labels and confidences with the probability; below the threshold `label` and its own confidence."""
        for cells, share, holds in zip(fields, in_scope.tolist(), self.holds(in_scope).tolist(), strict=True):
            yield [*(cells if holds else [self.label, f"{1 - share:{digits}}"]), f"{share:{digits}}"]

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

            is_inside = np.repeat([True, False], [len(inside), len(outside)])
            entry["recall"] = float((~self.holds(outside)).mean())
            entry["auroc"] = float(roc_auc_score(is_inside, np.concatenate([inside, outside])))
        return entry

    def as_settings(self) -> dict[str, Any]:
        entry = {"label": self.label, "threshold": self.threshold, "score": "nearest training text, confidence"}
        return {COLUMN: entry}

    def write(self, folder: Path) -> None:
        save_file({"examples": self.examples, "weights": np.append(self.weights, self.bias)}, folder / FILE)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> Self | None:
        """The scope of a result folder with these settings; None where it was trained without one.

        Raises InputError where its file was not copied with the others.
        """
        if COLUMN not in settings:
            return None
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
    chosen = ", on which the threshold was set," if "threshold_set_on" in entry else ""
    accepted, right = (f"{100 * entry[name]:.1f} %" for name in ("accepted", "accuracy"))
    line = f"{accepted} of {entry['rows']:,} texts{chosen} accepted, {right} accepted and right"
    if outside := entry["out_of_scope_rows"]:
        line += f"; {100 * entry['recall']:.1f} % of {outside:,} {entry['label']!r} rows rejected"
        line += f"; AUROC {entry['auroc']:.3f}"
    return f"in scope: {line} (from {entry['threshold']:.2f}; --min-in-scope of classify predict)"


def normalize(features: Array) -> npt.NDArray[np.float32]:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), SMALLEST)


def measure(examples: npt.NDArray[np.float32], held: Held) -> npt.NDArray[np.float64]:
    """(rows, 2) the largest cosine similarity with an example, and the log odds of the largest probability."""
    features, similarity = normalize(held.features), np.empty(len(held.features))
    for start in range(0, len(features), _BLOCK):
        similarity[start : start + _BLOCK] = (features[start : start + _BLOCK] @ examples.T).max(axis=1)
    confidence = softmax(held.logits).max(axis=1).clip(SMALLEST, 1 - SMALLEST)
    return np.column_stack([similarity, np.log(confidence) - np.log1p(-confidence)])

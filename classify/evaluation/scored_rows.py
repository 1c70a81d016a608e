"""evaluation.parquet: the rows that scored a model, in the order of predictions.csv, for reports and comparisons.

Labels are as the model was trained on them: merged, renamed and encoded, which predictions.csv does not record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.files import atomic_path

FILE = "evaluation.parquet"


@dataclass(frozen=True)
class ScoredRows:
    """Hashes (rows,) of the texts, targets (rows, ...), calibrated logits (rows, outputs) and predictions.

    `predicted` are the model's predictions (None in files of earlier versions), `baseline` those of the baseline, if
    any; both have the form of the targets.
    """

    hashes: npt.NDArray[np.uint64]
    targets: npt.NDArray[Any]
    logits: npt.NDArray[np.float32]
    predicted: npt.NDArray[Any] | None
    baseline: npt.NDArray[Any] | None

    def write(self, folder: Path) -> None:
        """Write the file into a result folder."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"text_hash": self.hashes, "target": self.targets, "logits": self.logits}
        for name, values in {"predicted": self.predicted, "baseline": self.baseline}.items():
            if values is not None:
                columns[name] = values.astype(self.targets.dtype)
        arrays = {
            name: array if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(array.ravel(), array.shape[1])
            for name, array in columns.items()
        }
        with atomic_path(folder / FILE) as path:
            content = pa.BufferOutputStream()  # Arrow would keep a file open that a full disk cuts off
            pq.write_table(pa.table(arrays), content, compression="zstd")
            path.write_bytes(content.getvalue())

    @classmethod
    def read(cls, folder: Path) -> ScoredRows:
        """Read the file of a result folder. Raises OSError or ValueError where there is none, or it is damaged."""
        import pyarrow.parquet as pq

        table = pq.read_table(folder / FILE)

        def values(name: str) -> Any:
            if name not in table.column_names:
                return None
            column = table.column(name).combine_chunks()
            if hasattr(column.type, "list_size"):
                return np.asarray(column.flatten()).reshape(len(column), -1)
            return np.asarray(column)

        names = ("text_hash", "target", "logits", "predicted", "baseline")
        return cls(*map(values, names))


def worst_rows(scores: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.int64]:
    """Return the rows with the lowest of `scores` (rows,), lowest first, at most `most`; none that is fully right.

    Scores are shares, of which the best is 1, or negative errors, of which the best is 0 (as -0.0).
    """
    first = np.argsort(scores, kind="stable")[:most]
    best = 0.0 if np.signbit(scores).any() else 1.0
    return first[scores[first] < best]


def confident_errors(
    probabilities: npt.NDArray[np.float64], targets: npt.NDArray[np.int64], most: int
) -> npt.NDArray[np.int64]:
    """Return the rows whose most probable class is wrong, the most confident first; at most `most`."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != targets)
    return wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:most]


# p-value below which two models are called different.
SURE = 0.05


@dataclass(frozen=True)
class SignTest:
    """Rows on which the first of two models is better, rows on which the second is, and the two-sided p-value."""

    better: int
    worse: int
    p: float


def show_p(p: float) -> str:
    """Return a p-value in words."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def sign_test(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> SignTest:
    """Compare scores (rows,) of two models row by row, larger is better, by the exact sign test.

    For scores that are right or wrong it is McNemar's test (1947, Psychometrika 12) in its exact form.
    """
    from scipy.stats import binomtest

    better, worse = int((first > second).sum()), int((first < second).sum())
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return SignTest(better, worse, p)

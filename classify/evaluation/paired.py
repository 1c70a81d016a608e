"""Compare two models on the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True)
class SignTest:
    """Rows on which the first of two models is better, rows on which the second is, and the two-sided p-value."""

    better: int
    worse: int
    p: float


def sign_test(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> SignTest:
    """Compare scores (rows,) of two models row by row, larger is better, by the exact sign test.

    For scores that are right or wrong it is McNemar's test (1947, Psychometrika 12) in its exact form.
    """
    from scipy.stats import binomtest

    better, worse = int((first > second).sum()), int((first < second).sum())
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return SignTest(better, worse, p)

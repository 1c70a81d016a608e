"""Find what a required precision, or coverage, needs, on the held-out rows of a run."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import numpy as np

from classify.errors import InputError
from classify.evaluation.scored_rows import FILE, ScoredRows, Threshold, find_limit, find_threshold
from classify.tasks.base import Task


def find_confidence(folder: str, task: Task, precision: float) -> Threshold:
    """Find the confidence at which a run's held-out predictions reach a precision. Raises InputError if none does."""
    if not task.answers.has_confidence:
        raise InputError("--min-precision: predictions of this model have no single confidence; drop the flag.")
    rows = _read_rows(folder, "--min-precision")
    probabilities = task.answers.probabilities(rows.logits)
    confidence = probabilities.max(axis=1)
    right = (task.answers.decide(probabilities) == rows.targets).astype(np.float64)
    threshold = find_threshold(confidence, right, precision)
    if threshold is not None:
        return threshold
    candidates = (find_threshold(confidence, right, least / 100) for least in range(99, 0, -1))
    best = next(filter(None, candidates), None)
    reached = "none" if best is None else f"{best.precision:g} for {100 * best.accepted / best.rows:.0f} % of the rows"
    raise InputError(
        f"--min-precision {precision:g}: {len(confidence)} held-out rows of {folder} do not show it for any "
        f"confidence (a lower bound that holds in 95 of 100 cases). The highest is {reached}; give that, "
        f"--min-confidence, or score more rows: classify train --like {shlex.quote(folder)} --folds 5."
    )


def find_set_limit(folder: str, task: Task, coverage: float) -> tuple[float, int]:
    """Find the limit of sets that hold the right answer in a share `coverage` of rows; count the rows that show it.

    Raises InputError where the task has no sets, or there are too few rows.
    """
    if not task.answers.set_columns:
        raise InputError("--coverage: the model predicts several labels a row, which are a set already; drop the flag.")
    rows = _read_rows(folder, "--coverage")
    misfit = task.answers.misfit(task.answers.probabilities(rows.logits), rows.targets)
    count, limit = len(misfit), find_limit(misfit, coverage)
    if limit is None:
        most = math.floor(1e4 * count / (count + 1)) / 1e4
        raise InputError(
            f"--coverage {coverage:g}: {count} held-out rows of {folder} show at most {most}; give that or less."
        )
    return limit, count


def _read_rows(folder: str, flag: str) -> ScoredRows:
    """The held-out rows of a run, one of each text, that it was not trained on. Raises InputError."""
    try:
        rows = ScoredRows.read(Path(folder))
        return rows.take(rows.independent)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{flag}: {folder}/{FILE} cannot be read ({error}); drop the flag.") from None

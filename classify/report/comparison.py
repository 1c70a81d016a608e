"""Compare result folders on the rows that all of them scored, row by row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from classify.console import align_columns
from classify.errors import InputError
from classify.evaluation.metrics import display_name, holm
from classify.evaluation.scored_rows import SURE, SignTest, show_p, sign_test
from classify.report.environment import count
from classify.report.result import Result


@dataclass(frozen=True)
class ComparedRun:
    """A folder's scores on the shared rows, and the paired test against the first folder; None for the first.

    The test's p-value is corrected for the number of folders. An evaluation may hold `trained_rows`, which its model
    was trained on.
    """

    folder: str
    metrics: dict[str, float]
    paired: SignTest | None
    trained_rows: int = 0


@dataclass(frozen=True)
class Comparison:
    """Runs compared on `rows` shared rows; `relabelled` ones more, which all scored, have different labels."""

    rows: int
    relabelled: int
    runs: tuple[ComparedRun, ...]

    def lines(self) -> list[str]:
        """The comparison as a table for a terminal, with notes on models that may look too good."""
        first, *others = self.runs
        rows = [["run", *map(display_name, first.metrics), f"against {first.folder}"]]
        rows += [[run.folder, *(f"{value:.3f}" for value in run.metrics.values()), verdict(run)] for run in self.runs]
        have, are = ("has", "is") if self.relabelled == 1 else ("have", "are")
        left_out = f"; {self.relabelled} more {have} different labels and {are} left out" if self.relabelled else ""
        corrected = f"; p corrected for {len(others)} comparisons" if len(others) > 1 else ""
        return [
            *align_columns(rows),
            f"texts: {self.rows} scored by all{left_out} (exact sign test; a text counts once{corrected})",
            *(
                f"note: the model of {run.folder} was trained on {run.trained_rows} of its rows, so it may look too "
                "good"
                for run in self.runs
                if run.trained_rows
            ),
        ]


def verdict(run: ComparedRun) -> str:
    """In words how a run compares with the first."""
    if run.paired is None:
        return ""
    better, worse, p = run.paired.better, run.paired.worse, run.paired.p
    word = "not clearly different" if p >= SURE else "better" if better > worse else "worse"
    return f"{word}: better on {count(better, 'row')}, worse on {worse:,}, {show_p(p)}"


def compare(folders: Sequence[Path]) -> dict[str, Comparison]:
    """Compare result folders by label column ("" for the one); a text counts once, by its first row.

    Of several columns those are compared that all folders have scored. Raises InputError where a folder cannot be read,
    tasks differ, or no row or column is shared.
    """
    results = [_read(folder) for folder in folders]
    if not any(result.by_column for result in results):
        return {"": _compare(folders, results)}
    shared = [name for name in results[0].by_column if all(name in result.by_column for result in results)]
    if not shared:
        raise InputError(f"{', '.join(map(str, folders))} scored no label column in common.")
    return {name: _compare(folders, [result.by_column[name] for result in results]) for name in shared}


def _compare(folders: Sequence[Path], results: Sequence[Result]) -> Comparison:
    """`compare` for one label column."""
    task, names = results[0].task, ", ".join(map(str, folders))
    for folder, result in zip(folders, results, strict=True):
        if result.task.name != task.name or not (task.answers.has_labels or result.task.labels == task.labels):
            raise InputError(f"{folder}: it has another task than {folders[0]}; expected runs of the same task.")
    labels = list(dict.fromkeys(label for result in results for label in result.task.labels))
    first_rows = [np.unique(result.rows.hashes, return_index=True) for result in results]
    shared = functools.reduce(np.intersect1d, (hashes for hashes, _ in first_rows))
    if not len(shared):
        raise InputError(f"{names} scored no text in common; score all on one table: classify evaluate.")
    predicted, targets = [], []
    for result, (hashes, places) in zip(results, first_rows, strict=True):
        rows = places[np.searchsorted(hashes, shared)]
        predicted.append(result.task.scores.renumber(result.predicted[rows], labels))
        targets.append(result.task.scores.renumber(result.rows.targets[rows], labels))
    same = np.all([(other == targets[0]).reshape(len(shared), -1).all(axis=1) for other in targets], axis=0)
    if not same.any():
        raise InputError(
            f"{names}: no shared row has the same label in all of them; score them on one table with classify evaluate."
        )
    judge = task.scores.with_labels(labels)
    metrics = [judge.metrics(values[same], targets[0][same]) for values in predicted]
    scores = [judge.row_scores(values[same], targets[0][same]) for values in predicted]
    tests = [sign_test(one, scores[0]) for one in scores[1:]]
    corrected = holm(np.array([test.p for test in tests])).tolist()
    paired = [None, *(replace(test, p=p) for test, p in zip(tests, corrected, strict=True))]
    runs = [
        ComparedRun(str(folder), values, test, result.trained_rows)
        for folder, values, test, result in zip(folders, metrics, paired, results, strict=True)
    ]
    return Comparison(int(same.sum()), int((~same).sum()), tuple(runs))


def _read(folder: Path) -> Result:
    try:
        return Result.read(folder)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: expected the output folder of a finished run or evaluation ({reason}).") from None

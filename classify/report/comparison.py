"""Compare result folders on the rows that all of them scored, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.console import align_columns
from classify.errors import InputError, list_some
from classify.evaluation.metrics import display_name, holm
from classify.evaluation.scored_rows import SURE, SignTest, show_p, sign_test
from classify.report.environment import count
from classify.report.result import Result


@dataclass(frozen=True)
class ComparedRun:
    """A folder's scores on the shared rows, and the paired test against the first folder; None for the first.

    Its p-value is corrected for the number of folders.

    `gain` is the mean difference of the rows' scores from the first, larger is better. `trained_rows`: of the rows of
    an evaluation, those that the model was trained on.
    """

    folder: str
    metrics: dict[str, float]
    paired: SignTest | None
    gain: float = 0.0
    trained_rows: int = 0


@dataclass(frozen=True)
class Comparison:
    """Runs compared on `rows` shared rows; of further rows that all scored, `relabelled` have different labels.

    `unknown` are the labels that some runs lack, by folder.
    """

    runs: tuple[ComparedRun, ...]
    rows: int
    relabelled: int
    unknown: dict[str, list[str]] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        return list(self.runs[0].metrics)

    def as_json(self) -> dict[str, Any]:
        """All values."""
        runs = [
            {
                "folder": run.folder,
                "metrics": run.metrics,
                "paired": run.paired and asdict(run.paired),
                "trained_rows": run.trained_rows,
            }
            for run in self.runs
        ]
        return {"rows": self.rows, "relabelled": self.relabelled, "unknown": self.unknown, "runs": runs}

    def lines(self) -> list[str]:
        """The comparison as a table for a terminal."""
        rows = [["run", *map(display_name, self.metrics), f"against {self.runs[0].folder}"]]
        rows += [[run.folder, *(f"{value:.3f}" for value in run.metrics.values()), verdict(run)] for run in self.runs]
        corrected = f"; p corrected for {len(self.runs) - 1} comparisons" if len(self.runs) > 2 else ""
        counted = f"texts: {self.rows} scored by all{self.left_out} (exact sign test; a text counts once{corrected})"
        return [*align_columns(rows), counted, *(f"note: {note}" for note in self.notes())]

    @property
    def left_out(self) -> str:
        """In words how many shared rows have different labels; "" for none."""
        if not self.relabelled:
            return ""
        have, are = ("has", "is") if self.relabelled == 1 else ("have", "are")
        return f"; {self.relabelled} more {have} different labels and {are} left out"

    def notes(self) -> list[str]:
        """A note for each model that lacks labels, or was trained on rows it is scored on."""
        return [
            *(
                f"{folder} does not know {list_some(labels, show=repr)}; rows with such a "
                "label are compared only if all runs scored them with the same label"
                for folder, labels in self.unknown.items()
            ),
            *(
                f"the model of {run.folder} was trained on {run.trained_rows} of its rows, so it may look too good"
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
    if p < SURE and run.gain and (better > worse) != (run.gain > 0):
        word = "better on more rows, yet not on average" if better > worse else "worse on more rows, yet not on average"
    return f"{word}: better on {count(better, 'row')}, worse on {worse:,}, {show_p(p)}"


def compare(folders: Sequence[Path]) -> Comparison:
    """Compare result folders. Raises InputError where one cannot be read, tasks differ, or no row is shared."""
    return compare_results([_read(folder) for folder in folders])


def compare_results(results: Sequence[Result]) -> Comparison:
    """Compare results. Raises InputError where tasks differ, or no row is shared."""
    folders, task = [result.folder for result in results], results[0].task
    labels = list(dict.fromkeys(label for result in results for label in result.task.labels))
    for folder, result in zip(folders, results, strict=True):
        if result.task.name != task.name or not (task.answers.has_labels or result.task.labels == task.labels):
            raise InputError(f"{folder}: it has another task than {folders[0]}; expected runs of the same task.")
        if set(result.task.labels).isdisjoint(task.labels):
            raise InputError(
                f"{folder}: it has no label in common with {folders[0]}; expected runs of the same labels."
            )
    unknown = {
        str(folder): missing
        for folder, result in zip(folders, results, strict=True)
        if (missing := [label for label in labels if label not in result.task.labels])
    }
    indices = [_index_by_text(result) for result in results]
    shared = [key for key in indices[0] if all(key in index for index in indices)]
    if not shared:
        raise InputError(
            f"{', '.join(map(str, folders))} scored no text in common; score all on one table: classify evaluate."
        )
    rows = np.array([[index[key] for key in shared] for index in indices])
    targets = [
        result.task.scores.renumber(result.rows.targets[places], labels)
        for result, places in zip(results, rows, strict=True)
    ]
    same = np.ones(len(shared), dtype=bool)
    for further in targets[1:]:
        same &= (further == targets[0]).reshape(len(shared), -1).all(axis=1)
    if not same.any():
        raise InputError(
            f"{', '.join(map(str, folders))}: no shared row has the same label in all of them; score them on one table "
            "with classify evaluate."
        )
    runs: list[ComparedRun] = []
    reference: npt.NDArray[np.float64] | None = None
    for folder, result, places in zip(folders, results, rows, strict=True):
        predicted, targets_here = result.task.scores.renumber(result.predicted[places[same]], labels), targets[0][same]
        scores = task.scores.row_scores(predicted, targets_here)
        paired = None if reference is None else sign_test(scores, reference)
        gain = 0.0 if reference is None else float((scores - reference).mean())
        reference = scores if reference is None else reference
        trained = result.trained_rows
        runs.append(ComparedRun(str(folder), task.scores.metrics(predicted, targets_here), paired, gain, trained))
    tested = [run.paired for run in runs if run.paired is not None]
    corrected = iter(holm(np.array([paired.p for paired in tested])).tolist())
    runs = [run if run.paired is None else replace(run, paired=replace(run.paired, p=next(corrected))) for run in runs]
    return Comparison(tuple(runs), int(same.sum()), int((~same).sum()), unknown)


def _read(folder: Path) -> Result:
    try:
        return Result.read(folder)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: expected the output folder of a finished run or evaluation ({reason}).") from None


def _index_by_text(result: Result) -> dict[int, int]:
    index: dict[int, int] = {}
    for place, key in enumerate(result.rows.hashes.tolist()):
        index.setdefault(key, place)
    return index

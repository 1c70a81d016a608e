"""What every export has in common: the rows that check it, and what a target does."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.scored_rows import FILE, ScoredRows
from classify.prediction.predictor import Predictor
from classify.tasks.base import Task
from classify.tasks.columns import FILE as PREDICTIONS, read_predictions

# Rows of the run that an export is checked on.
_ROWS = 1_000
# Of the intervals.
_SEED = 42
# Texts that a table rarely has: none, blank, one character, outside the basic plane.
_EDGES = ("", " ", "a", "\N{GRINNING FACE}" * 3, "x" * 200)
# Words of the longest text: more than any model reads.
_LONG = 2_000


@dataclass(frozen=True)
class Sample:
    """Texts to check an export on: some rows that `scored` the run, then texts at the edges; and their logits.

    `texts` are a list of texts, or the first and the second texts of pairs.
    """

    texts: list[list[str]]
    scored: ScoredRows
    logits: npt.NDArray[np.float32]


def draw_sample(predictor: Predictor) -> Sample:
    """Read the rows that scored a run, add texts at the edges, and compute the logits of all of them.

    Raises InputError for a folder without these rows.
    """
    folder = Path(predictor.folder)
    for name in (FILE, PREDICTIONS):
        if not (folder / name).exists():
            raise InputError(f"--model {folder}: no {name} in it, whose rows check an export; copy the whole folder.")
    scored = ScoredRows.read(folder)
    table = predictor.texts.derive(read_predictions(folder))
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(scored.targets))[:_ROWS])
    columns = [list(table.take(name, chosen)) for name in predictor.texts.inputs]
    words = itertools.cycle([*max(columns[0], key=len).split(), "word"])
    longest = " ".join(itertools.islice(words, _LONG))[: 8 * _LONG]
    for number, column in enumerate(columns):  # a second text is never as long as the first
        column += [*_EDGES, longest] if number == 0 else [*reversed(_EDGES), "a"]
    return Sample(columns, scored.take(chosen), predictor.task.split(predictor.outputs(*columns))[0])


@dataclass(frozen=True)
class Check:
    """How an exported model differs from the run's: on all texts of a sample, and in its scores on the run's rows.

    `largest_difference` is that of a probability, or of a score in standard deviations of the scores. `changed` texts
    have another prediction; of several label columns, another label.
    `change` is that of the mean row score (see `Scores.row_scores`), with the 95 % interval of the rows' differences.
    """

    texts: int
    largest_difference: float
    changed: int
    scores: dict[str, list[float]]  # [of the run, of the export]
    change: dict[str, list[float]]

    @classmethod
    def compare(cls, task: Task, sample: Sample, logits: npt.NDArray[np.float32]) -> Check:
        """Compare the `logits` of an exported model with the run's."""
        targets, both, judge = sample.scored.targets, (sample.logits, logits), task.scores
        rows = len(targets)
        largest, changed = 0.0, np.zeros(len(sample.logits), dtype=bool)
        for part, outputs in [(one.task, one.outputs) for one in task.columns] or [(task, slice(None))]:
            old, new = (part.answers.probabilities(values[:, outputs]) for values in both)
            scale = 1.0 if part.answers.has_labels else float(old[:rows].std()) or 1.0
            largest = max(largest, float(np.abs(old - new).max()) / scale)
            differs = part.answers.decide(old) != part.answers.decide(new)
            if part.answers.has_labels or not task.columns:
                changed |= np.asarray(differs).reshape(len(changed), -1).any(axis=1)
        before, after = (task.answers.decide(task.answers.probabilities(values)) for values in both)
        right = [judge.row_scores(values[:rows], targets) for values in (before, after)]
        differences = right[1] - right[0]
        mean, error = float(differences.mean()), float(differences.std()) / rows**0.5
        scores = [judge.score(values[:rows], targets, _SEED).values for values in both]
        return cls(
            texts=len(changed),
            largest_difference=largest,
            changed=int(changed.sum()),
            change={judge.row_metric: [mean, mean - 1.96 * error, mean + 1.96 * error]},
            scores={name: [scores[0][name], scores[1][name]] for name in scores[0] if name in (judge.primary, "loss")},
        )

    def describe(self) -> str:
        kept = ", ".join(f"{name} {old:.4f} before, {new:.4f} after" for name, (old, new) in self.scores.items())
        kept += "".join(
            f", {name} {mean:+.4f} ({low:+.4f} to {high:+.4f})" for name, (mean, low, high) in self.change.items()
        )
        return (
            f"{self.texts} texts: outputs differ by at most {self.largest_difference:.1e}, "
            f"{self.changed} predictions change; {kept}"
        )


class Target(ABC):
    """A form of model that a folder is exported to, by its value of --to."""

    name: ClassVar[str]

    @abstractmethod
    def write(self, predictor: Predictor, folder: Path, sample: Sample) -> dict[str, Any]:
        """Write model.onnx into a folder that has the other files; return what is to be recorded of it."""

    @abstractmethod
    def find_fault(self, check: Check, task: Task) -> str | None:
        """Why the exported model must not be used, or None."""

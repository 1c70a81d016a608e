"""Label texts one after another: which comes next, a head that learns from the answers, and an honest score of it.

The encoder's features of all texts are computed once; after every ten answers the output layer alone is fitted again.
Four of five texts are those that the head is least certain of. Every fifth is the next of a random order of all texts:
only these texts are scored, by heads that have not learned from them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.evaluation.learning_curve import Curve
from classify.evaluation.metrics import INDEPENDENT, share_interval
from classify.prediction.labels_file import Answer, LabelsFile, key_of
from classify.prediction.suggest import RANDOM, UNCERTAIN, drop_near_copies
from classify.tables.table import normalize_text
from classify.tasks import single_label
from classify.tasks.base import JOIN, FitRows, Task

# What is written for a text that belongs to none of the classes; --out-of-scope-label trains with it. Where texts have
# sets of labels, it is an empty one.
NONE = "none of these"
EMPTY_SET = "[]"
REFIT_AFTER = 10
_EVERY = 5
_FOLDS = 5
_SEED = 0
# Rows that the first model's predictions count as, of each class: enough to begin with, little beside 20 labels.
_PRIOR = 6.0
_PRIOR_TEXTS = 20
# Random rows from which a score is shown, and what more labels would bring.
_FEWEST_SCORED = 10
_FEWEST_FOR_GAIN = 50
# The least certain texts among which near-copies are looked for: each is compared with those that are chosen.
_MOST_COMPARED = 2_000
# The penalty is chosen again when there are so many times as many labels.
_CHOOSE_AGAIN = 1.5
# Probabilities that a question lists, by class.
LISTED = 9

Features = npt.NDArray[np.float32]
Layer = tuple[Features, Features]


@dataclass(frozen=True)
class Anchors:
    """Features (rows, width), targets and weights (rows,) that a head learns from beside the labels."""

    features: Features
    targets: npt.NDArray[Any]
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Question:
    """A text to label: its key in the file, the cells of its text columns, and the most probable classes."""

    key: str
    texts: tuple[str, ...]
    likely: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Standing:
    """How good the head is on `rows` random texts, with an interval; `none` others are of none of the classes.

    `gain` is what 100 more labels would bring.
    """

    metric: str
    score: float
    interval: tuple[float, float]
    rows: int
    none: int
    gain: float | None


class AnsweredError(ValueError):
    """The text has a label already, from another tab, or the table has it no more."""


class Labelling:
    """The texts to label, their answers, and the head.

    `rows` has the cells of each text's columns, and `features` (rows, width) those of the encoder. `start` is the
    first head, if there is one; where `anchors` of an earlier run are given every head learns from them, else from what
    the first one predicts. Several threads may call it.
    """

    def __init__(
        self,
        task: Task,
        rows: Sequence[tuple[str, ...]],
        features: Features,
        file: LabelsFile,
        start: Layer | None = None,
        anchors: Anchors | None = None,
    ):
        self.task, self.rows, self.features, self.file, self.layer = task, rows, features, file, start
        self._anchors = anchors if anchors is not None or start is None else self._predicted_anchors(start)
        self._keys = list(map(key_of, rows))
        self._row_of = {str(key): row for row, key in enumerate(self._keys)}
        # A random order of the texts, whichever others are in the table: their keys are hashes.
        self._order = sorted(range(len(rows)), key=self._keys.__getitem__)
        self._queue: list[tuple[int, str]] = []
        self._asked: dict[str, tuple[int, str]] = {}
        self._skipped: set[int] = set()
        self._history: dict[str, list[int]] = {}
        self._penalty: tuple[float, int] | None = None
        self._fitted = 0
        self.standing: Standing | None = None
        self._lock = threading.RLock()
        self._add_classes()
        if self.labelled:
            self.refit()

    @property
    def labels(self) -> list[str]:
        return self.task.labels

    @property
    def has_sets(self) -> bool:
        return self.task.answers.thresholds is not None

    @property
    def _none(self) -> str:
        return EMPTY_SET if self.has_sets else NONE

    @property
    def labelled(self) -> list[int]:
        return list(filter(self._find, range(len(self.rows))))

    @property
    def is_due(self) -> bool:
        """Whether the head should be fitted again."""
        return abs(len(self.file.answers) - self._fitted) >= REFIT_AFTER

    def ask(self, tab: str) -> Question | None:
        """The next question for a browser's tab, the same one until it is answered; None where no text is left."""
        with self._lock:
            self._refresh()
            asked = self._asked.get(tab)
            if asked is None or not self._is_open(asked[0]):
                asked = self._next({row for row, _ in self._asked.values()})
                if asked is None:
                    return None
                self._asked[tab] = asked
            return self._question(asked[0])

    def answer(self, tab: str, key: str, labels: Sequence[str] | None, note: str = "") -> None:
        """Write the labels of a text, [] for none of the classes; None skips it.

        Raises AnsweredError where another tab was faster; InputError for a label that the model does not know, where it
        predicts sets, and for sets elsewhere; OSError where the line cannot be written.
        """
        with self._lock:
            self._refresh()
            row = self._row_of.get(key)
            if row is None:
                raise AnsweredError("this text is not in the table that is labelled now; nothing was written")
            asked, found = self._asked.get(tab), self._find(row)
            if found is not None:
                raise AnsweredError(f"this text has the label {found.label!r} already; nothing was written")
            if labels is not None:
                self._check(labels)
                known = {normalize_text(label): label for label in self.labels}
                said = JOIN.join(known.get(normalize_text(label), label.strip()) for label in labels)
                reason = asked[1] if asked is not None and asked[0] == row else UNCERTAIN
                self.file.append(self.rows[row], Answer(said or self._none, note, reason))
                self._add_classes()
            else:
                self._skipped.add(row)
            self._asked.pop(tab, None)
            self._history.setdefault(tab, []).append(row)

    def undo(self, tab: str) -> Question | None:
        """Take the last answer of a tab back, or its last skip, and ask again; None where there is none."""
        with self._lock:
            self._refresh()
            history = self._history.get(tab)
            if not history:
                return None
            row = history[-1]
            answer = self._find(row)
            if answer is not None:
                self.file.remove(self.rows[row])
            self._skipped.discard(row)
            history.pop()
            self._asked[tab] = (row, answer.chosen if answer is not None else UNCERTAIN)
            return self._question(row)

    def refit(self) -> None:
        """Fit the head to all labels, score it on the random texts, and choose the next texts."""
        with self._lock:
            self._refresh()
            count = len(self.file.answers)
            rows, targets = self._targets()
            task, seen = self.task, self._seen_at_random()
        layer = self._fit(task, rows, targets)
        with self._lock:
            self._fitted = count
            if layer is not None:
                self.layer = layer
            self._queue = []
        if layer is not None:
            self.standing = self._score(task, rows, targets, seen)

    def probabilities(self, features: Features) -> npt.NDArray[np.float64]:
        """(rows, classes) of these features, by the head; classes that it has not learned have 0."""
        with self._lock:
            layer, classes = self.layer, len(self.labels)
        shares = np.zeros((len(features), classes))
        if layer is not None:
            known = self.task.answers.probabilities(features @ layer[0].T + layer[1])
            shares[:, : known.shape[1]] = known
        return shares

    def _question(self, row: int) -> Question:
        shares = self.probabilities(self.features[[row]])[0]
        best = np.argsort(-shares, kind="stable")[:LISTED] if len(shares) > LISTED else np.arange(len(shares))
        return Question(
            str(self._keys[row]), self.rows[row], tuple((self.labels[n], float(shares[n])) for n in best.tolist())
        )

    def _check(self, labels: Sequence[str]) -> None:
        wrong = not all(label.strip() for label in labels)
        if self.has_sets:
            wrong |= not {*map(normalize_text, labels)} <= {*map(normalize_text, self.labels)}
        if wrong or (len(labels) > 1 and not self.has_sets):
            raise InputError(f"expected {'labels of the model' if self.has_sets else 'one label'}. Got {list(labels)}.")

    def _refresh(self) -> None:
        if self.file.refresh():
            self._add_classes()

    def _add_classes(self) -> None:
        """Make classes of labels that a person has typed."""
        if self.has_sets:
            return
        known, added = set(map(normalize_text, self.labels)), list[str]()
        for label in (answer.label for answer in self.file.answers.values()):
            if label != NONE and normalize_text(label) not in known:
                known.add(normalize_text(label))
                added.append(label)
        if added:
            self.task = single_label.make([*self.labels, *added])

    def _next(self, asked: set[int]) -> tuple[int, str] | None:
        for _ in range(2):
            while self._queue:
                row, reason = self._queue.pop(0)
                if row not in asked and row not in self._skipped and self._find(row) is None:
                    return row, reason
            self._queue = self._plan(asked)
        self._skipped.clear()  # now they are all that is left, with texts that wait in other tabs
        left = sorted(filter(self._is_open, self._order), key=asked.__contains__)
        return (left[0], RANDOM) if left else None

    def _find(self, row: int) -> Answer | None:
        return self.file.answers.get(self._keys[row])

    def _is_open(self, row: int) -> bool:
        return self._find(row) is None

    def _plan(self, asked: set[int]) -> list[tuple[int, str]]:
        """The next texts: four that the head is least certain of, then one at random, and so on."""
        left_out = asked | self._skipped
        open_rows = [row for row in self._order if self._is_open(row) and row not in left_out]
        random = [(row, RANDOM) for row in open_rows]
        if self.layer is None or len(self.labels) < 2:
            return random[:REFIT_AFTER]
        rows = np.array(open_rows, dtype=np.int64)
        certainty = self.task.answers.certainty(self.probabilities(self.features[rows]))
        order = rows[np.argsort(certainty, kind="stable")]
        unsure = drop_near_copies(order[:_MOST_COMPARED], REFIT_AFTER, lambda row: " ".join(self.rows[row]))
        planned = list[tuple[int, str]]()
        for number, row in enumerate(unsure.tolist()):
            if number % (_EVERY - 1) == 0 and random:
                planned.append(random.pop(0))
            planned.append((row, UNCERTAIN))
        return planned[:REFIT_AFTER]

    def _targets(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """The texts (n,) with a label, and their targets."""
        found = {row: answer.label for row in range(len(self.rows)) if (answer := self._find(row)) is not None}
        found = {row: label for row, label in found.items() if label != NONE}
        rows = np.array(list(found), dtype=np.int64)
        number_of = {normalize_text(label): number for number, label in enumerate(self.labels)}
        parts = (label.split(JOIN) if self.has_sets else [label] for label in found.values())
        sets = [[number_of[name] for name in map(normalize_text, names) if name in number_of] for names in parts]
        if not self.has_sets:
            return rows, np.array([numbers[0] for numbers in sets], dtype=np.int64)
        targets = np.zeros((len(rows), len(self.labels)), dtype=np.uint8)
        for place, numbers in enumerate(sets):
            targets[place, numbers] = 1
        return rows, targets

    def _seen_at_random(self) -> list[int]:
        """The first texts of the random order, all of which have an answer, up to the last that was asked for that.

        A text among them that was asked for another reason counts, too: without these the rest would be too easy.
        """
        first = itertools.takewhile(lambda row: not self._is_open(row) or row in self._skipped, self._order)
        seen = list(first)
        at_random = [place for place, row in enumerate(seen) if (found := self._find(row)) and found.chosen == RANDOM]
        return seen[: at_random[-1] + 1] if at_random else []

    def _predicted_anchors(self, start: Layer) -> Anchors:
        """The texts that the first head is most certain of, by the classes that it predicts."""
        shares = self.task.answers.probabilities(self.features @ start[0].T + start[1])
        predicted, certainty = self.task.answers.decide(shares), self.task.answers.certainty(shares)
        of_class = self.task.targets.stratify_by(predicted)
        order = np.argsort(-certainty, kind="stable")
        chosen = [order[of_class[order] == number][:_PRIOR_TEXTS] for number in np.unique(of_class).tolist()]
        rows = np.concatenate(chosen)
        weights = np.concatenate([np.full(len(part), _PRIOR / len(part), dtype=np.float32) for part in chosen])
        return Anchors(self.features[rows], predicted[rows], weights)

    def _fit(self, task: Task, rows: npt.NDArray[np.int64], targets: npt.NDArray[Any]) -> Layer | None:
        """A head from the labels of these rows and the anchors; None where they are of one class alone."""
        features, weights = self.features[rows], np.ones(len(rows), dtype=np.float32)
        if self._anchors is not None:
            features = np.concatenate([features, self._anchors.features])
            targets = np.concatenate([targets, self._anchors.targets])
            weights = np.concatenate([weights, self._anchors.weights])
        if len(np.unique(targets, axis=0)) < 2:
            return None
        fitted = FitRows(features, targets, None, weights)
        if self._penalty is None or len(rows) > _CHOOSE_AGAIN * self._penalty[1]:
            self._penalty = task.head.choose_penalty(fitted), len(rows)
        return task.head.fit(fitted, self._penalty[0])

    def _score(
        self, task: Task, rows: npt.NDArray[np.int64], targets: npt.NDArray[Any], seen: list[int]
    ) -> Standing | None:
        """The score on random texts by heads of the other folds, and what more labels would bring."""
        is_scored = np.isin(rows, seen)
        if is_scored.sum() < _FEWEST_SCORED:
            return None
        draw = np.random.default_rng(_SEED)
        fold = draw.permutation(len(rows)) % _FOLDS
        points = list[tuple[int, float]]()
        right = np.empty(0)
        shares_learned = (0.25, 0.5, 1.0) if is_scored.sum() >= _FEWEST_FOR_GAIN else (1.0,)
        for share in shares_learned:
            scores = []
            for number in range(_FOLDS):
                learned = draw.permutation(np.flatnonzero(fold != number))
                learned = learned[: max(2, round(share * len(learned)))]
                held_out = np.flatnonzero((fold == number) & is_scored)
                layer = self._fit(task, rows[learned], targets[learned])
                if layer is None or not len(held_out):
                    continue
                shares = task.answers.probabilities(self.features[rows[held_out]] @ layer[0].T + layer[1])
                scores.append(task.scores.row_scores(task.answers.decide(shares), targets[held_out]))
            if not scores:
                continue
            right = np.concatenate(scores)
            points.append((round(share * len(rows)), float(right.mean())))
        if not points or points[-1][0] < len(rows):
            return None
        low, high = share_interval(right, INDEPENDENT)
        gain = None
        if len(points) > 2:
            gain = Curve(task.scores.row_metric, tuple(points), (low, high), {}).gain(100)
        none = sum(1 for row in seen if (found := self._find(row)) is not None and found.label == NONE)
        return Standing(task.scores.row_metric, points[-1][1], (low, high), len(right), none, gain)

"""Where training stands, and which of the scored steps a run keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass

# By which an earlier score must be ahead of the last one: chance alone does that in one of forty.
_STANDARD_ERRORS = 2.0


@dataclass
class Progress:
    """Where training stands; all of it goes into a checkpoint. `position` is the rows consumed since the start.

    `end` is where a limit of time lets it end, once that has been measured, under the `limits` that were given then;
    `parts` the micro-batches a step is cut into, more than were asked for where memory was short. `best` is the step
    that scored best on the evaluation part, `latest` the last one that was scored, which is at step `scored`; step 0 is
    the start; `waited` counts the scores since the best one, or since the first epoch's.
    `first_loss` is the mean training loss of the first epoch.
    """

    step: int = 0
    position: int = 0
    seconds: float = 0.0
    tokens: int = 0
    epoch_loss: float = 0.0
    epoch_weight: float = 0.0
    end: int | None = None
    limits: list[float | None] | None = None
    parts: int = 1
    best: dict[str, float] | None = None
    latest: dict[str, float] | None = None
    scored: int | None = None
    waited: int = 0
    first_loss: float | None = None

    @property
    def mean_loss(self) -> float:
        """Mean training loss over the rows of the epoch so far."""
        return self.epoch_loss / (self.epoch_weight or 1.0)

    def set_end(self, end: int, limits: list[float | None]) -> None:
        """Remember where a limit of time lets training end, and for which limits that was measured."""
        self.end, self.limits = end, limits

    def add_score(self, scores: dict[str, float], epoch: float, metric: str) -> bool:
        """Remember the evaluation scores of the step that training stands at; whether they are the best so far."""
        begins = self.latest is None or self.latest["step"] == 0  # it may take some epochs to get ahead of the start
        self.scored = self.step
        self.latest = {"step": self.step, "epoch": epoch, **scores}
        better = self.best is None or _rank(self.latest, metric) > _rank(self.best, metric)
        self.waited = 0 if better or begins else self.waited + 1
        if better:
            self.best = self.latest
        return better

    def waited_long(self, patience: int | None) -> bool:
        """Whether as many scores as `patience` says were no better than the best one."""
        return patience is not None and self.waited >= patience

    def kept(self, rule: str, metric: str, share: str | None, rows: int) -> dict[str, float]:
        """Return the scored step whose weights a run keeps, by `--keep`.

        `share` is the metric, if any, that is a share of the evaluation split's `rows`.

        The best of several scores on few rows is the luckiest: "auto" takes the last weights unless the accuracy of the
        best is ahead of theirs by two standard errors (Breiman et al., 1984, "Classification and Regression Trees",
        section 3.4.3, chooses by one), whichever metric chose the best: macro F1's own error is many times as large
        where a class has few rows. A loss has no such error, and its lowest counts.
        """
        assert self.best is not None, "the last step is always scored"
        assert self.latest is not None
        if rule == "last":
            return self.latest
        if rule == "best" or metric == "loss" or share is None:
            return self.best
        accuracy = self.latest[share]
        margin = _STANDARD_ERRORS * math.sqrt(accuracy * (1 - accuracy) / rows)
        ahead = self.best[share] - accuracy
        return self.best if ahead > margin else self.latest


def _rank(scores: dict[str, float], metric: str) -> tuple[float, float]:
    """Larger is better; scores that are equal are told apart by the loss."""
    return (-scores["loss"] if metric == "loss" else scores[metric]), -scores["loss"]

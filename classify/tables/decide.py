"""Take a candidate that is clearly ahead, or ask: the one way in which anything about a table is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from classify.errors import InputError, list_some

# Points by which the best candidate must lead to be taken, and to be taken without a word.
TAKEN, CLEAR = 1.0, 2.0
# Points by which a candidate may be behind to be shown.
NEAR = 6.0

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A value, its points in log odds, what to show of it, and the flag that names it."""

    value: T
    points: float
    shown: str
    flag: str
    reasons: tuple[str, ...] = ()

    def add(self, points: float, reason: str = "") -> Self:
        """Return the candidate with more points; the reason counts where these speak for it."""
        reasons = (*self.reasons, reason) if reason and points > 0 else self.reasons
        return replace(self, points=self.points + points, reasons=reasons)


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The value that was taken, and why; `clear` where no other came near."""

    value: T
    why: str
    clear: bool


@dataclass(frozen=True)
class Doubt:
    """A question that the table leaves open: its candidates, the likeliest first, and the flag to type."""

    question: str
    candidates: tuple[str, ...]
    flag: str

    def __str__(self) -> str:
        """Return the question in one line."""
        shown = list_some(self.candidates)
        return f"which is {self.question}? {shown}; give e.g. {self.flag}"


class DoubtError(InputError):
    """What a table leaves open; all doubts of it are one error."""

    def __init__(self, path: str, doubts: Sequence[Doubt], hint: str = ""):
        super().__init__(f"{path}: {'. '.join(map(str, doubts))}.{f' {hint}' if hint else ''}")
        self.doubts = tuple(doubts)


def choose(question: str, candidates: Sequence[Candidate[T]], fewest: float) -> Answer[T] | Doubt:
    """Return the candidate that leads by `TAKEN` points and has at least `fewest`, else the doubt that asks for it."""
    ranked = sorted(candidates, key=lambda candidate: -candidate.points)
    lead = ranked[0].points - ranked[1].points if len(ranked) > 1 else CLEAR
    if ranked[0].points < fewest or lead < TAKEN:
        return ask(question, [one for one in ranked if ranked[0].points - one.points <= NEAR] or ranked[:2])
    return Answer(ranked[0].value, ", ".join(dict.fromkeys(ranked[0].reasons)), lead >= CLEAR)


def ask(question: str, ranked: Sequence[Candidate[T]]) -> Doubt:
    """Return the doubt between candidates, the likeliest first."""
    return Doubt(question, tuple(candidate.shown for candidate in ranked), ranked[0].flag)

"""What a table leaves open: a question with its candidates and the flags that answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from classify.errors import InputError, list_some


@dataclass(frozen=True)
class Question:
    """One question: `candidates` are shown with an example each, the likeliest first; `flags` answer it."""

    text: str
    candidates: tuple[str, ...]
    flags: tuple[str, ...]

    def __str__(self) -> str:
        """The question in a line: `which column has the labels: "a" (...), "b" (...)? Give --label-column "a"`."""
        shown = f": {list_some(self.candidates)}" if self.candidates else ""
        return f"{self.text}{shown}? Give {' or '.join(self.flags)}"


class QuestionError(InputError):
    """Questions about one table, raised together. Exit 2, as for any input that a person can mend."""

    def __init__(self, path: str, questions: Sequence[Question], hint: str = ""):
        asked = ". ".join(map(str, questions))
        super().__init__(f"{path}: {asked}.{f' {hint}' if hint else ''}")
        self.questions = tuple(questions)

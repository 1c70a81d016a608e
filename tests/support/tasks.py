"""Small tables of each task, and the settings that a run on them needs."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import tiny

CLASSES = tuple(tiny.CLASS_WORDS)


@dataclass(frozen=True)
class Case:
    """A table's columns and rows by number, the task, and the columns that predictions add."""

    header: Sequence[str]
    row: Callable[[int], Sequence[str]]
    task: str
    added: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path, count: int = 60) -> Path:
        """Write the table as CSV."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.header)
            writer.writerows(self.row(number) for number in range(count))
        return path


def words_of(number: int, labels: Sequence[str]) -> str:
    """Return a text with a word of each of the labels."""
    draw = random.Random(number)
    words = draw.choices(tiny.WORDS[:12], k=draw.randint(2, 12))
    for label in labels:
        words.insert(draw.randint(0, len(words)), draw.choice(tiny.CLASS_WORDS[label]))
    return " ".join(words)


def make_labels(number: int) -> list[str]:
    """Return any number of labels, none for one row of eight."""
    return [label for bit, label in enumerate(CLASSES) if number >> bit & 1]


def score_of(number: int) -> str:
    """Return a score that the number of labels explains, with something added."""
    return f"{10 + 2.5 * len(make_labels(number)) + number % 7 / 10:.2f}"


_PROBABILITIES = [f"prob_{label}" for label in sorted(CLASSES)]
CASES = {
    "pair": Case(
        ("sentence1", "sentence2", "label"),
        lambda n: (words_of(n, [CLASSES[n % 3]]), words_of(n + 1, [CLASSES[(n + 1 - n % 2) % 3]]), "ab"[n % 2]),
        "single_label",
        ["predicted_label", "confidence", "prob_a", "prob_b"],
    ),
    "joined": Case(
        ("title", "body", "label"),
        lambda n: (words_of(n, []), words_of(n + 1, [CLASSES[n % 3]]), CLASSES[n % 3]),
        "single_label",
        ["predicted_label", "confidence", *_PROBABILITIES],
        {"text_column": "title,body"},
    ),
    "lists": Case(
        ("text", "labels"),
        lambda n: (words_of(n, make_labels(n)), ",".join(make_labels(n))),
        "multi_label",
        ["predicted_labels", *_PROBABILITIES],
    ),
    "columns": Case(
        ("text", *CLASSES),
        lambda n: (words_of(n, make_labels(n)), *(str(int(label in make_labels(n))) for label in CLASSES)),
        "multi_label",
        ["predicted_labels", *_PROBABILITIES],
    ),
    "scores": Case(
        ("text", "label"),
        lambda n: (words_of(n, make_labels(n)), score_of(n)),
        "regression",
        ["predicted_score"],
    ),
    "scores of pairs": Case(
        ("sentence1", "sentence2", "score"),
        lambda n: (words_of(n, make_labels(n)), words_of(n + 1, []), score_of(n)),
        "regression",
        ["predicted_score"],
        {"label_column": "score"},
    ),
}  # fmt: skip

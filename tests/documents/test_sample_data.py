"""The sample data: no near copies among its messages, many of them, classes of unequal size."""

from __future__ import annotations

import collections
import csv
import re

from tests.support.processes import ROOT


def tickets() -> list[dict[str, str]]:
    with (ROOT / "data" / "tickets.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_no_two_messages_share_five_consecutive_words() -> None:
    seen: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(tickets()):
        words = re.findall(r"[a-z0-9']+", row["text"].lower())
        for start in range(len(words) - 4):
            run = tuple(words[start : start + 5])
            assert seen.setdefault(run, number) == number, f"{' '.join(run)}: messages {seen[run]} and {number}"


def test_messages_are_many_and_uneven() -> None:
    rows = tickets()
    counts = collections.Counter(row["label"] for row in rows)
    assert len(rows) >= 800
    assert len(counts) == 8
    assert max(counts.values()) >= 2 * min(counts.values())
    lengths = [len(row["text"].split()) for row in rows]
    assert (min(lengths), max(lengths) <= 80) == (3, True)
    assert max(lengths) > 60

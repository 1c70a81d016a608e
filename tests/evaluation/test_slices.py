"""Weak groups of rows are found, and chance is not taken for weakness."""

from __future__ import annotations

import random

import numpy as np

from classify.evaluation.slices import find_weak, list_slices

_WORDS = {
    "billing": ["invoice", "refund", "payment", "charge", "money", "bank", "card", "price"],
    "sport": ["match", "goal", "player", "team", "coach", "league", "season", "referee"],
    "weather": ["rain", "cloud", "storm", "wind", "sunny", "forecast", "snow", "degrees"],
}


def _texts(count: int) -> list[str]:
    draw = random.Random(0)
    topics = [draw.choice(list(_WORDS)) for _ in range(count)]
    fill = [f"word{chr(97 + a)}{chr(97 + b)}" for a in range(10) for b in range(10)]
    return [" ".join(draw.sample(_WORDS[topic], 4) + draw.sample(fill, 3)) for topic in topics]


def _columns(count: int) -> dict[str, list[str]]:
    return {
        "source": [("web", "mail")[number % 2] for number in range(count)],
        "number": [str(number) for number in range(count)],
        "day": [f"2024-{1 + number * 12 // count:02}-{1 + number % 28:02}" for number in range(count)],
        "id": [f"x{number}" for number in range(count)],
        "price": [f"{number},50" for number in range(count)],
    }


def test_weak_groups_are_found_and_named() -> None:
    texts, columns = _texts(600), _columns(600)
    wrong = np.random.default_rng(0).random(600) < 0.05
    wrong |= (np.arange(600) >= 480) & (np.random.default_rng(2).random(600) < 0.4)
    slices = list_slices(texts, columns, several_languages=False)
    assert {one.kind for one in slices} == {"characters", "source", "number", "day", "price"}, "an ID is none"
    weak, tested = find_weak(slices, 1.0 - wrong, np.arange(600))
    assert tested == len(slices)
    named = {(one.kind, one.value) for one in weak}
    assert {("number", "480 to 599"), ("day", "2024-10-17 to 2024-12-28")} & named
    for one in weak:
        assert one.interval[0] <= one.score <= one.interval[1]
        assert one.score < one.rest
        assert one.p < 0.05


def test_chance_finds_nothing() -> None:
    """Of errors, and of squared errors, that no property explains, at most one table in twenty has a weak group."""
    texts = _texts(400)
    slices = list_slices(texts, _columns(400), several_languages=False)
    draws = [np.random.default_rng(seed) for seed in range(60)]
    for scores in (
        [1.0 * (draw.random(400) < 0.8) for draw in draws],
        [-(draw.normal(size=400) ** 2) for draw in draws],
    ):
        assert sum(bool(find_weak(slices, one, np.arange(400))[0]) for one in scores) <= 6

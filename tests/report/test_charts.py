"""Charts of a report: what they say is what the page says."""

from __future__ import annotations

import re
from html import unescape

import numpy as np

from classify.report import charts


def texts_of(svg: str) -> list[str]:
    """Return the texts of a drawing."""
    return [unescape(text.strip()) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.S)]


def test_reliability_names_what_it_shows() -> None:
    bins = np.array([0.1, 0.9]), np.array([0.2, 0.8])
    one, two = charts.reliability(None, bins), charts.reliability(bins, bins)
    assert {"confidence in %", "accuracy in %"} <= set(texts_of(one))
    assert "as saved" not in texts_of(one), "there is nothing to tell it from"
    assert {"before temperature", "as saved"} <= set(texts_of(two))


def test_higher_values_are_drawn_higher_and_later_ones_further_right() -> None:
    drawn = charts.lines([("loss", np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 5.0]))], x="step", y="loss")
    points = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    assert len(points) == 3
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True), "y grows downwards"

"""Charts of a report: what they say is what the page says."""

from __future__ import annotations

import re
from html import unescape

import numpy as np

from classify.report import charts
from classify.report.charts import Series


def texts_of(svg: str) -> list[str]:
    """The texts of a drawing."""
    return [unescape(text.strip()) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.S)]


def test_axes_and_series_are_named() -> None:
    bins = np.array([0.1, 0.9]), np.array([0.2, 0.8])
    drawn = charts.plot([Series("before", *bins), Series("after", *bins)], x="confidence", y="accuracy", square=True)
    assert {"confidence", "accuracy", "before", "after"} <= set(texts_of(drawn))


def test_higher_values_are_drawn_higher_and_later_ones_further_right() -> None:
    drawn = charts.plot([Series("", np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 5.0]))], x="step", y="loss")
    points = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    assert len(points) == 3
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True), "y grows downwards"

"""Charts as inline SVG, by one template; colours are the page's, so they suit a dark one, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from classify.evaluation.metrics import Array
from classify.report.environment import templates

Ends = tuple[float, float]

# Pixels of a chart, and of one whose axes are alike.
_WIDE = (600, 320)
_SQUARE = (440, 400)
# Pixels around the axes.
_TOP = 28
_RIGHT = 14
_BOTTOM = 46
# Pixels left of the axes without the labels of ticks, and pixels of a character of these.
_LEFT = 34
_CHARACTER = 7
# A line of fewer values has a dot at each.
_FEW = 12
# Of the first series, of the second, and of a diagonal behind them.
_COLOURS = ("accent", "second", "line")


@dataclass(frozen=True)
class Series:
    """Values to draw, xs and ys (n,), as a "line", as a dashed "diagonal" or as "dots"."""

    name: str
    xs: Array
    ys: Array
    kind: str = "line"


def plot(
    series: Sequence[Series], *, x: str, y: str, ends: tuple[Ends, Ends] | None = None, square: bool = False
) -> str:
    """Draw up to two series as an SVG element.

    The axes span the values of all series, or `ends`: (lowest, highest) x and y. With `square` both axes have one span,
    and a dashed diagonal shows where both values are the same.
    """
    x_ends, y_ends = ends or (_range([one.xs for one in series]), _range([one.ys for one in series]))
    if square:
        x_ends = y_ends = min(x_ends[0], y_ends[0]), max(x_ends[1], y_ends[1])
        series = [*series, Series("", np.array(x_ends), np.array(y_ends), "diagonal")]
    x_ticks, y_ticks = _ticks(*x_ends), _ticks(*y_ends)
    width, height = _SQUARE if square else _WIDE
    left = _LEFT + _CHARACTER * max(map(len, y_ticks.values()), default=1)
    right, bottom = width - _RIGHT, height - _BOTTOM

    def across(value: float) -> float:
        return round(left + (right - left) * (value - x_ends[0]) / (x_ends[1] - x_ends[0]), 2)

    def up(value: float) -> float:
        return round(_TOP + (bottom - _TOP) * (y_ends[1] - value) / (y_ends[1] - y_ends[0]), 2)

    marks = []
    for number, one in enumerate(series):
        pairs = zip(one.xs.tolist(), one.ys.tolist(), strict=True)
        places = [(across(a), up(b)) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        has_dots = one.kind == "dots" or (one.kind == "line" and len(places) < _FEW)
        marks.append(
            {
                "name": one.name,
                "colour": _COLOURS[-1 if one.kind == "diagonal" else number],
                "dashed": one.kind == "diagonal",
                "path": "" if one.kind == "dots" else " ".join(f"{a:g},{b:g}" for a, b in places),
                "dots": places if has_dots else [],
            }
        )
    frame = {"width": width, "height": height, "left": left, "right": right, "top": _TOP, "bottom": bottom}
    ticks = {
        "x_ticks": [(across(value), text) for value, text in x_ticks.items()],
        "y_ticks": [(up(value), text) for value, text in y_ticks.items()],
    }
    return str(templates().get_template("chart.svg").render(x=x, y=y, marks=marks, **frame, **ticks))


def _range(values: Sequence[Array]) -> Ends:
    joined = np.concatenate(values)
    finite = joined[np.isfinite(joined)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> dict[float, str]:
    """Three to seven round numbers of a range, as 1, 2 or 5 times a power of ten, with their texts."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= 6)
    places = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    return {float(place): f"{place:.10g}" for place in places}

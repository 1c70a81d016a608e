"""Charts as inline SVG, by one template; colours are the page's, so they suit a dark one, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from classify.evaluation.metrics import Array
from classify.report.environment import templates

Ends = tuple[float, float]

# Pixels around the axes.
_TOP = 28
_RIGHT = 14
_BOTTOM = 46
# Pixels left of the axes without the labels of ticks, and pixels of a character of these.
_LEFT = 34
_CHARACTER = 7
# Characters of a tick's label beyond which the chart would have no room.
_LONGEST = 28
# A line of fewer values has a dot at each.
_FEW = 12
# Share of a place's width that its bars take together.
_FILLED = 0.7
# Of the first series, and of the second.
_COLOURS = ("accent", "second")


@dataclass(frozen=True)
class Series:
    """Values to draw, xs and ys (n,), as a "line", as a "diagonal", as "dots", or as "bars" from 0."""

    name: str
    xs: Array
    ys: Array
    kind: str = "line"


def plot(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    ends: tuple[Ends, Ends] | None = None,
    size: tuple[int, int] = (600, 320),
    x_names: Sequence[str] = (),
) -> str:
    """Draw up to two series as an SVG element. `x_names` label the places 0, 1, ... of the x axis.

    The axes span the values of all series, or `ends`: (lowest, highest) x and y.
    """
    (x_low, x_high), (y_low, y_high) = ends or (_range([one.xs for one in series]), _range([one.ys for one in series]))
    x_ticks, y_ticks = dict(enumerate(x_names)) or _ticks(x_low, x_high), _ticks(y_low, y_high)
    left = _LEFT + _CHARACTER * min(_LONGEST, max(map(len, y_ticks.values()), default=1))
    right, bottom = size[0] - _RIGHT, size[1] - _BOTTOM

    def across(value: float) -> float:
        return round(left + (right - left) * (value - x_low) / (x_high - x_low), 2)

    def up(value: float) -> float:
        return round(_TOP + (bottom - _TOP) * (y_high - value) / (y_high - y_low), 2)

    marks = []
    width = round(_FILLED * (across(1) - across(0)) / len(series), 2)
    for number, one in enumerate(series):
        pairs = zip(one.xs.tolist(), one.ys.tolist(), strict=True)
        places = [(across(a), up(b)) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        begin = width * (number - len(series) / 2)
        has_dots = one.kind == "dots" or (one.kind == "line" and len(places) < _FEW)
        marks.append(
            {
                "name": one.name,
                "colour": "line" if one.kind == "diagonal" else _COLOURS[number],
                "dashed": one.kind == "diagonal",
                "path": " ".join(f"{a:g},{b:g}" for a, b in places) if one.kind in ("line", "diagonal") else "",
                "dots": places if has_dots else [],
                "bars": [(round(a + begin, 2), b, width, round(up(0) - b, 2)) for a, b in places if one.kind == "bars"],
            }
        )
    frame = {"width": size[0], "height": size[1], "left": left, "right": right, "top": _TOP, "bottom": bottom}
    template = templates().get_template("chart.svg")
    ticks = {
        "x_ticks": [(across(value), text) for value, text in x_ticks.items()],
        "y_ticks": [(up(value), text) for value, text in y_ticks.items()],
    }
    return str(template.render(x=x, y=y, marks=marks, **frame, **ticks))


def plot_square(series: Sequence[Series], *, x: str, y: str, ends: Ends | None = None) -> str:
    """Draw lines and dots in a square, with the dashed diagonal where both values are the same."""
    ends = ends or _range([values for one in series for values in (one.xs, one.ys)])
    diagonal = Series("", np.array(ends), np.array(ends), "diagonal")
    return plot([*series, diagonal], x=x, y=y, ends=(ends, ends), size=(440, 400))


def bars(names: Sequence[str], series: Sequence[tuple[str, Array]], *, x: str, y: str) -> str:
    """Draw up to two numbers per name beside each other: (what is counted, a number per name)."""
    drawn = [Series(name, np.arange(len(names)), values, "bars") for name, values in series]
    highest = float(max(values.max() for _, values in series))
    return plot(drawn, x=x, y=y, ends=((-0.6, len(names) - 0.4), (0.0, highest)), x_names=names)


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

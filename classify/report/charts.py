"""Charts as inline SVG, by one template; colours are the page's, so they suit a dark one, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from classify.evaluation.metrics import Array
from classify.report.environment import templates

_COLOURS = ("accent", "second")
# Pixels around the axes; a character of a label is about seven wide.
_TOP, _RIGHT, _BOTTOM, _CHARACTER = 28, 14, 46, 7


@dataclass
class _Mark:
    """What is drawn of one series, in pixels."""

    colour: str
    name: str = ""
    path: str = ""
    dashed: bool = False
    dots: list[tuple[float, float]] = field(default_factory=list)
    bars: list[tuple[float, float, float, float]] = field(default_factory=list)
    radius: float = 2.5
    opacity: float = 1.0


class _Axes:
    """Axes over two ranges of values, with what is drawn in them; `names` label places 0, 1, ... of an axis."""

    def __init__(
        self,
        x: str,
        y: str,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        size: tuple[int, int] = (600, 320),
        x_names: Sequence[str] = (),
    ):
        self._x, self._y, self._size, self._marks = x, y, size, list[_Mark]()
        self._x_range, self._y_range = _widen(x_range), _widen(y_range)
        self._x_ticks = dict(enumerate(x_names)) or _ticks(self._x_range)
        self._y_ticks = _ticks(self._y_range)
        self._left = 34 + _CHARACTER * min(28, max(map(len, self._y_ticks.values()), default=1))

    def line(
        self, xs: Array, ys: Array, colour: str, name: str = "", *, dashed: bool = False, dots: bool = True
    ) -> None:
        """Draw a line, with a dot at each value where there are few."""
        places = self._places(xs, ys)
        path = " ".join(f"{x:g},{y:g}" for x, y in places)
        self._marks.append(_Mark(colour, name, path, dashed, places if dots and len(places) < 12 else []))

    def dots(self, xs: Array, ys: Array, colour: str, name: str = "", *, opacity: float = 1.0) -> None:
        """Draw a dot at each value."""
        self._marks.append(_Mark(colour, name, dots=self._places(xs, ys), opacity=opacity))

    def bars(self, values: Sequence[float], colour: str, name: str = "", *, place: int = 0, of: int = 1) -> None:
        """Draw a bar from 0 to each value; the number `place` of `of` beside each other."""
        width = 0.7 * (self._horizontal(1) - self._horizontal(0)) / of
        floor = self._vertical(0)
        places = self._places(np.arange(len(values)), np.array(values))
        begin = width * (place - of / 2)
        bars = [(_round(x + begin), y, _round(width), _round(floor - y)) for x, y in places]
        self._marks.append(_Mark(colour, name, bars=bars))

    def draw(self) -> str:
        """The SVG element."""
        width, height = self._size
        return str(
            templates()
            .get_template("chart.svg")
            .render(
                x=self._x,
                y=self._y,
                width=width,
                height=height,
                left=self._left,
                right=width - _RIGHT,
                top=_TOP,
                bottom=height - _BOTTOM,
                x_ticks=[(self._horizontal(value), text) for value, text in self._x_ticks.items()],
                y_ticks=[(self._vertical(value), text) for value, text in self._y_ticks.items()],
                marks=self._marks,
            )
        )

    def _places(self, xs: Array, ys: Array) -> list[tuple[float, float]]:
        pairs = zip(xs.tolist(), ys.tolist(), strict=True)
        return [(self._horizontal(x), self._vertical(y)) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]

    def _horizontal(self, value: float) -> float:
        low, high = self._x_range
        return _round(self._left + (self._size[0] - _RIGHT - self._left) * (value - low) / (high - low))

    def _vertical(self, value: float) -> float:
        low, high = self._y_range
        return _round(_TOP + (self._size[1] - _BOTTOM - _TOP) * (high - value) / (high - low))


def lines(series: Sequence[tuple[str, Array, Array]], *, x: str, y: str, highest: float | None = None) -> str:
    """Draw up to two lines: (name, x values, y values), no value above the `highest` that can be."""
    x_range, y_range = (_range(np.concatenate([one[axis] for one in series])) for axis in (1, 2))
    if highest is not None:
        x_range, y_range = ((min(low, highest - 1), highest) for low, _ in (x_range, y_range))
    axes = _Axes(x, y, x_range, y_range)
    for (name, xs, ys), colour in zip(series, _COLOURS, strict=False):
        axes.line(xs, ys, colour, name if len(series) > 1 else "")
    return axes.draw()


def curve(points: tuple[Array, Array], line: tuple[Array, Array], *, x: str, y: str) -> str:
    """Draw points and a line through them: (x values, y values) of each."""
    axes = _Axes(x, y, *(_range(np.concatenate([points[axis], line[axis]])) for axis in (0, 1)))
    axes.line(*line, "second", "expected")
    axes.dots(*points, "accent", "measured")
    return axes.draw()


def reliability(
    before: tuple[Array, Array] | None, after: tuple[Array, Array], *, x: str = "confidence", y: str = "accuracy"
) -> str:
    """Draw the share that is right over the mean probability, in bins of equal mass; `before` is uncalibrated."""
    axes = _Axes(f"{x} in %", f"{y} in %", (0, 100), (0, 100), size=(440, 400))
    axes.line(np.array([0, 100]), np.array([0, 100]), "line", dashed=True)
    if before is not None:
        axes.line(100 * before[0], 100 * before[1], "second", "before temperature")
    axes.line(100 * after[0], 100 * after[1], "accent", "as saved" if before is not None else "")
    return axes.draw()


def counts(names: Sequence[str], series: Sequence[tuple[str, Sequence[int]]], *, x: str, y: str) -> str:
    """Draw up to two numbers per name beside each other: (what is counted, a number per name)."""
    highest = max(max(values) for _, values in series)
    axes = _Axes(x, y, (-0.6, len(names) - 0.4), (0, highest), x_names=names)
    for place, ((name, values), colour) in enumerate(zip(series, _COLOURS, strict=False)):
        axes.bars(values, colour, name, place=place, of=len(series))
    return axes.draw()


def scatter(x_values: Array, y_values: Array, *, x: str, y: str) -> str:
    """Draw points, at most 1,500 of them, and the diagonal."""
    ends = np.array(_range(np.concatenate([x_values, y_values])))
    axes = _Axes(x, y, (ends[0], ends[1]), (ends[0], ends[1]), size=(460, 420))
    axes.line(ends, ends, "line", dashed=True)
    shown = np.linspace(0, len(x_values) - 1, min(len(x_values), 1_500)).astype(int)
    axes.dots(x_values[shown], y_values[shown], "accent", opacity=0.5)
    return axes.draw()


def _range(values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def _widen(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return ends if high > low else (low - 0.5, high + 0.5)


def _ticks(ends: tuple[float, float]) -> dict[float, str]:
    """Return three to seven round numbers in a range, as 1, 2 or 5 times a power of ten, with their texts."""
    low, high = ends
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= 6)
    places = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    return {float(place): f"{place:.10g}" for place in places}


def _round(value: float) -> float:
    return round(value, 2)

"""Charts as inline SVG, drawn by matplotlib; colours come from the page, so they suit a dark one, too."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

# Colours in the drawing that the page replaces by its own variables.
_INK, _MUTED, _FIRST, _SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "ink", _MUTED: "line", _FIRST: "accent", _SECOND: "second"}
_SIZE = (6.0, 3.2)


def lines(series: Sequence[tuple[str, Array, Array]], *, x: str, y: str) -> str:
    """Draw up to two lines: (name, x values, y values)."""
    with _Chart(x, y) as chart:
        for (name, xs, ys), colour in zip(series, (_FIRST, _SECOND), strict=False):
            marker = "o" if len(xs) < 12 else ""
            chart.axes.plot(xs, ys, color=colour, label=name, marker=marker, markersize=4, linewidth=1.8)
        if len(series) > 1:
            chart.legend()
    return chart.svg


def reliability(before: tuple[Array, Array] | None, after: tuple[Array, Array]) -> str:
    """Draw accuracy over mean confidence, in bins of equal mass."""
    with _Chart("confidence", "accuracy", size=(4.4, 4.0)) as chart:
        chart.axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1.2, linestyle="--")
        if before is not None:
            chart.axes.plot(*before, color=_SECOND, marker="o", markersize=4, linewidth=1.2, label="before temperature")
        chart.axes.plot(*after, color=_FIRST, marker="o", markersize=5, linewidth=1.8, label="as saved")
        chart.axes.set_xlim(0, 1)
        chart.axes.set_ylim(0, 1.02)
        chart.legend()
    return chart.svg


def bars(names: Sequence[str], values: Sequence[float], *, x: str, y: str) -> str:
    """Draw bars from 0 to 1."""
    with _Chart(x, y) as chart:
        chart.axes.bar(range(len(names)), values, color=_FIRST, width=0.7)
        chart.axes.set_xticks(range(len(names)), names)
        chart.axes.set_ylim(0, 1)
    return chart.svg


def points(names: Sequence[str], series: Sequence[tuple[str, Array]]) -> str:
    """Draw up to two values from 0 to 1 per name: (what it is, a value per name)."""
    with _Chart("value", "label", size=(6.0, 1.2 + 0.24 * len(names))) as chart:
        rows = np.arange(len(names))[::-1]
        for (name, values), colour in zip(series, (_FIRST, _SECOND), strict=False):
            chart.axes.plot(values, rows, color=colour, label=name, marker="o", markersize=5, linestyle="")
        chart.axes.set_yticks(rows, names)
        chart.axes.set_xlim(-0.02, 1.02)
        chart.axes.set_ylim(-0.8, len(names) - 0.2)
        chart.legend()
    return chart.svg


def scatter(x_values: Array, y_values: Array, *, x: str, y: str) -> str:
    """Draw points, at most 1,500 of them, and the diagonal."""
    with _Chart(x, y, size=(4.6, 4.2)) as chart:
        low, high = float(min(x_values.min(), y_values.min())), float(max(x_values.max(), y_values.max()))
        chart.axes.plot([low, high], [low, high], color=_MUTED, linewidth=1.2, linestyle="--")
        points = np.linspace(0, len(x_values) - 1, min(len(x_values), 1_500)).astype(int)
        chart.axes.scatter(x_values[points], y_values[points], s=9, color=_FIRST, alpha=0.5, linewidths=0)
    return chart.svg


def matrix(shares: Array) -> str:
    """Draw a matrix of shares (rows, columns) from 0 to 1 as a PNG, a few pixels per cell, as base64."""
    import base64

    from PIL import Image

    level = np.clip(shares, 0, 1)[..., None] ** 0.5
    light, dark = np.array([244, 246, 250]), np.array([27, 84, 150])
    pixels = (light + (dark - light) * level).astype(np.uint8)
    scale = max(2, min(16, 600 // max(1, len(shares))))
    image = Image.fromarray(np.kron(pixels, np.ones((scale, scale, 1), dtype=np.uint8)))
    file = io.BytesIO()
    image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


class _Chart:
    """A figure; `svg` is its drawing once the block has ended."""

    def __init__(self, x: str, y: str, size: tuple[float, float] = _SIZE):
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=size, layout="constrained")
        self.axes: Axes = self._figure.add_subplot()
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)
        self.svg = ""

    def __enter__(self) -> _Chart:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.svg = self._draw()

    def legend(self) -> None:
        """Name the lines."""
        self.axes.legend(frameon=False, labelcolor=_INK)

    def _draw(self) -> str:
        from matplotlib import rc_context

        axes = self.axes
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(color=_MUTED, linewidth=0.5)
        axes.set_axisbelow(True)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(_INK)
            label.set_fontsize(10)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_MUTED)
        self._figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        file = io.StringIO()
        # Text stays text, for search and screen readers; ids are the same in each report of the same figures.
        description = f"{axes.get_ylabel()} over {axes.get_xlabel()}"
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
            self._figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return _for_page(file.getvalue(), description)


def _for_page(svg: str, description: str) -> str:
    """Return the SVG element alone, without ids that clash and style attributes that the page's policy refuses."""
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    svg = re.sub(r'style="([^"]*)"', lambda match: _attributes(match[1]), svg)
    for colour, name in _VARIABLES.items():
        svg = svg.replace(f'"{colour}"', f'"var(--{name})"')
    return svg


def _attributes(style: str) -> str:
    """Return CSS declarations as presentation attributes; a page without inline styles shows those."""
    declarations = (part.split(":", 1) for part in style.split(";") if ":" in part)
    kept = []
    for name, value in ((name.strip(), value.strip().replace('"', "'")) for name, value in declarations):
        if name == "font":  # such as: 9px 'DejaVu Sans', sans-serif
            size = re.match(r"[\d.]+px", value)
            kept += [f'font-size="{size[0]}"'] if size else []
        elif name != "font-family":
            kept.append(f'{name}="{value}"')
    return " ".join(kept)

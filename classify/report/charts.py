"""Charts as inline SVG, drawn by matplotlib; colours come from the page, so they suit a dark one, too."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np

from classify.evaluation.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Colours in the drawing that the page replaces by its own variables.
_INK, _MUTED, _FIRST, _SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "ink", _MUTED: "line", _FIRST: "accent", _SECOND: "second"}
_SIZE = (6.0, 3.2)


def lines(series: Sequence[tuple[str, Array, Array]], *, x: str, y: str) -> str:
    """Draw up to two lines: (name, x values, y values)."""
    axes = _axes(x, y)
    for (name, xs, ys), colour in zip(series, (_FIRST, _SECOND), strict=False):
        marker = "o" if len(xs) < 12 else ""
        axes.plot(xs, ys, color=colour, label=name, marker=marker, markersize=4, linewidth=1.8)
    if len(series) > 1:
        _legend(axes)
    return _draw(axes)


def reliability(
    before: tuple[Array, Array] | None, after: tuple[Array, Array], *, x: str = "confidence", y: str = "accuracy"
) -> str:
    """Draw the share that is right over the mean probability, in bins of equal mass; `before` is uncalibrated."""
    axes = _axes(x, y, size=(4.4, 4.0))
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1.2, linestyle="--")
    if before is not None:
        axes.plot(*before, color=_SECOND, marker="o", markersize=4, linewidth=1.2, label="before temperature")
    axes.plot(*after, color=_FIRST, marker="o", markersize=5, linewidth=1.8, label="as saved")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    if before is not None:
        _legend(axes)
    return _draw(axes)


def bars(names: Sequence[str], values: Sequence[float], *, x: str, y: str) -> str:
    """Draw bars from 0 to 1."""
    axes = _axes(x, y)
    axes.bar(range(len(names)), values, color=_FIRST, width=0.7)
    axes.set_xticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(0, 1)
    return _draw(axes)


def points(names: Sequence[str], series: Sequence[tuple[str, Array]]) -> str:
    """Draw up to two values from 0 to 1 per name: (what it is, a value per name)."""
    axes = _axes("value", "label", size=(6.0, 1.2 + 0.24 * len(names)))
    rows = np.arange(len(names))[::-1]
    for (name, values), colour in zip(series, (_FIRST, _SECOND), strict=False):
        axes.plot(values, rows, color=colour, label=name, marker="o", markersize=5, linestyle="")
    axes.set_yticks(rows, names, parse_math=False)  # labels may have dollar signs
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.8, len(names) - 0.2)
    _legend(axes)
    return _draw(axes)


def scatter(x_values: Array, y_values: Array, *, x: str, y: str) -> str:
    """Draw points, at most 1,500 of them, and the diagonal."""
    axes = _axes(x, y, size=(4.6, 4.2))
    low, high = float(min(x_values.min(), y_values.min())), float(max(x_values.max(), y_values.max()))
    axes.plot([low, high], [low, high], color=_MUTED, linewidth=1.2, linestyle="--")
    points = np.linspace(0, len(x_values) - 1, min(len(x_values), 1_500)).astype(int)
    axes.scatter(x_values[points], y_values[points], s=9, color=_FIRST, alpha=0.5, linewidths=0)
    return _draw(axes)


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


def _axes(x: str, y: str, size: tuple[float, float] = _SIZE) -> Axes:
    """Return the axes of a new figure."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=size, layout="constrained").add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _legend(axes: Axes) -> None:
    """Name the lines."""
    axes.legend(frameon=False, labelcolor=_INK)


def _draw(axes: Axes) -> str:
    """Return the SVG element of the axes' figure."""
    from matplotlib import rc_context

    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(color=_MUTED, linewidth=0.5)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(_INK)
        label.set_fontsize(10)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_MUTED)
    figure: Any = axes.figure
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    file = io.StringIO()
    # Text stays text, for search and screen readers; ids are the same in each report of the same figures.
    description = f"{axes.get_ylabel()} over {axes.get_xlabel()}"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
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

"""The environment of the report's templates."""

from __future__ import annotations

import functools
import re
from typing import Any

from classify.evaluation.metrics import is_share


def count(number: int, noun: str) -> str:
    """E.g. "1 row", "1,200 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """E.g. "81.8 %", which no line is broken in."""
    return f"{100 * share:.1f}\u00a0%"


def show(name: str, value: float) -> str:
    """The value of a metric: shares in percent, others with three digits."""
    return percent(value) if is_share(name) else f"{value:.3f}"


def show_range(name: str, ends: tuple[float, float]) -> str:
    """The interval of a metric, e.g. "79.1 to 84.2 %"."""
    low, high = ends
    return f"{100 * low:.1f} to {100 * high:.1f} %" if is_share(name) else f"{low:.3f} to {high:.3f}"


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")


@functools.cache
def templates() -> Any:
    """The environment of the templates; texts are escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classify.report"),
        autoescape=jinja2.select_autoescape(["html", "svg"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = _escape_markdown
    environment.globals.update(counted=count, percent=percent, show=show, show_range=show_range)
    return environment


def _escape_markdown(text: object) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))

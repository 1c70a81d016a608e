"""The environment of the report's templates, and how numbers are written in them."""

from __future__ import annotations

import functools
import re
import shlex

import jinja2

from classify.evaluation.metrics import is_share

# Characters that mean something to Markdown.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """E.g. "81.8 %", which no line is broken in."""
    return f"{100 * share:.1f}\u00a0%"


def show(name: str, value: float | tuple[float, float]) -> str:
    """The value of a metric, or its interval ("79.1 to 84.2 %"): shares in percent, others with three digits."""
    if isinstance(value, float | int):
        return percent(value) if is_share(name) else f"{value:.3f}"
    low, high = value
    return f"{100 * low:.1f} to {100 * high:.1f} %" if is_share(name) else f"{low:.3f} to {high:.3f}"


@functools.cache
def templates() -> jinja2.Environment:
    """The environment of the templates; texts are escaped in HTML and SVG."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classify.report"),
        autoescape=jinja2.select_autoescape(["html", "svg"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(md=_escape_markdown, python=repr, shell=_quote)
    environment.globals.update(counted=count, percent=percent, show=show)
    return environment


def _quote(path: object) -> str:
    return shlex.quote(str(path))


def _escape_markdown(text: object) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))

"""The environment of the report's templates."""

from __future__ import annotations

import functools
import re
from typing import Any


def count(number: int, noun: str) -> str:
    """Return e.g. "1 row", "1,200 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")


@functools.cache
def templates() -> Any:
    """Return the environment of the templates; texts are escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classify.report"),
        autoescape=jinja2.select_autoescape(["html", "svg"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = _escape_markdown
    environment.globals["counted"] = count
    return environment


def _escape_markdown(text: object) -> str:
    """Return a text as inert Markdown in one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))

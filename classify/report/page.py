"""Write pages: one file that requests nothing and is readable without JavaScript."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

from classify.evaluation.metrics import display_name
from classify.files import atomic_write
from classify.report.comparison import Comparison, verdict
from classify.report.result import Result
from classify.report.sections import SECTIONS
from classify.report.verdict import sentences
from classify.report.wording import count
from classify.versions import versions

FILE = "report.html"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")


def write_report(folder: Path) -> Path:
    """Write report.html into a result folder, from its files. Raises OSError, ValueError or InputError."""
    page = render(Result.read(folder))
    with atomic_write(folder / FILE) as file:
        file.write(page)
    return folder / FILE


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page of a comparison."""
    names = list(map(display_name, comparison.metrics))
    page = _render("comparison.html", own=False, comparison=comparison, names=names, verdict=verdict)
    with atomic_write(path) as file:
        file.write(page)


def render(result: Result) -> str:
    """Return the page of a result."""
    parts = [(section, section.context(result)) for section in (SECTIONS[name] for name in result.task.sections)]
    return _render(
        "page.html",
        own=True,
        name=result.folder.name,
        sentences=sentences(result),
        language=result.language,
        sections=[(section, values) for section, values in parts if values is not None],
        origin="trained on" if result.is_training else f"{result.model} scored on",
        data=result.run["data"]["path"],
    )


@functools.cache
def templates() -> Any:
    """Return the environment of the templates; texts are escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classify.report"),
        autoescape=jinja2.select_autoescape(["html"]),
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


def _render(template: str, **values: Any) -> str:
    """Return a page with the style and the script that its policy allows."""
    style, script = (str(templates().loader.get_source(templates(), name)[0]).strip() for name in _SOURCES)
    return str(
        templates()
        .get_template(template)
        .render(
            **values,
            style=style,
            script=script,
            style_hash=_policy_hash(style),
            script_hash=_policy_hash(script),
            version=versions()["classify"],
        )
    )


_SOURCES = ("style.css", "page.js")


def _policy_hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

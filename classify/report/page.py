"""Write report.html: one file that requests nothing and is readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from classify.data.files import atomic_write
from classify.report.result import Result
from classify.report.sections import SECTIONS
from classify.report.verdict import sentences

FILE = "report.html"


def write_report(folder: Path) -> Path:
    """Write report.html into a result folder, from its files. Raises OSError, ValueError or InputError."""
    page = render(Result.read(folder))
    with atomic_write(folder / FILE) as file:
        file.write(page)
    return folder / FILE


def render(result: Result) -> str:
    """Return the page of a result."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classify.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (_source(environment, name) for name in ("style.css", "sort.js"))
    parts = [(section, section.context(result)) for section in SECTIONS[result.task.name]]
    return environment.get_template("page.html").render(
        name=result.folder.name,
        sentences=sentences(result),
        sections=[(section, values) for section, values in parts if values is not None],
        style=style,
        script=script,
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        data=result.run["data"]["path"],
        version=result.run["versions"]["classify"],
    )


def _source(environment: Any, name: str) -> str:
    return str(environment.loader.get_source(environment, name)[0]).strip()


def _policy_hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

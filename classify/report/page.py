"""Write pages: one file that requests nothing and is readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any

from classify.files import atomic_write
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.sections import SECTIONS
from classify.report.verdict import sentences
from classify.versions import versions

FILE = "report.html"


def write_report(folder: Path) -> Path:
    """Write report.html into a result folder, from its files. Raises OSError, ValueError or InputError."""
    page = render(Result.read(folder))
    with atomic_write(folder / FILE) as file:
        file.write(page)
    return folder / FILE


def render(result: Result) -> str:
    """The page of a result."""
    parts = [
        (section, section.context(result)) for section in (SECTIONS[name] for name in result.task.answers.sections)
    ]
    return _render(
        "page.html",
        name=result.folder.name,
        sentences=sentences(result),
        language=result.language,
        sections=[(section, values) for section, values in parts if values is not None],
        origin=_describe_origin(result),
    )


def _describe_origin(result: Result) -> str:
    """The table, the model and the day."""
    data, day = result.run["data"]["path"], ""
    if "date" in result.run:  # not in runs of earlier versions
        day = f"{datetime.fromisoformat(result.run['date']):, %-d %B %Y}"
    if not result.is_training:
        return f"{result.model} scored on {data}{day}"
    return f"trained on {data} from {result.run['config']['model']['model']}{day}"


def _render(template: str, **values: Any) -> str:
    """A page with the style and the script that its policy allows."""
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
    """The hash by which a Content-Security-Policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

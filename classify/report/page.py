"""Write report.html: one file that requests nothing and is readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from pathlib import Path

from classify.files import atomic_write
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.sections import SECTIONS
from classify.report.verdict import sentences
from classify.versions import versions

FILE = "report.html"


def write_report(result: Result) -> Path:
    """Write report.html into the folder of a result. Raises OSError, ValueError or InputError."""
    page = render(result)
    with atomic_write(result.folder / FILE) as file:
        file.write(page)
    return result.folder / FILE


def render(result: Result) -> str:
    """The page of a result, with the style and the script that its policy allows."""
    sections = [(SECTIONS[name], SECTIONS[name].context(result)) for name in result.task.answers.sections]
    environment = templates()
    inline: dict[str, str] = {}
    for kind, name in {"style": "style.css", "script": "page.js"}.items():
        inline[kind] = text = environment.loader.get_source(environment, name)[0].strip()  # type: ignore[union-attr]
        # The hash by which a Content-Security-Policy allows an inline style or script.
        inline[f"{kind}_hash"] = "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        result=result,
        name=result.folder.name,
        sentences=sentences(result),
        language=result.language,
        sections=[(section, values) for section, values in sections if values is not None],
        origin=_describe_origin(result),
        version=versions()["classify"],
        **inline,
    )


def _describe_origin(result: Result) -> str:
    """The table, the model and the day."""
    data, day = result.run["data"]["path"], ""
    if "date" in result.run:  # not in runs of earlier versions
        day = f"{datetime.fromisoformat(result.run['date']):, %-d %B %Y}"
    if not result.is_training:
        return f"{result.model} scored on {data}{day}"
    return f"trained on {data} from {result.run['config']['model']['model']}{day}"

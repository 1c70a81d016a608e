"""Write report.html, one file that requests nothing and is readable without JavaScript, and the model card."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from classify.config.schema import TrainingConfig
from classify.files import atomic_write, read_json, write_json
from classify.launch.launch import Launch
from classify.prediction import explanations
from classify.report.card import write_card
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.sections import SECTIONS
from classify.report.verdict import sentences
from classify.training.terminal import Timeline, log, log_detail
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
    data, day = result.run["data"]["path"], f"{datetime.fromisoformat(result.run['date']):, %-d %B %Y}"
    source = f"{result.model} scored on {data}"
    if result.is_training:
        source = f"trained on {data} from {result.run['config']['model']['model']}"
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
        origin=f"{source}{day}",
        version=versions()["classify"],
        **inline,
    )


def write_pages_of_run(folder: Path, training: TrainingConfig, timeline: Timeline, launch: Launch) -> None:
    """Write the pages of a training run, on the ranks that write its folder; the others do nothing.

    With --verbose, print where the time went; run.json keeps it.
    """
    is_writer = launch.is_main or (training.save_on_each_node and launch.is_local_main)
    if is_writer and write_pages(folder, use_cpu=training.use_cpu):
        timeline.end("report")
        with _log_failure(folder / "run.json"):
            write_json(folder / "run.json", {**read_json(folder / "run.json"), "seconds": timeline.seconds})
        log_detail(f"time: {timeline.describe()}")


def write_pages(folder: Path, *, use_cpu: bool = False) -> bool:
    """Write report.html and, of a training run, the model card; print the path.

    A failure is a note: the run is done. The result is False where the report is newer than the scores.
    """
    page, scores = folder / "report.html", folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return False
    has_model = (folder / "classify.json").exists()  # the folder of an evaluation has none
    if has_model:
        with _log_failure(folder / explanations.FILE):
            explanations.write_explanations(folder, use_cpu=use_cpu)
    with _log_failure(page):
        result = Result.read(folder)
        if has_model:
            with _log_failure(folder / "README.md"):
                write_card(result)
        log(f"report: {write_report(result)}")
    return True


@contextlib.contextmanager
def _log_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log(f"note: {path} is not written ({type(error).__name__}: {error})")

"""Write the report and the model card."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from classify import report
from classify.config.schema import TrainingConfig
from classify.files import read_json, write_json
from classify.launch.launch import Launch
from classify.prediction import explanations
from classify.training.terminal import Timeline, log, log_detail


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
    """Write report.html and, of a training run, the model card; False where the folder has no new results.

    Prints the report's path. A failure is a note: the run is done.
    """
    page, scores = folder / "report.html", folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return False
    has_model = (folder / "classify.json").exists()  # the folder of an evaluation has none
    if has_model:
        with _log_failure(folder / explanations.FILE):
            explanations.write_explanations(folder, use_cpu=use_cpu)
    with _log_failure(page):
        result = report.result.Result.read(folder)
        if has_model:
            with _log_failure(folder / "README.md"):
                report.card.write_card(result)
        log(f"report: {report.page.write_report(result)}")
    return True


@contextlib.contextmanager
def _log_failure(path: Path) -> Iterator[None]:
    """Print a note where a file cannot be written."""
    try:
        yield
    except Exception as error:
        log(f"note: {path} is not written ({type(error).__name__}: {error})")

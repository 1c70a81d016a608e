"""Write what people look at when a run has finished."""

from __future__ import annotations

from pathlib import Path

from classify.training.terminal import log


def write_pages(folder: Path, *, use_cpu: bool = False) -> None:
    """Write report.html and, of a training run, the model card, where the folder has new results.

    Prints the report's path. A failure is a note: the run is done.
    """
    page, scores = folder / "report.html", folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return
    try:
        from classify.report import page as report
        from classify.report.card import write_card

        if (folder / "classify.json").exists():  # the folder of an evaluation has no model
            from classify.prediction.explanations import write_explanations

            write_explanations(folder, use_cpu=use_cpu)
            write_card(folder)
        report.write_report(folder)
    except Exception as error:
        log(f"note: {page} is not written ({type(error).__name__}: {error})")
    else:
        log(f"report: {page}")

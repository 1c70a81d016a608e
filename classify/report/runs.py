"""List result folders: data, scores, time and status of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classify.console import align_columns
from classify.evaluation.metrics import display_name
from classify.files import read_json
from classify.tasks.registry import primary_metric

_HEADER = ("run", "data", "task", "model", "score", "TF-IDF", "time", "status")


@dataclass(frozen=True)
class RunSummary:
    """A result folder; scores are None until the run has finished."""

    folder: str
    data: str
    task: str
    model: str
    metric: str
    score: float | None
    baseline: float | None
    seconds: float | None
    status: str

    def cells(self) -> tuple[str, ...]:
        """Return the values as text, in the order of the header."""
        score = "" if self.score is None else f"{display_name(self.metric)} {self.score:.3f}"
        baseline = "" if self.baseline is None else f"{self.baseline:.3f}"
        seconds = "" if self.seconds is None else f"{self.seconds:.0f} s"
        return (self.folder, self.data, self.task, self.model, score, baseline, seconds, self.status)


def list_runs(folder: Path) -> list[RunSummary]:
    """Return the runs below a folder, newest last; a folder that is a run is listed alone."""
    own = folder / "run.json"
    files = [own] if own.exists() else sorted(folder.glob("*/run.json"), key=lambda file: (file.stat().st_mtime, file))
    return [_summarize(file.parent) for file in files]


def table(runs: list[RunSummary]) -> list[str]:
    """Return the runs as lines of equal columns."""
    return align_columns([_HEADER, *(run.cells() for run in runs)])


def _summarize(folder: Path) -> RunSummary:
    try:
        return _read_summary(folder)
    except (AttributeError, TypeError, ValueError):  # a run.json of another program
        return RunSummary(str(folder), "", "", "", "", None, None, None, "damaged")


def _read_summary(folder: Path) -> RunSummary:
    run, metrics = _read(folder / "run.json"), _read(folder / "metrics.json")
    task = metrics.get("task") or run.get("task") or ""
    metric = primary_metric(task) or ""
    scores = metrics.get("test") or metrics.get("eval") or {}
    return RunSummary(
        str(folder),
        Path(run.get("data", {}).get("path", "")).name,
        task,
        Path(str(metrics.get("model") or run.get("config", {}).get("model", {}).get("model") or "")).name,
        metric,
        scores.get(metric),
        (metrics.get("baseline") or {}).get(metric),
        metrics.get("wall_seconds"),
        str(run.get("status", "damaged")),
    )


def _read(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; {} where it is missing or damaged."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

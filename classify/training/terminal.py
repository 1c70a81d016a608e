"""Print decisions, results and notes of a run: as JSON lines with --json, errors only with --quiet."""

from __future__ import annotations

import json
from typing import Any

from classify.config.output import OutputConfig
from classify.console import allow_progress, print_line
from classify.errors import escape_controls
from classify.findings import Finding

# The settings of the run in this process; there is one at a time.
_settings = OutputConfig()


def configure_terminal(settings: OutputConfig, *, is_main: bool = True) -> None:
    """Print as these settings say from here on; only the main process shows progress."""
    global _settings
    _settings = settings
    allow_progress(is_main and not settings.quiet and not settings.json)


def log(text: str) -> None:
    """Print a line where a progress bar may be shown."""
    if _settings.json:
        log_event("message", {"text": text} if text else {})
    elif not _settings.quiet:
        print_line(escape_controls(text))


def log_decision(decision: Finding) -> None:
    """Print an important or doubtful decision; with --verbose any."""
    if _settings.json:
        log_event("decision", decision.as_guess())
    elif decision.level != "detail" or _settings.verbose:
        log(decision.line())


def log_detail(text: str) -> None:
    """Print a line only with --verbose."""
    if _settings.verbose or _settings.json:
        log(text)


def log_event(name: str, values: dict[str, Any]) -> None:
    """Print a line of JSON under --json; nothing otherwise, and for empty values."""
    if _settings.json and values:
        print_line(json.dumps({"event": name, **values}, ensure_ascii=False))

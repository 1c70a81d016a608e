"""What a run prints (JSON lines with --json, errors only with --quiet), and the time that it counts."""

from __future__ import annotations

import json
import operator
import time
from typing import Any

from classify.config.schema import OutputConfig
from classify.console import allow_progress, print_line
from classify.errors import escape_controls
from classify.findings import Finding

# The settings of the run in this process, and whether it prints; there is one run at a time.
_settings = OutputConfig()
_is_main = True


def configure_terminal(settings: OutputConfig, *, is_main: bool = True) -> None:
    """Print as these settings say from here on, on the main process alone."""
    global _settings, _is_main
    _settings, _is_main = settings, is_main
    allow_progress(is_main and not settings.quiet and not settings.json)


def log(text: str) -> None:
    """Print a line where a progress bar may be shown, on the main process."""
    if _settings.json:
        log_event("message", {"text": text} if text else {})
    elif _is_main and not _settings.quiet:
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
    if _settings.json and _is_main and values:
        print_line(json.dumps({"event": name, **values}, ensure_ascii=False))


class Timeline:
    """Seconds by phase, which add up to the time since the command was given, `started` (seconds since the epoch)."""

    def __init__(self, started: float | None = None):
        self._started = self._ended = time.time() if started is None else started
        self.seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        return time.time() - self._started

    def end(self, phase: str) -> None:
        """Count the time since the last phase ended for this one."""
        now = time.time()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._ended
        self._ended = now

    def describe(self) -> str:
        """E.g. "12.3 s (imports 2.1, steps 8.0, ...)", the longest phases first."""
        ordered = sorted(self.seconds.items(), key=operator.itemgetter(1), reverse=True)
        return f"{sum(self.seconds.values()):.1f} s ({', '.join(f'{name} {spent:.1f}' for name, spent in ordered)})"

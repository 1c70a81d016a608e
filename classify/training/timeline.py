"""Where the time of a run goes."""

from __future__ import annotations

import time


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
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return f"{sum(self.seconds.values()):.1f} s ({', '.join(f'{name} {spent:.1f}' for name, spent in ordered)})"

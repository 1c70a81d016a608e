"""SIGINT and SIGTERM end a run at the next step, after saving, instead of in the middle of one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying; a second Ctrl-C, a second later or more, ends at once."""
    received: list[int] = []
    times: list[float] = []

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and times and time.monotonic() - times[0] > 1.0:
            raise KeyboardInterrupt
        received.append(number)
        times.append(time.monotonic())

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Ctrl-C ends a command wherever it is; in training SIGINT and SIGTERM do so at the next step, after saving."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A signal is one with those of the second behind the first: a launcher hands on what its workers have got already.
_ONE_SECONDS = 1.0
# How long a command may take to end once it was interrupted.
_END_SECONDS = 5.0

_interrupted: list[float] = []
_noted: set[int] = set()


def end_when_interrupted(speak: Callable[[], object]) -> None:
    """Have Ctrl-C end this process from here on, with KeyboardInterrupt as always, and with an end to waiting for it.

    Libraries may swallow the exception, or wait for other ranks without looking for signals. Where the process is
    still there after some seconds it speaks for itself, and leaves.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # of a job in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _tell_unraisable
    threading.Thread(target=_leave_when_late, args=(reading, speak), daemon=True).start()


def was_interrupted(error: BaseException) -> bool:
    """Whether a command ends with this error because of Ctrl-C: others may go wrong in its wake. No more of it then."""
    if _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return bool(_interrupted) or isinstance(error, KeyboardInterrupt)


def end_if_terminated() -> None:
    """End as SIGTERM asks where it came within `stop_signals` and an error was faster than the next step."""
    if signal.SIGTERM in _noted:
        signal.raise_signal(signal.SIGTERM)


def _interrupt(_: int, __: FrameType | None) -> None:
    _interrupted.append(time.monotonic())
    if len(_interrupted) == 1 or _interrupted[-1] - _interrupted[0] > _ONE_SECONDS:
        raise KeyboardInterrupt


def _leave_when_late(reading: int, speak: Callable[[], object]) -> None:
    """Wait for Ctrl-C, then for the end of the process. While others handle the signal, it is left to them."""
    while os.read(reading, 1) != bytes([signal.SIGINT]) or signal.getsignal(signal.SIGINT) is not _interrupt:
        pass
    time.sleep(_END_SECONDS)
    if signal.getsignal(signal.SIGINT) is _interrupt:
        speak()
    os._exit(128 + signal.SIGINT)


def _tell_unraisable(unraisable: Any) -> None:
    """Where Python can raise nothing, it prints a traceback; not of Ctrl-C."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying; a second Ctrl-C, a second later or more, ends at once."""
    received: list[int] = []
    times: list[float] = []

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and times and time.monotonic() - times[0] > _ONE_SECONDS:
            raise KeyboardInterrupt
        received.append(number)
        _noted.add(number)
        times.append(time.monotonic())

    try:
        wanted = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in wanted}
    except ValueError:  # not the main thread: the caller handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

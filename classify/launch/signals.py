"""Handle signals: Ctrl-C ends a command at once; SIGINT, SIGTERM and SIGHUP end training at a step, after saving.

SIGHUP comes when a terminal closes or a remote login is lost.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

# Signals within a second count once: workers may also get them from the launcher.
_SAME_SIGNAL_SECONDS = 1.0

_interrupted: list[float] = []


def handle_sigint() -> None:
    """Raise KeyboardInterrupt on SIGINT from here on, once a second, and remember it for `was_interrupted`."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a background job
    if not ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C caused this error; ignore it from here on."""
    if _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return bool(_interrupted) or isinstance(error, KeyboardInterrupt)


def _interrupt(_: int, __: FrameType | None) -> None:
    _interrupted.append(time.monotonic())
    if len(_interrupted) == 1 or _interrupted[-1] - _interrupted[0] > _SAME_SIGNAL_SECONDS:
        raise KeyboardInterrupt


@contextlib.contextmanager
def default_sigint() -> Iterator[None]:
    """Let SIGINT end the process at once in this block: torch handles no signals while it waits for other ranks."""
    if signal.getsignal(signal.SIGINT) is not _interrupt:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _interrupt)


@contextlib.contextmanager
def handle_signals(note: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `note` on SIGINT, SIGTERM and SIGHUP in this block, except in other threads than the main one.

    A signal that is ignored stays ignored: SIGHUP by nohup, SIGINT in a background job.
    """
    if threading.current_thread() is not threading.main_thread():  # the caller handles signals
        yield
        return
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # None: a handler that was not installed from Python, which could not be restored.
    numbers = [number for number in stopping if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of ending; a second Ctrl-C after one second ends at once."""
    received: list[int] = []
    times: list[float] = []

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and times and time.monotonic() - times[0] > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt
        received.append(number)
        times.append(time.monotonic())

    with handle_signals(note):
        yield received

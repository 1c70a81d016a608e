"""End a run in which a rank has stalled, and name it: the others would wait for it in a collective.

A thread of each rank looks twice a second at when its main thread last made progress within a step or an evaluation.
Where that is too long ago on any rank, all of them post to the ranks' store where they are. A rank that posts nothing
is stopped (SIGSTOP), or something in it holds the interpreter's lock; where faulthandler, which needs no lock, has
written its stack, another process of the machine reads it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from classify.console import is_terminal, print_line
from classify.launch import process_settings
from classify.launch.launcher import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

_POLL_SECONDS = 0.5
# A thread that wakes so much too late was stopped with its process, e.g. by Ctrl-Z or a scheduler.
_STOPPED_SECONDS = 2.0
# How long a rank may be silent after a call, at least and as a share of the limit: a busy machine wakes threads late.
_SILENT_SECONDS, _SILENT_SHARE = 1.2, 1 / 60
# How long one that knows what has stalled waits for the others, and for what it prints and writes.
_LEAVING_SECONDS, _PRINTING_SECONDS = 1.0, 2.0
_FRAMES = 5
# Modules in which a person holds a process: debuggers, and what writes to a terminal, which may be paused.
_DEBUGGERS, _PRINTING = {"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"}, {"tqdm", "classify.console"}
# Modules in which a rank waits for others: where it reads what a device computes with them, as under NCCL.
_WAITING = {
    "classify.distributed.world",
    "classify.distributed.batch_norm",
    "classify.evaluation.inference",
    "classify.training.strategies.base",
    "classify.training.trainer",
}
# Key of the store: a rank has an error to print.
FAILED = "failed"
# Keys of the store: a rank calls all to answer; what rank n answers; a rank prints the error.
_CALLED, _ANSWER, _PRINTED = "stall/called", "stall/rank-{}", "stall/printed"
# How likely the innermost frame is that of a rank that others wait for: code of the caller or of another library, this
# program, torch or an exchange, which wait for the other ranks.
_FOREIGN, _OWN, _WAITS = range(3)


@dataclass(frozen=True)
class _Mark:
    """What the main thread does, and when it last made progress; `watched`: within a block of `Watchdog.watch`."""

    phase: str
    since: float
    watched: bool


class Watchdog:
    """Watches the main thread of this process, and with a store the other ranks'. `seconds` 0: it does nothing.

    `before_exit` is called before the process ends.
    """

    def __init__(self, seconds: float = 0, launch: Launch | None = None, store: Store | None = None):
        self.seconds, self.launch, self.store = seconds, launch or Launch(), store
        self.before_exit: Callable[[], object] = lambda: None
        self._mark = _Mark("start", time.monotonic(), False)
        self._known: set[str] = set()
        self._inside = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        if store is None and not process_settings.is_program():  # there are other things in the caller's process
            self.seconds = 0

    @contextlib.contextmanager
    def watch(self, kind: str, number: int | None = None) -> Iterator[None]:
        """Expect progress within this block, a kind of work and its number. The first of a kind may compile or load.

        It is watched from its first `beat` only.
        """
        if not self.seconds:
            yield
            return
        if self._thread is None:
            self._start()
        self._mark = _Mark(kind if number is None else f"{kind} {number}", time.monotonic(), kind in self._known)
        self._known.add(kind)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._mark = replace(self._mark, phase=f"after {self._mark.phase}", since=time.monotonic(), watched=False)

    def beat(self) -> None:
        """Note progress within a block of `watch`; elsewhere do nothing."""
        if self._inside:
            self._mark = replace(self._mark, since=time.monotonic(), watched=True)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOPPED_SECONDS)
        self._thread = None

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=_Watch(self, threading.get_ident(), self._closed).run, name="watchdog", daemon=True
        )
        self._thread.start()


class _Watch:
    """The thread of a `Watchdog`: its own connection to the store, and what it has seen of the other ranks."""

    def __init__(self, watchdog: Watchdog, main_thread: int, closed: threading.Event):
        self.watchdog, self.main_thread, self.closed = watchdog, main_thread, closed
        self.rank, self.world_size = watchdog.launch.rank, watchdog.launch.world_size
        # A connection of this thread; torch's types lack the method.
        self.store = None if watchdog.store is None else watchdog.store.clone()  # type: ignore[attr-defined]
        self.answers: dict[int, dict[str, Any]] = {}  # of each rank: its last answer
        self.heard: dict[int, float] = {}  # when that came
        self.addresses: dict[int, dict[str, Any]] = {}  # where rank n is found, as far as that was read
        self.called: float | None = None
        self.calls = False
        self.missed = 0
        self.silence = max(_SILENT_SECONDS, _SILENT_SHARE * watchdog.seconds)
        self.resumed = 0.0
        self.ticks = 0
        self.call: threading.Thread | None = None
        self.stack = tempfile.TemporaryFile() if self.store is not None else None  # noqa: SIM115 - open to the end

    def run(self) -> None:
        """Look, until the watchdog is closed."""
        before = time.monotonic()
        while not self.closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now - before > _POLL_SECONDS + _STOPPED_SECONDS:
                self.resumed = now
            before = now
            self._look(now)
        if self.stack is not None:
            faulthandler.cancel_dump_traceback_later()
            self.stack.close()

    def _look(self, now: float) -> None:
        mark, limit, launch = self.watchdog._mark, self.watchdog.seconds, self.watchdog.launch
        age = now - max(mark.since, self.resumed)
        overdue = mark.watched and age >= limit
        if self.store is None or self.stack is None:
            if overdue and (message := self._describe({self.rank: self._answer(age)}, [])) is not None:
                self._end(message, [], prints=True)
            return
        faulthandler.dump_traceback_later(max(1.0, min(limit / 2, limit - 1)), file=self.stack)
        if not self._within_time(lambda: self._exchange(overdue, age, now)):
            # A stopped process does not answer; rank 0's serves the store, or the launcher's.
            self.missed += 1
            if overdue and self.missed > 1:
                server = "rank 0" if launch.main_serves_store else "the launcher"
                message = f"{server} has stalled: the store that it serves does not answer"
                self._end(message, [0] * launch.main_serves_store, prints=launch.is_first_without_store)
            return
        self.missed = 0
        if self.called is None or now - self.called < self.silence:
            return
        silent = [rank for rank in range(self.world_size) if now - self.heard.get(rank, self.called) >= self.silence]
        message = self._describe(self.answers, silent)
        if message is not None:
            first: list[bool] = []
            self._within_time(lambda: first.append(self.store is not None and self.store.add(_PRINTED, 1) == 1))
            self._end(message, silent, prints=first == [True])

    def _within_time(self, call: Callable[[], object]) -> bool:
        """Return whether a call of the store succeeded in time; none is made while an earlier one has not ended."""
        if self.call is not None and self.call.is_alive():
            self.call.join(self.silence)
            return False
        done: list[bool] = []

        def run() -> None:
            # A store whose process has ended is a lost peer, which the main thread sees.
            with contextlib.suppress(RuntimeError):
                call()
                done.append(True)

        self.call = threading.Thread(target=run, daemon=True)
        self.call.start()
        self.call.join(self.silence)
        return bool(done)

    def _exchange(self, overdue: bool, age: float, now: float) -> None:
        """Call all ranks where this one is overdue; answer, and read the answers, after a call."""
        store = self.store
        assert store is not None
        self.ticks += 1
        if self.ticks == 1:
            store.set(_ANSWER.format(self.rank), json.dumps(self._address()))
        if not self.addresses and store.check([_ANSWER.format(0)]):  # of the rank that may serve the store
            self.addresses[0] = json.loads(store.get(_ANSWER.format(0)))
        if overdue:
            store.set(_CALLED, "")
        elif self.calls:
            store.delete_key(_CALLED)  # the others were only slow
        self.calls = overdue
        if not store.check([_CALLED]):
            self.called = None
            self.answers.clear()
            self.heard.clear()
            return
        self.called = now if self.called is None else self.called
        store.set(_ANSWER.format(self.rank), json.dumps(self._address() | self._answer(age)))
        keys = {rank: _ANSWER.format(rank) for rank in range(self.world_size)}
        if not store.check(list(keys.values())):  # a rank that has not begun to watch has none
            keys = {rank: key for rank, key in keys.items() if store.check([key])}
        for rank, text in zip(keys, store.multi_get(list(keys.values())), strict=True):
            answer = json.loads(text)
            if "tick" in answer and answer != self.answers.get(rank):
                self.heard[rank] = now
            self.answers[rank] = self.addresses[rank] = answer

    def _address(self) -> dict[str, Any]:
        """Return where other processes find this one, and the stack that faulthandler writes."""
        assert self.stack is not None
        return {"host": _host(), "pid": os.getpid(), "stack_file": self.stack.fileno()}

    def _answer(self, age: float) -> dict[str, Any]:
        """Return what the main thread does."""
        held = _DEBUGGERS | (_PRINTING if is_terminal(sys.stdout) or is_terminal(sys.stderr) else set())
        frames, frame = [], sys._current_frames().get(self.main_thread)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return {
            "tick": self.ticks,
            "phase": self.watchdog._mark.phase,
            "age": age,
            "waits": _judge(frames[0]) if frames else _OWN,
            "held": any(held & {_module(frame), _package(frame)} for frame in frames),
            "stack": [_place(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames[:_FRAMES]],
        }

    def _describe(self, answers: Mapping[int, Mapping[str, Any]], silent: list[int]) -> str | None:
        """Return which ranks have stalled, and where; None where one makes progress, or a person holds it.

        Where all wait in torch, which of them the others wait for is not known, and all are named.
        """
        limit, stalled = self.watchdog.seconds, silent
        if self.rank in silent:  # what is late is this thread
            return None
        heard = {rank: answer for rank, answer in answers.items() if rank not in stalled and "tick" in answer}
        if any(answer["held"] or answer["age"] < limit for answer in heard.values()):
            return None
        if not stalled:
            least = min(answer["waits"] for answer in heard.values())
            stalled = [rank for rank, answer in heard.items() if answer["waits"] == least]
        parts = []
        for rank in stalled:
            who = f"rank {rank}" if self.world_size > 1 else "the run"
            if rank in heard:
                where = heard[rank]
                parts.append(f"{who} has stalled {_in_phase(where['phase'])}: {' < '.join(where['stack'])}")
            else:
                stack = self._stack_of(self.addresses.get(rank, {}))
                why = f"it holds the interpreter's lock: {stack}" if stack else "it does not respond"
                parts.append(f"{who} has stalled {_in_phase(self.watchdog._mark.phase)}: {why}")
        return "; ".join(parts)

    def _stack_of(self, address: Mapping[str, Any]) -> str:
        """Return the innermost frames that faulthandler has written in a process of this machine, or ""."""
        if address.get("host") != _host():
            return ""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{address['pid']}/fd/{address['stack_file']}").read_text(errors="replace")
            # The main thread began first, and comes last.
            frames = re.findall(r'  File "(.*)", line (\d+) in (.*)', text.split("\n\n")[-1].rpartition("hread 0x")[2])
            return " < ".join(_place(*frame) for frame in frames[:_FRAMES])
        return ""

    def _end(self, message: str, silent: list[int], *, prints: bool) -> None:
        """End this process; one of all prints the error."""
        try:
            # What has stalled may be the terminal, or the disk.
            report = threading.Thread(target=self._report, args=(message if prints else None,), daemon=True)
            report.start()
            report.join(_PRINTING_SECONDS)
            if self.store is not None:  # it may be in this process, and the others may not have read it
                time.sleep(_LEAVING_SECONDS)
            if not self.watchdog.launch.ends_peers:  # nobody else ends a process that cannot end itself
                for address in (self.addresses.get(rank, {}) for rank in silent):
                    if address.get("host") == _host():
                        with contextlib.suppress(OSError):
                            os.kill(address["pid"], signal.SIGKILL)
        finally:
            os._exit(1)

    def _report(self, message: str | None) -> None:
        """Print the error, if this rank does, and record it."""
        if message is not None and sys.stderr is not None:
            line_of_bar = "\n" if sys.stderr.isatty() else ""
            print_line(
                f"{line_of_bar}error: {message} (no progress for {self.watchdog.seconds:g} s; --stall-seconds); "
                "continue with --resume.",
                sys.stderr,
            )
        with contextlib.suppress(Exception):
            self.watchdog.before_exit()
        if self.store is not None:  # what ends next is no lost peer; the store may be what does not answer
            with contextlib.suppress(RuntimeError):
                self.store.set(FAILED, "")


def _host() -> str:
    """Return the machine, and its process numbers: containers may share a host name."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _judge(innermost: FrameType) -> int:
    if _module(innermost) in _WAITING:
        return _WAITS
    return {"torch": _WAITS, "classify": _OWN}.get(_package(innermost), _FOREIGN)


def _place(file: str, line: int | str, function: str) -> str:
    return f"{function} ({Path(file).name}:{line})"


def _in_phase(phase: str) -> str:
    return phase if phase.startswith("after ") else f"in {phase}"

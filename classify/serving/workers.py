"""Several processes that answer on one port, each with its share of the cores."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from classify.errors import InputError


def run_workers(count: int, work: Callable[[int], int]) -> int:
    """Fork `count` processes that each call `work` with their number; return 0, or 1 where one ended by itself.

    SIGTERM, SIGINT and SIGHUP are passed on to all. Called before any thread has started. Raises InputError where there
    are fewer cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise InputError(f"--workers {count}: this process may use {len(cores)} cores; give that or less.")
    children = {_fork(number, set(cores[number::count]), work) for number in range(count)}
    stops = False

    def pass_on(number: int, _: object) -> None:
        nonlocal stops
        stops |= number != signal.SIGHUP
        for child in children:
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    failed = False
    while children:
        child, status = os.wait()
        children.discard(child)
        if not stops:
            failed = True
            print(f"error: a worker ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            pass_on(signal.SIGTERM, None)
    return int(failed)


def _fork(number: int, cores: set[int], work: Callable[[int], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.sched_setaffinity(0, cores)
            code = work(number)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child

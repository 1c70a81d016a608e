"""Run a command in several processes of this machine (`--nproc N`), each with torchrun's environment variables.

Their store listens on loopback only. This process does not import torch.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from classify.errors import InputError
from classify.launch import launch, signals
from classify.launch.process import available_cores

_POLL_SECONDS = 0.05
# Time for workers to save after a signal, before they are killed.
_SAVING_SECONDS = 600.0
# Time to close logs after the first worker has ended.
_CLOSING_SECONDS = 30.0
# Time to end on SIGTERM. It is repeated: a training step only records it, and fails soon after.
_ENDING_SECONDS = 15.0
_REPEAT_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def check_count(nproc: int | str, place: launch.Launch) -> None:
    """Raise InputError where --nproc cannot start that many processes, or a launcher has started this one."""
    if place.is_launched:
        raise InputError(
            f"--nproc {nproc} starts processes itself, but a launcher has already started "
            f"{place.world_size} (WORLD_SIZE); drop the flag, or start with python alone."
        )
    most = 4 * available_cores()
    if isinstance(nproc, int) and nproc > most:
        raise InputError(f"--nproc {nproc}: expected up to {most}, as each process loads the model.")


def run_processes(arguments: Sequence[str], count: int) -> int:
    """Run `python -m classify <arguments>` in `count` processes; return the first failed worker's exit code, or 0.

    Forwards SIGINT, SIGTERM and SIGHUP to the workers. Workers print their own errors; this process prints one only if
    a signal killed a worker.
    """
    workers: list[subprocess.Popen[bytes]] = []
    received: list[int] = []
    # Bound here and served by rank 0, so that no other program can take the port in between. It stays open here too:
    # if it closed with rank 0, the other ranks would warn before they end.
    with (
        signals.handle_signals(lambda number, _: received.append(number)),
        socket.create_server(("127.0.0.1", 0), backlog=max(128, count)) as listener,
    ):
        try:
            _start(workers, arguments, count, listener)
            return _exit_code(_wait(workers, received), received)
        finally:
            for worker in workers:
                worker.kill()  # no effect on one that has ended
                worker.wait()


def _start(
    workers: list[subprocess.Popen[bytes]], arguments: Sequence[str], count: int, listener: socket.socket
) -> None:
    """Start the workers in new sessions, so that a terminal's Ctrl-C reaches them once, through this process."""
    for place in launch.places([count], *listener.getsockname()):
        environment = {**os.environ, **place.variables(), launch.NPROC: str(count)}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // count)))
        passed: tuple[int, ...] = ()
        if not workers:
            environment[launch.LISTENER] = str(listener.fileno())
            passed = (listener.fileno(),)
        workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "classify", *arguments],
                env=environment,
                pass_fds=passed,
                start_new_session=True,
                preexec_fn=_make_parent_death_hook(),
            )
        )


def _make_parent_death_hook() -> Callable[[], None] | None:
    """A `preexec_fn` that has the new process killed when this process ends; None outside Linux.

    https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
    """
    if not sys.platform.startswith("linux"):
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def call() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def _wait(workers: Sequence[subprocess.Popen[bytes]], received: Sequence[int]) -> int:
    """Wait for all workers, forward received signals, and end all workers if one fails.

    Returns the exit code of the first that failed, negative where a signal ended it, or 0.
    """
    code, forwarded = 0, 0
    ends_at = killed_at = math.inf
    while running := [worker for worker in workers if worker.poll() is None]:
        code = code or next((worker.returncode for worker in workers if worker.returncode), 0)
        now = time.monotonic()
        numbers = list(received[forwarded:])
        forwarded += len(numbers)
        if numbers and killed_at == math.inf:
            killed_at = now + _SAVING_SECONDS
        if code and ends_at == math.inf:
            ends_at = now + (_CLOSING_SECONDS if received else 0.0)
        elif code and numbers:  # another signal
            ends_at = now
        if now >= ends_at:
            numbers.append(signal.SIGTERM)
            killed_at = min(killed_at, now + _ENDING_SECONDS)
            ends_at = now + _REPEAT_SECONDS
        if now >= killed_at:
            numbers = [signal.SIGKILL]
            code = code or 128 + received[-1]
        for worker in running:
            for number in numbers:
                worker.send_signal(number)
        time.sleep(_POLL_SECONDS)
    return code or next((worker.returncode for worker in workers if worker.returncode), 0)


def _exit_code(code: int, received: Sequence[int]) -> int:
    """A worker's exit code as a shell does (128 + signal); print an error if no signal was received here."""
    if code >= 0:
        return code
    if not received:
        line = (
            f"error: one of the processes was ended by {signal.Signals(-code).name}; if memory ran out, start fewer "
            "processes or add --gradient-accumulation-steps 2. Continue with --resume."
        )
        print(line, file=sys.stderr, flush=True)
    return 128 - code

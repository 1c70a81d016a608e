"""Forks ranks for `rank_client.py` from a process that has imported torch; see there.

A rank gets what its client was given: words, environment, working folder, open files, cores, namespaces.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from multiprocessing import resource_tracker
from typing import Any, NoReturn

import tests.support.preload  # noqa: F401 - what ranks find imported

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_HIGH = 200  # above every number that an open file of a rank or of this process has


def serve(listener: socket.socket, executable: str, parent: int) -> NoReturn:
    """Answer clients at this socket; `executable` is what starts one, and sys.executable of ranks."""
    _end_with(parent)
    while True:
        connection, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):  # there is none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with connection:
            server = os.getpid()
            if os.fork() == 0:
                _end_with(server)
                listener.close()
                _supervise(connection, executable)


def _end_with(parent: int) -> None:
    """Be killed when the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _supervise(client: socket.socket, executable: str) -> NoReturn:
    """Start the rank, and tell the client how it ends; where the client ends first, kill the rank."""
    message, received, _, _ = socket.recv_fds(client, 1 << 20, 64)
    if not message:  # the client was killed
        os._exit(1)
    supervisor = os.getpid()
    rank = os.fork()
    if rank == 0:
        _end_with(supervisor)
        client.close()
        _run(json.loads(message), received, executable)
    for descriptor in received:
        os.close(descriptor)
    ended = os.pidfd_open(rank)
    with contextlib.suppress(OSError):  # the client may end at any time
        client.send(str(rank).encode())
        if ended not in select.select([ended, client], [], [])[0]:
            os.kill(rank, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
        client.send(str(code).encode())
    os._exit(0)


def _run(request: dict[str, Any], received: list[int], executable: str) -> NoReturn:
    """In the forked process: take the place of a fresh interpreter, run the words, and end as it would."""
    code = 1
    try:
        os.setsid()
        _take_place(request, received)
        _set_interpreter(request, executable)
        if request["words"][0] == "-m":
            runpy.run_module(request["words"][1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request["words"][0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _take_place(request: dict[str, Any], received: list[int]) -> None:
    """Make the process's own what the system had given to the client."""
    client = f"/proc/{request['client']}"
    os.sched_setaffinity(0, os.sched_getaffinity(request["client"]))
    spaces = [f"/ns/{kind}" for kind in ("net", "uts", "mnt")]
    others = [space for space in spaces if os.readlink(f"{client}{space}") != os.readlink(f"/proc/self{space}")]
    for descriptor in [os.open(f"{client}{space}", os.O_RDONLY) for space in others]:
        assert ctypes.CDLL(None).setns(descriptor, 0) == 0, "needs root, as the namespace itself does"
        os.close(descriptor)
    os.chdir(request["folder"])
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in received]
    os.closerange(0, _HIGH)
    for copy, number in zip(copies, request["descriptors"], strict=True):
        os.dup2(copy, number)
        os.close(copy)


def _set_interpreter(request: dict[str, Any], executable: str) -> None:
    """Make `os` and `sys` what they would be at the start."""
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    buffering = 1 if request["unbuffered"] else -1
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - these three are for as long as it lives
    sys.stdout = open(1, "w", buffering, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.executable = executable
    sys.orig_argv = [executable, *request["words"]]
    script = request["words"][0]
    sys.argv = request["words"][1:] if script == "-m" else request["words"]
    first = request["folder"] if script == "-m" else os.path.dirname(os.path.abspath(script))
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [first, *searched]
    resource_tracker._resource_tracker._fd = None  # the parent's is closed
    if any(os.path.exists(os.path.join(path, "sitecustomize.py")) for path in searched):
        sys.modules.pop("sitecustomize", None)  # Debian's Python has one, which the server has imported
        importlib.import_module("sitecustomize")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3]))

"""A `python` for launchers whose scripts run in processes forked from one that has imported torch.

As a script this file is the client, which a launcher starts as python: `forked.py <socket> <interpreter> <words>`. It
starts within milliseconds, has `serve` fork a process that runs the words with its environment, folder, open files and
namespaces, hands on signals, and ends as that process ends; where it is killed, that process is. So a launcher sees
what it would see of an interpreter, without the seconds of a core that importing torch takes in each. Words that the
server does not know (-c ...) go to the interpreter.
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
from collections.abc import Callable, Mapping
from multiprocessing import resource_tracker
from typing import Any, NoReturn

_FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM}
_HIGH = 200  # above every number that an open file of a client or of the server has


def client(address: str, interpreter: str, *words: str) -> NoReturn:
    """Have the words run by the server."""
    own = [word for word in words if word != "-u"]
    if not own or (own[0].startswith("-") and own[0] != "-m"):
        os.execv(interpreter, [interpreter, *words])
    # The listing has a descriptor of its own, which is closed by now.
    numbers = [number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")]
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until it is known where they go
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    request = {"words": own, "folder": os.getcwd(), "environment": dict(os.environ), "descriptors": numbers}
    request |= {"client": os.getpid(), "unbuffered": "-u" in words}
    socket.send_fds(server, [json.dumps(request).encode()], numbers)
    process = int(server.recv(64) or 0)

    def forward(number: int, _: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = int(server.recv(64) or 1)
    if code < 0:  # a signal ended it
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(listener: socket.socket, executable: str, parent: int) -> NoReturn:
    """Fork a process for each client, until the parent ends; `executable` is sys.executable there."""
    gone = os.pidfd_open(parent)
    clients: dict[Any, int] = {}  # to the number of the process of each
    ends: dict[Any, Any] = {}  # the descriptor that tells the end of a process, to its client
    while gone not in (ready := select.select([listener, gone, *clients, *ends], [], [])[0]):
        for one in ready:
            if one is listener:
                connection, _ = listener.accept()
                message, received, _, _ = socket.recv_fds(connection, 1 << 20, 64)
                process = os.fork() if message else 0  # without a message it was killed
                if message and process == 0:
                    _run(json.loads(message), received, executable)
                for descriptor in received:
                    os.close(descriptor)
                if message:
                    clients[connection], ends[os.pidfd_open(process)] = process, connection
                    connection.send(str(process).encode())
            elif one in ends:
                connection = ends.pop(one)
                code = os.waitstatus_to_exitcode(os.waitpid(clients.pop(connection), 0)[1])
                with contextlib.suppress(OSError):  # the client may have been killed
                    connection.send(str(code).encode())
                connection.close()
                os.close(one)
            elif one in clients:  # it was killed
                os.kill(clients[one], signal.SIGKILL)
    for process in clients.values():
        os.kill(process, signal.SIGKILL)
    os._exit(0)


def _run(request: dict[str, Any], received: list[int], executable: str) -> NoReturn:
    """In the forked process: take the place of a fresh interpreter, and run the words."""
    os.setsid()
    for space in ("ns/net", "ns/mnt"):
        theirs = f"/proc/{request['client']}/{space}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/{space}"):
            assert ctypes.CDLL(None).setns(os.open(theirs, os.O_RDONLY), 0) == 0, "needs root, as the namespace does"
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in received]
    os.closerange(0, _HIGH)
    for copy, number in zip(copies, request["descriptors"], strict=True):
        os.dup2(copy, number)
        os.close(copy)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    resource_tracker._resource_tracker._fd = None  # the server's is closed
    words = request["words"]
    sys.executable, sys.orig_argv = executable, [executable, *words]
    sys.argv = words[1:] if words[0] == "-m" else words

    def run_words() -> None:
        try:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        finally:
            atexit._run_exitfuncs()

    first = request["folder"] if words[0] == "-m" else os.path.dirname(os.path.abspath(words[0]))
    call(run_words, request["folder"], request["environment"], first, buffering=1 if request["unbuffered"] else -1)


def call(
    target: Callable[[], object], folder: str, environment: Mapping[str, str], *path: str, buffering: int = -1
) -> NoReturn:
    """In a forked process: make it what a fresh one would be, call the target, and end; its result is the exit code.

    It ends without the interpreter's own end, as multiprocessing does it: this is a copy of the server.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    searched = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [*path, *searched]
    sys.stdout = open(1, "w", buffering, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    code: Any = 1
    try:
        if any(os.path.exists(os.path.join(entry, "sitecustomize.py")) for entry in searched):
            sys.modules.pop("sitecustomize", None)  # Debian's Python has one, which the server has imported
            importlib.import_module("sitecustomize")
        code = target() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    client(*sys.argv[1:])

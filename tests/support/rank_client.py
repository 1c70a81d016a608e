"""Stands in for a rank's interpreter under a launcher: `rank_client.py <socket> <interpreter> <words of python>`.

It starts within milliseconds, asks `rank_server.py` for a process that runs the words in its place, and lives exactly
as long: it hands on signals, ends as that process ends, and where it is killed that process is killed. So a launcher
sees what it would see of the rank itself. Words that the server does not know (-c ...) go to the interpreter.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from types import FrameType

FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM")


def main(address: str, interpreter: str, *words: str) -> None:
    """Have the words run; does not return."""
    own = [word for word in words if word != "-u"]
    if not own or (own[0].startswith("-") and own[0] != "-m"):
        os.execv(interpreter, [interpreter, *words])
    request = {"words": own, "unbuffered": "-u" in words, "folder": os.getcwd(), "environment": dict(os.environ)}
    numbers = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own, which is closed by now
            os.fstat(number)
            numbers.append(number)
    signals = {getattr(signal, name) for name in FORWARDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until it is known where they go
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    message = json.dumps({**request, "descriptors": numbers, "client": os.getpid()}).encode()
    socket.send_fds(server, [message], numbers)
    rank = int(server.recv(64) or 0)

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for number in signals:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = int(server.recv(64) or 1)
    if code < 0:  # a signal ended it
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])

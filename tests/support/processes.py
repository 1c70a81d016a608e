"""Fresh processes without a fresh import of torch: forked from a server that has imported it.

`run` and `start` give the program a process of its own: its working folder, its environment, its signals, its exit
code. `run_ranks` does so for several ranks of one run, `run_distributed_test` runs a function of a test in each rank.
What the import order or a launcher is at stake for starts a real interpreter instead: `run_python`. Of a launcher that
is real the ranks may still be forked: `forked_python` is what it then starts as python. An interpreter that imports
torch takes ten seconds of a core, a forked process half a second.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import functools
import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "run_classify.py")

# Of a process, what a launcher would set; tests must not inherit them.
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# What the program sets before it imports torch, which the server does for it.
_OF_TORCH = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
# What one rank's failure leaves the others to end by themselves.
_GRACE_SECONDS = 10.0
# On this signal a process prints where each thread is.
_PRINT_STACKS = signal.SIGUSR2

_outputs = tempfile.TemporaryDirectory(prefix="classify-tests-")  # removed when the interpreter ends
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preload"])


def start_server() -> None:
    """Start the fork server with a thread count of one; later calls do nothing."""
    with mock.patch.dict(os.environ, ONE_THREAD | _OF_TORCH):
        forkserver.ensure_running()


def unlaunched() -> dict[str, str]:
    """The environment of a process that no launcher started, and that has to find the network by itself."""
    return {name: value for name, value in os.environ.items() if name not in LAUNCHED}


def not_here(reason: str) -> NoReturn:
    """Skip a test for what this machine lacks; in CI, where root installs it, that is a failure."""
    if os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A forked process: a function, or the program, whose output goes to files.

    With a `network` it sees that network namespace (ip-netns(8)) alone.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        arguments: Sequence[Any],
        folder: Path,
        environment: Mapping[str, str],
        network: str | None = None,
    ):
        start_server()
        self.words = [str(argument) for argument in arguments]
        self._files = [Path(tempfile.mkstemp(dir=_outputs.name, suffix=suffix)[1]) for suffix in (".out", ".err")]
        self.process = _context.Process(
            target=_child,
            args=(target, tuple(arguments), str(folder), dict(environment), network, *map(str, self._files)),
        )
        self.process.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._files[0].read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        """What it has printed to stderr so far."""
        return self._files[1].read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to it, or to its process group: each process leads one of its own."""
        os.killpg(self.pid, number) if group else os.kill(self.pid, number)

    def wait_for(self, text: str, timeout: float = 90) -> None:
        """Wait until a text stands in its output. Raises AssertionError where it ends before, or after the time-out."""
        deadline = time.monotonic() + timeout
        while text not in self.stdout:
            assert self.process.is_alive(), f"ended before {text!r}:\n{self.stdout}\n{self.stderr}"
            assert time.monotonic() < deadline, f"{text!r} has not come:\n{self.stdout}\n{self.stderr}"
            time.sleep(0.02)

    def finish(self, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises TimeoutExpired, and kills it, where that does not come."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.words, timeout, self.stdout, self.stderr)
        return subprocess.CompletedProcess(self.words, self.process.exitcode, self.stdout, self.stderr)

    def kill(self) -> None:
        """End it, and what it has started, now; safe to call at any time."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.process.join()


def _child(
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: str,
    environment: dict[str, str],
    network: str | None,
    *files: str,
) -> NoReturn:
    """In the forked process: call the target as a fresh one would; its result is the exit code."""
    os.setsid()
    if network is not None:
        descriptor = os.open(f"/var/run/netns/{network}", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(descriptor, 0) == 0, f"no network namespace {network}"
    for number, name in enumerate(files, start=1):
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    faulthandler.register(_PRINT_STACKS, 2, all_threads=True)
    forked.call(functools.partial(target, *arguments), folder, environment)


@functools.cache
def forked_python() -> str:
    """A command that does what `python` does with a script or a module, in a process forked from the server.

    Its folder holds nothing else, so that it can stand on PATH. Where the system is not Linux, it is the interpreter.
    """
    if sys.platform != "linux":
        return sys.executable
    listener, executable = make_client()
    start_server()
    _context.Process(target=_serve, args=(listener, executable), daemon=True).start()
    listener.close()
    return executable


def make_client() -> tuple[socket.socket, str]:
    """A socket for `forked.serve` to listen at, and a `python` that asks there."""
    folder = Path(tempfile.mkdtemp(dir=_outputs.name))
    address = str(folder.with_suffix(".socket"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    words = [sys.executable, "-I", "-S", forked.__file__, address, sys.executable]
    (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    (folder / "python").chmod(0o755)
    return listener, str(folder / "python")


def _serve(listener: socket.socket, executable: str) -> None:
    """In a process forked from the server, whose exit functions are not those of ranks."""
    atexit._clear()
    forked.serve(listener, executable, os.getppid())


def _program(words: Sequence[str], executable: str) -> int:
    """The program as `classify ...`, or as `run_classify.py ...`; the workers that it starts are `executable`."""
    from classify.cli import main

    program, *arguments = words
    sys.executable = executable
    sys.argv = [program, *arguments]
    sys.orig_argv = [sys.executable, *words] if program == "run_classify.py" else [sys.executable, "-m", *words]
    return main(program=program)


def nproc_command(*words: str) -> list[str]:
    """`run_classify.py` with --nproc among its words: a real interpreter, which needs no torch, and forked workers."""
    main = "from classify.cli import main; raise SystemExit(main(program='run_classify.py'))"
    code = f"import sys; sys.executable = {forked_python()!r}; sys.path.insert(0, {str(ROOT)!r}); {main}"
    return [sys.executable, "-c", code, *words]


def start(folder: Path, *words: str, network: str | None = None, **environment: str) -> Process:
    """Start the program in a folder: `start(folder, "classify", "predict", ...)`, or "run_classify.py" first."""
    assert words[0] in ("classify", "run_classify.py"), words[0]
    executable = forked_python() if "--nproc" in words else sys.executable
    own = {**unlaunched(), "HF_HUB_OFFLINE": "1", **environment}
    return Process(_program, [list(words), executable], folder, own, network)


def run(folder: Path, *words: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder, as `start` does, to its end."""
    return start(folder, *words, **environment).finish(timeout)


def run_python(
    folder: Path, *arguments: str, timeout: float = 120, interpreter: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a real interpreter with these arguments in a folder: for launchers, scripts and the order of imports."""
    return subprocess.run(
        [interpreter, *arguments],
        cwd=folder,
        env={**unlaunched(), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def rank_environments(*per_machine: int, address: str = "127.0.0.1") -> list[dict[str, str]]:
    """What torchrun would set for each rank, by machine: (2, 1) is two on the first, one on the second.

    `address` is the first machine's.
    """
    port = str(free_port())
    places = [(machine, local) for machine, count in enumerate(per_machine) for local in range(count)]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_WORLD_SIZE": str(per_machine[machine]),
            **({"GROUP_RANK": str(machine)} if len(per_machine) > 1 else {}),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "HF_HUB_OFFLINE": "1",
            **ONE_THREAD,
        }
        for rank, (machine, local) in enumerate(places)
    ]


def run_ranks(
    count: int,
    *words: str,
    folder: Path,
    timeout: float = 120,
    machines: int = 1,
    code: int | Sequence[int] = 0,
    **environment: str,
) -> list[str]:
    """Run the program as `count` ranks; returns each rank's output, stderr after stdout.

    `code` is the exit code of all, or of each. Raises AssertionError where one ends otherwise or does not end.
    """
    places = rank_environments(*[count // machines] * machines)
    ranks = [start(folder, *words, **place, **environment) for place in places]
    return finish(ranks, timeout, [code] * count if isinstance(code, int) else list(code))


def run_python_ranks(
    count: int,
    *arguments: str,
    folder: Path,
    timeout: float = 120,
    machines: int = 1,
    code: int | Sequence[int] = 0,
    interpreter: str = sys.executable,
    **environment: str,
) -> list[str]:
    """As `run_ranks`, but interpreters with these arguments: where what is imported is at stake."""
    places = rank_environments(*[count // machines] * machines)
    with ThreadPoolExecutor(count) as pool:
        own = {"timeout": timeout, "interpreter": interpreter, **environment}
        done = list(pool.map(lambda place: run_python(folder, *arguments, **own, **place), places))
    texts = [one.stdout + one.stderr for one in done]
    codes = [code] * count if isinstance(code, int) else list(code)
    assert [one.returncode for one in done] == codes, "\n---\n".join(texts)
    return texts


def run_distributed_test(
    function: Callable[..., None],
    world_size: int,
    *arguments: Any,
    timeout: float = 120,
    machines: int = 1,
    **environment: str,
) -> None:
    """Call a module-level function in `world_size` processes, with what a launcher would set in their environment.

    It forms its group itself (`TrainingConfig.start`), and asserts in place: an error of any rank is this test's.
    One process is one that no launcher started.
    """
    places = rank_environments(*[world_size // machines] * machines) if world_size > 1 else [{}]
    ranks = [Process(function, arguments, ROOT, {**unlaunched(), **place, **environment}) for place in places]
    finish(ranks, timeout, [0] * world_size)


def finish(ranks: Sequence[Process], timeout: float, codes: Sequence[int]) -> list[str]:
    """Wait for all ranks, and leave none behind; returns each one's output, stderr after stdout.

    One that ends with an unexpected code leaves the others little time. Raises AssertionError for it.
    """
    deadline = time.monotonic() + timeout
    try:
        while any(rank.process.is_alive() for rank in ranks) and time.monotonic() < deadline:
            ended = [(rank.process.exitcode, code) for rank, code in zip(ranks, codes, strict=True)]
            if any(result not in (None, code) for result, code in ended):
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
            multiprocessing.connection.wait([rank.process.sentinel for rank in ranks if rank.process.is_alive()], 0.2)
    finally:
        exit_codes = [rank.process.exitcode for rank in ranks]  # None: it did not end
        if None in exit_codes:  # print where it hangs
            for rank in ranks:
                if rank.process.is_alive():
                    rank.signal(_PRINT_STACKS)
            time.sleep(0.5)
        for rank in ranks:
            rank.kill()
    outputs = [rank.stdout + rank.stderr for rank in ranks]
    titled = [f"--- rank {rank}, exit code {code}\n{outputs[rank]}" for rank, code in enumerate(exit_codes)]
    assert exit_codes == list(codes), "\n".join([f"exit codes {exit_codes}, expected {list(codes)}", *titled])
    return outputs

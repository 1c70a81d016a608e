"""Vendors' devices for tests: stand-ins that torch finds by the folders in tests/standins, compiled once.

What is compiled lies in a cache beside that of the person's tables, by torch's version and the source.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import torch

from tests.support.processes import ONE_THREAD, ROOT, make_client, run_python, unlaunched

STANDINS = ROOT / "tests" / "standins"
# With the commands of this environment, of which ninja may be one.
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "classify" / "standins"

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja", path=_PATH)), reason="compiling the stand-in takes g++ and ninja"
)


@functools.cache
def standin_environment(kind: str) -> dict[str, str]:
    """The variables that put devices of a kind ("npu", "cuda", ...) into a process; compiles them where need be."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    for source in sorted((STANDINS / "accelerator").glob("*.cpp")):
        digest.update(str(source).encode() + source.read_bytes())  # ninja compiles anew what lies elsewhere
    folder = _CACHE / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "TORCH_EXTENSIONS_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(STANDINS / kind), str(ROOT)]),
        "PATH": _PATH,
    }
    with filelock.FileLock(folder / "lock"):  # torch's own waits for ever where a compilation was killed
        (folder / f"standin_{kind}" / "lock").unlink(missing_ok=True)
        (folder / "standin_private" / "lock").unlink(missing_ok=True)
        code = "import torch; print(torch.accelerator.current_accelerator())"
        done = run_python(folder, "-c", code, timeout=220, **variables)
    assert done.stdout == f"{kind}\n", done.stderr
    return variables


@functools.cache
def standin_python(kind: str) -> str:
    """A command as `forked_python`, whose server has imported torch with devices of this kind."""
    if sys.platform != "linux":
        return sys.executable
    listener, executable = make_client()
    with listener:
        code = "from tests.support import forked; import socket; import tests.support.preload; "
        code += f"forked.serve(socket.socket(fileno={listener.fileno()}), {executable!r}, {os.getpid()})"
        subprocess.Popen(  # which ends with this process
            [sys.executable, "-c", code],
            env={**unlaunched(), **ONE_THREAD, **standin_environment(kind)},
            cwd=ROOT,
            pass_fds=[listener.fileno()],
        )
    return executable


if __name__ == "__main__":
    for name in sys.argv[1:]:
        standin_environment(name)

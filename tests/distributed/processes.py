"""Start real processes that form a gloo group, with a time limit, and leave none behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_group(
    count: int,
    arguments: Sequence[str],
    *,
    cwd: Path,
    timeout: float = 180,
    machines: int = 1,
    code: int | Sequence[int] = 0,
    **changes: str,
) -> list[str]:
    """Run `python <arguments>` as `count` ranks; returns each rank's output. Raises where one hangs or ends otherwise.

    `code` is how all have to end, or how each has to.

    With several `machines` the ranks are told that they sit on so many, as torchrun would tell them. `changes` are set
    in their environment.
    """
    local = count // machines
    port = free_port()
    processes = []
    for rank in range(count):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % local),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(local),
            **({"GROUP_RANK": str(rank // local)} if machines > 1 else {}),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            **changes,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = []
    deadline = time.monotonic() + timeout
    try:
        for process in processes:
            out, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            outputs.append(out)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    wanted = [code] * count if isinstance(code, int) else list(code)
    assert codes == wanted, f"exit codes {codes}\n" + "\n".join(outputs)
    return outputs

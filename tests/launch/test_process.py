"""What is freed stays with the process, as the kernel counts its pages, unless the person says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

# Pages that the kernel hands out while 20 MiB are taken and freed ten times over.
FAULTS = """
import os, resource
from classify.launch.process import keep_freed_memory
kept = keep_freed_memory(os.environ)
faults = []
for _ in range(11):
    block = bytearray(20 << 20)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(kept, faults[-1] - faults[0])
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc")


def faults(**changes: str) -> tuple[bool, int]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))
    }
    environment.update(changes)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@glibc
def test_freed_memory_is_taken_again() -> None:
    kept, count = faults()
    assert kept
    assert count < 100  # of 51,200 pages of 4 KiB that were taken


@glibc
def test_the_persons_own_settings_hold() -> None:
    kept, count = faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
    assert count >= 10  # one for each time, even if all 20 MiB come at once

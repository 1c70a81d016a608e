"""Environment variables and process settings of libraries, before torch is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping

# Parameters of glibc's mallopt(3) and their values: blocks below 32 MiB, the upper limit, come from the heap, and up to
# 1 GiB of free memory at the heap's end stays there.
_TRIM_THRESHOLD = (-1, 1 << 30)
_MMAP_THRESHOLD = (-3, 32 << 20)
# Variables that change where and how fast a run computes.
_REPORTED = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_HOME", "RANK", "LOCAL_RANK", "WORLD_SIZE",
)  # fmt: skip
# Variables that a training sets for the libraries it calls.
_SET_BY_TRAINING = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
)  # fmt: skip
# Whether this process is the program, not another one that uses the library.
_is_program = False


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Make glibc keep freed memory instead of returning it to the kernel; return whether it does.

    Each step frees and allocates the same hundreds of megabytes; clearing new pages takes 6 % of a short step. No
    effect where the user tunes the allocator, or without glibc.
    """
    tuned = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in environment)
    if tuned or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


@contextlib.contextmanager
def preserve_variables() -> Iterator[None]:
    """Restore after this block the variables that a training sets."""
    before = {name: os.environ.get(name) for name in _SET_BY_TRAINING}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


def prepare_process() -> None:
    """Set up a process that runs only this program, before torch is imported."""
    global _is_program
    _is_program = True
    keep_freed_memory(os.environ)
    if "OMP_WAIT_POLICY" not in os.environ:
        # GNU's OpenMP, which torch uses on Linux, spins for milliseconds by default, which slows two trainings on the
        # same cores by a factor of ten. 3,000 loops cost nothing on an idle machine, 1,000 cost 6 to 8 %.
        # https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # c10d warns of each peer whose name cannot be resolved.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # By default tokenizers use one core after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def is_program() -> bool:
    """Whether this process runs only this program: what ends it harms no one else."""
    return _is_program


def available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def hub_is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def set_variables() -> dict[str, str]:
    """The variables of launchers, devices and libraries that are set here, for a bug report."""
    return {name: os.environ[name] for name in _REPORTED if name in os.environ}

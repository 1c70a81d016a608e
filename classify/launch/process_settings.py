"""What libraries are told by variables and calls of their own, where they take no argument of ours."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping

from classify.launch.launcher import Launch, available_cores

# Parameters of glibc's mallopt(3), and what they are set to: blocks below 32 MiB, its own upper limit, come from the
# heap, and up to 1 GiB that is free at the heap's end stays there.
_TRIM_THRESHOLD = (-1, 1 << 30)
_MMAP_THRESHOLD = (-3, 32 << 20)


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Have glibc keep what is freed instead of handing it back to the kernel; whether it does.

    A step frees and takes the same hundreds of megabytes as the one before, and the kernel clears each page that it
    hands out: 6 % of a short step. Left alone where the person tunes the allocator, and where there is no glibc.
    """
    tuned = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in environment)
    if tuned or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


def free_threads(environment: Mapping[str, str], launch: Launch, cores: int) -> int | None:
    """Threads for this process, or None to leave them alone.

    torchrun sets OMP_NUM_THREADS=1 when it starts several processes, whatever the machine has. Only that setting
    (known by TORCHELASTIC_RUN_ID) is overridden, and only where cores would stay idle. Where nothing is set and
    several processes share the machine, each takes its share instead of all taking everything.
    """
    several = launch.local_world_size > 1
    share = max(1, cores // launch.local_world_size)
    by_srun = environment.get("SLURM_CPUS_PER_TASK", "")
    # srun binds a task to its cores: `cores` counts them alone. Torchrun's processes share those of one task.
    if several and launch.launcher == "srun" and by_srun.isdecimal():
        share = max(1, min(cores, int(by_srun)))
    setting = environment.get("OMP_NUM_THREADS")
    if setting is None:
        return share if several else None
    by_torchrun = setting == "1" and "TORCHELASTIC_RUN_ID" in environment
    return share if by_torchrun and share > 1 else None


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Lower GOMP_SPINCOUNT so that idle OpenMP threads yield soon; leave it alone where the person set it.

    GNU's OpenMP, which torch uses on Linux, spins for milliseconds by default, which slows two trainings on the same
    cores by a factor of ten. 3,000 loops cost nothing on an idle machine, 1,000 cost 6 to 8 %. Call it before torch is
    imported.
    https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "3000")


def prepare_process() -> None:
    """For a process that is this program's alone, before torch is imported."""
    keep_freed_memory(os.environ)
    limit_spinning(os.environ)
    # c10d warns of each peer whose name a machine without DNS cannot look up.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def share_cores(launch: Launch) -> int | None:
    """Have OpenMP take this process's share of the cores; returns the threads, None where they are left alone."""
    threads = free_threads(os.environ, launch, available_cores())
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def tokenize_in_threads() -> None:
    """Have tokenizers use all cores, also where processes were forked before; the person's own word stands."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def exchange_over(interface: str) -> None:
    """Have gloo talk over a network interface; it would take the one that the machine's own name resolves to."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if interface.startswith("lo"):  # all ranks are here; NCCL would listen where other machines reach it
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)

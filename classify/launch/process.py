"""Environment variables and process settings of libraries, most of them before torch is imported."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from classify.launch.launch import Launch

# Parameters of glibc's mallopt(3) and their values: blocks below 32 MiB, the upper limit, come from the heap, and up to
# 1 GiB of free memory at the heap's end stays there.
_TRIM_THRESHOLD = (-1, 1 << 30)
_MMAP_THRESHOLD = (-3, 32 << 20)
# Variables that change where and how fast a run computes.
_REPORTED = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_HOME", "RANK", "LOCAL_RANK", "WORLD_SIZE",
)  # fmt: skip
# Whether this process is the program, not another one that uses the library.
_is_program = False
# Process in which training or prediction has computed last; a forked one inherits its parent's.
_computing_process: int | None = None
# Variables that a training sets for the libraries it calls.
_SET_BY_TRAINING = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
)  # fmt: skip


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


def choose_threads(environment: Mapping[str, str], launch: Launch, cores: int) -> int | None:
    """The number of threads for this process, or None to keep the current setting.

    torchrun sets OMP_NUM_THREADS=1 when it starts several processes. Only that setting (recognized by
    TORCHELASTIC_RUN_ID) is overridden, and only if cores would stay idle. If nothing is set, several processes on one
    machine share its cores.
    """
    several = launch.local_world_size > 1
    share = max(1, cores // launch.local_world_size)
    by_srun = environment.get("SLURM_CPUS_PER_TASK", "")
    # srun binds a task to its cores, and `cores` counts only those. torchrun's processes share the cores of one task.
    if several and launch.launcher == "srun" and by_srun.isdecimal():
        share = max(1, min(cores, int(by_srun)))
    setting = environment.get("OMP_NUM_THREADS")
    if setting is None:
        return share if several else None
    by_torchrun = setting == "1" and "TORCHELASTIC_RUN_ID" in environment
    return share if by_torchrun and share > 1 else None


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Lower GOMP_SPINCOUNT, unless the user set it, so that idle OpenMP threads yield soon.

    Call it before torch is imported.

    GNU's OpenMP, which torch uses on Linux, spins for milliseconds by default, which slows two trainings on the same
    cores by a factor of ten. 3,000 loops cost nothing on an idle machine, 1,000 cost 6 to 8 %.
    https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "3000")


def prepare_process() -> None:
    """Set up a process that runs only this program, before torch is imported."""
    global _is_program
    _is_program = True
    keep_freed_memory(os.environ)
    limit_spinning(os.environ)
    # c10d warns of each peer whose name cannot be resolved.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # By default tokenizers use one core after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def is_program() -> bool:
    """Whether this process runs only this program: what ends it harms no one else."""
    return _is_program


def prepare_threads() -> None:
    """Compute with one thread in a process that was forked from one that has computed. Imports torch.

    OpenMP's threads do not survive a fork, and the forked process would wait for them for ever.
    """
    global _computing_process
    import torch

    if _computing_process not in (None, os.getpid()):
        torch.set_num_threads(1)
    _computing_process = os.getpid()


@contextlib.contextmanager
def preserve_settings() -> Iterator[None]:
    """Restore after this block what a training sets in its caller's process.

    That are variables, the number of threads, the precision of products, the state of torch's random numbers, also of
    GPUs that the caller has used, and the longest field that `csv` reads. Imports torch.
    """
    import torch

    variables = {name: os.environ.get(name) for name in _SET_BY_TRAINING}
    threads, products, longest = torch.get_num_threads(), get_products(), csv.field_size_limit()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=gpus), default_modes():
            yield
    finally:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        csv.field_size_limit(longest)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        set_products(products)


@contextlib.contextmanager
def default_modes() -> Iterator[None]:
    """Compute with gradients, in fp32, without autocast in this block, whatever the caller has set. Imports torch.

    A notebook may have called `torch.set_grad_enabled(False)` or `torch.set_default_dtype`, or call the library within
    `torch.inference_mode` or `torch.autocast`.
    """
    import torch

    dtype = torch.get_default_dtype()
    accelerator = torch.accelerator.current_accelerator()
    torch.set_default_dtype(torch.float32)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for device in ["cpu"] if accelerator is None else ["cpu", accelerator.type]:
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.set_default_dtype(dtype)


def get_products() -> tuple[str, str]:
    """How products of fp32 numbers are computed on CUDA devices and on CPUs: "ieee", "tf32", "none" by default.

    `torch.get_float32_matmul_precision` raises where a caller has set one of these by itself. Imports torch.
    """
    import torch

    mkldnn: Any = torch.backends.mkldnn  # mypy does not see its attributes
    return torch.backends.cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision


def set_products(products: tuple[str, str]) -> None:
    """Set what `get_products` returns."""
    import torch

    mkldnn: Any = torch.backends.mkldnn
    torch.backends.cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision = products


def available_cores() -> int:
    """Count the cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def hub_is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def set_variables() -> dict[str, str]:
    """The variables of launchers, devices and libraries that are set here, for a bug report."""
    return {name: os.environ[name] for name in _REPORTED if name in os.environ}

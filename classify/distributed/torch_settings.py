"""Settings of torch that belong to the process: threads, precision, modes, random numbers."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator
from typing import Any

import torch

from classify.launch.process import preserve_variables

# Process in which training or prediction has computed last; a forked one inherits its parent's.
_computing_process: int | None = None


def prepare_threads() -> None:
    """Compute with one thread in a process that was forked from one that has computed.

    OpenMP's threads do not survive a fork, and the forked process would wait for them for ever.
    """
    global _computing_process
    if _computing_process not in (None, os.getpid()):
        torch.set_num_threads(1)
    _computing_process = os.getpid()


@contextlib.contextmanager
def preserve_settings() -> Iterator[None]:
    """Restore after this block what a training sets in its caller's process.

    That are variables, the number of threads, the precision of products, the state of torch's random numbers, also of
    GPUs that the caller has used, and the longest field that `csv` reads.
    """
    threads, products, longest = torch.get_num_threads(), get_products(), csv.field_size_limit()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with preserve_variables(), torch.random.fork_rng(devices=gpus), default_modes():
            yield
    finally:
        csv.field_size_limit(longest)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        set_products(products)


@contextlib.contextmanager
def default_modes() -> Iterator[None]:
    """Compute with gradients, in fp32, without autocast in this block, whatever the caller has set.

    A notebook may have called `torch.set_grad_enabled(False)` or `torch.set_default_dtype`, or call the library within
    `torch.inference_mode` or `torch.autocast`.
    """
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

    `torch.get_float32_matmul_precision` raises where a caller has set one of these by itself.
    """
    mkldnn: Any = torch.backends.mkldnn  # mypy does not see its attributes
    return torch.backends.cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision


def set_products(products: tuple[str, str]) -> None:
    mkldnn: Any = torch.backends.mkldnn
    torch.backends.cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision = products

"""Memory of the C library: what one step frees, the next one takes again."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping

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

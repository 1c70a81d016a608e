"""Read settings of the cache folder and the Hugging Face hub from the environment."""

from __future__ import annotations

import os
from pathlib import Path

# Variables that change where and how fast a run computes.
_REPORTED = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_HOME", "RANK", "LOCAL_RANK", "WORLD_SIZE",
)  # fmt: skip


def cache_home() -> Path:
    """Return `$XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))


def hub_is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def set_variables() -> dict[str, str]:
    """Return the variables of launchers, devices and libraries that are set here, for a bug report."""
    return {name: os.environ[name] for name in _REPORTED if name in os.environ}

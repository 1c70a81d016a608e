"""Read settings of the cache folder and the Hugging Face hub from the environment."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return `$XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))


def hub_is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")

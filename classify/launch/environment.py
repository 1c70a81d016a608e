"""What the person's environment says of this program's own files and of the hub."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Where programs keep what they can make again: `$XDG_CACHE_HOME`, `~/.cache` without it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))


def hub_is_offline() -> bool:
    """Whether the Hugging Face hub is not to be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")

"""Cache the token ids of texts between runs.

An entry is a folder named by a hash of its inputs, so other texts get another entry. Entries are written atomically and
are readable by their owner only: they hold people's texts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filelock

from classify.files import TEMPORARY, atomic_path

MOST_BYTES = 4 << 30
# A temporary entry older than a day was left by a killed process.
_LEFT_SECONDS = 24 * 3600
T = TypeVar("T")


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "classify" / "tokens"


def load_or_write(key: str, write: Callable[[Path], None], read: Callable[[Path], T | None]) -> T | None:
    """Load the entry `key` with `read`; `write` fills a missing or damaged one first.

    `read` returns None for a damaged folder. Returns None where the cache cannot be written. Of several processes on a
    machine the first fills the entry, under a file lock: that needs no process group, so no rank can run into its
    time-out here.
    """
    folder = cache_folder() / key
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            entry = read(folder) if folder.exists() else None
            if entry is None:
                shutil.rmtree(folder, ignore_errors=True)
                _make_room(folder.parent)
                with atomic_path(folder) as temporary:
                    temporary.mkdir(mode=0o700)
                    write(temporary)
                entry = read(folder)
            with contextlib.suppress(OSError):
                os.utime(folder)
            return entry
    except OSError:
        return None


def _make_room(cache: Path) -> None:
    """Remove the least recently used entries, and what killed processes left, until the cache is below its limit."""
    for left in cache.glob(f"{TEMPORARY}*"):
        if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    entries = sorted((path for path in cache.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}
    total = sum(sizes.values())
    for entry, size in sizes.items():
        if total <= MOST_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        entry.with_suffix(".lock").unlink(missing_ok=True)
        total -= size

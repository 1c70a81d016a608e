"""Cache the token ids of texts between runs.

An entry is a folder named by a hash of its inputs, so other texts get another entry. Entries are written atomically and
are readable by their owner only: they hold people's texts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import filelock
import numpy as np
import numpy.typing as npt

from classify.files import atomic_path

# Flat ids, and how many each text has; or, joined, where each text begins and the last ends.
Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

MOST_BYTES = 4 << 30
_IDS = "ids.bin"
_OFFSETS = "offsets.npy"


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "classify" / "tokens"


def load_or_write(key: str, count: int, encode: Callable[[], Iterable[Arrays]]) -> Arrays:
    """Load the ids of `count` texts from the entry `key`; a missing or damaged one is filled with blocks of `encode`.

    Where the cache cannot be written they are in memory. Of several processes on a machine the first fills the entry,
    under a file lock: that needs no process group, so no rank can run into its time-out here.
    """
    folder = cache_folder() / key
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            if (arrays := _read(folder, count)) is None:
                shutil.rmtree(folder, ignore_errors=True)
                _make_room(folder.parent)
                with atomic_path(folder) as temporary:
                    temporary.mkdir(mode=0o700)
                    sizes = []
                    with (temporary / _IDS).open("wb") as file:
                        for ids, counts in encode():
                            ids.tofile(file)
                            sizes.append(counts)
                    np.save(temporary / _OFFSETS, _find_offsets(sizes))
                arrays = _read(folder, count)
            with contextlib.suppress(OSError):
                os.utime(folder)
    except OSError:
        arrays = None
    return arrays or join(encode())


def join(blocks: Iterable[Arrays]) -> Arrays:
    ids, sizes = zip((np.empty(0, np.int32), np.empty(0, np.int64)), *blocks, strict=True)
    return np.concatenate(ids), _find_offsets(sizes)


def _find_offsets(sizes: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))


def _read(folder: Path, count: int) -> Arrays | None:
    """The arrays of an entry, the ids memory-mapped; None where they do not fit `count` texts."""
    try:
        offsets = np.load(folder / _OFFSETS)
        size = (folder / _IDS).stat().st_size
        if len(offsets) != count + 1 or 4 * offsets[-1] != size:
            return None
        return np.memmap(folder / _IDS, np.int32, "r") if size else np.empty(0, np.int32), offsets
    except (OSError, ValueError, EOFError):  # not there, or not an array any more
        return None


def _make_room(cache: Path) -> None:
    """Remove the least recently used entries, some of which killed processes left half-made, down to the limit."""
    entries = sorted((path for path in cache.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}
    total = sum(sizes.values())
    for entry, size in sizes.items():
        if total <= MOST_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        entry.with_suffix(".lock").unlink(missing_ok=True)
        total -= size

"""Cache the token ids of a table between runs, and its rows where they are too many for memory.

An entry is a folder named by a hash of its inputs, so a changed file gets a new entry. Entries are written atomically
and readable by their owner only: they hold people's texts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from classify.console import print_line
from classify.files import TEMPORARY, atomic_path
from classify.launch.process_settings import cache_home

if TYPE_CHECKING:
    import pyarrow

MOST_BYTES = 4 << 30
# Tables of more bytes are memory-mapped from the cache.
LARGE = 64 << 20
_ROWS = "rows.arrow"
# Seconds after which waiting for another process is noted.
_PATIENCE_SECONDS = 20.0
# A temporary entry older than a day was left by a killed process.
_LEFT_SECONDS = 24 * 3600

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the cache folder, in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    return cache_home() / "classify" / "tables"


def cached_bytes() -> tuple[int, int]:
    """Return the number of entries, and their bytes."""
    sizes = {} if why_not_trusted() is not None else _sizes(cache_folder())
    return len(sizes), sum(sizes.values())


def why_not_trusted() -> str | None:
    """Return why the cache is not used: an untrusted user could write to it. None where it is safe."""
    try:
        status = cache_folder().lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder, or it is a symbolic link"
    if status.st_uid != os.geteuid():
        return f"it belongs to another user ({status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o}); chmod 700 makes it yours"
    return None


def clear_cache() -> None:
    """Remove all entries. Running processes keep the files that they have open."""
    shutil.rmtree(cache_folder(), ignore_errors=True)


def load_or_write(key: str, write: Callable[[Path], None], read: Callable[[Path], T | None]) -> T | None:
    """Return `read` of the entry `key`; `write` fills a missing or damaged entry first.

    `read` returns None for a damaged folder. Returns None where the cache is read-only, full or not trusted.

    Of several processes on a machine the first fills the entry, under a file lock. That needs no process group, so no
    rank can run into its time-out here.
    """
    folder = cache_folder() / key
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why_not_trusted() is not None:
            return None
        with _hold_lock(folder.with_suffix(".lock")):
            if folder.exists():
                entry = read(folder)
                if entry is not None:
                    with contextlib.suppress(OSError):
                        os.utime(folder)
                    return entry
                shutil.rmtree(folder, ignore_errors=True)
            # Another process may remove the same entries; it does not matter here.
            with contextlib.suppress(OSError):
                _remove_leftovers(folder.parent)
            with atomic_path(folder) as temporary:
                temporary.mkdir(mode=0o700)
                write(temporary)
            with contextlib.suppress(OSError):
                _make_room(folder)
            return read(folder)
    except OSError:
        return None


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock in this block; print a line where another process holds it for long."""
    import filelock

    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=_PATIENCE_SECONDS)
    except filelock.Timeout:
        print_line(f"note: another process prepares the same data, or has stopped, and holds {path}", sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sizes(cache: Path) -> dict[Path, int]:
    """Return the bytes of each entry, least recently used first."""
    entries = [path for path in cache.iterdir() if path.is_dir() and path.name[0] != "."] if cache.is_dir() else []
    entries.sort(key=lambda path: path.stat().st_mtime)
    return {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}


def _remove_leftovers(cache: Path) -> None:
    """Remove temporary entries of killed processes."""
    for leftover in cache.glob(f"{TEMPORARY}*"):
        if time.time() - leftover.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)


def _make_room(new: Path) -> None:
    """Drop the least recently used entries, except the new one, until the cache is below its limit."""
    sizes = _sizes(new.parent)
    total = sum(sizes.values())
    for entry, size in sizes.items():
        if total <= MOST_BYTES:
            break
        if entry != new:
            shutil.rmtree(entry, ignore_errors=True)
            with contextlib.suppress(OSError):
                entry.with_suffix(".lock").unlink()
            total -= size


def map_from_cache(key: str, batches: Callable[[], pyarrow.RecordBatchReader]) -> pyarrow.Table:
    """Return the rows memory-mapped from the cache entry `key`, written from `batches`; in memory without a cache."""
    import pyarrow

    def write(folder: Path) -> None:
        reader = batches()
        with pyarrow.ipc.new_file(str(folder / _ROWS), reader.schema) as file:
            for batch in reader:
                file.write_batch(batch)

    def read(folder: Path) -> pyarrow.Table | None:
        try:
            with pyarrow.memory_map(str(folder / _ROWS)) as file:
                return pyarrow.ipc.open_file(file).read_all()
        except (pyarrow.ArrowException, OSError):
            return None

    table = load_or_write(hashlib.sha256(f"rows 3\0{key}".encode()).hexdigest()[:32], write, read)
    return batches().read_all() if table is None else table

"""Files that are whole or not there, and what a process leaves that is killed while it writes one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# Begins the name of all that is being made or removed in an output folder.
TEMPORARY = ".making-"


@contextmanager
def atomic_path(path: Path, before_replacing: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Where to write a file or a folder, which gets its name when the block ends and all of it is on the disk.

    A file of that name is replaced; a folder is not, so `before_replacing` may take away one that is there. Where the
    block fails nothing is left.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    try:
        yield temporary
        is_folder = temporary.is_dir()
        if is_folder:
            flush_files(temporary)
        flush(temporary)
        before_replacing()
        temporary.replace(path)
        # A folder above that may not be read, or a disk that knows no such flush, is no reason to fail for a file.
        with contextlib.nullcontext() if is_folder else contextlib.suppress(OSError):
            flush(path.parent)
    except BaseException:
        _remove(temporary)
        raise


@contextmanager
def atomic_dir(folder: Path) -> Iterator[Path]:
    """An empty folder whose files move into `folder` when the block ends, each replacing one of its name."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{TEMPORARY}files-") as made:
        temporary = Path(made)
        yield temporary
        flush_files(temporary)
        for file in sorted(temporary.iterdir()):
            os.chmod(file, 0o666 & ~umask())  # safetensors leaves its files readable by their owner only
            file.replace(folder / file.name)
        flush(folder)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete and on the disk."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file


def flush(path: Path) -> None:
    """Have the operating system put a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_files(folder: Path) -> None:
    """Have the operating system put the files of a folder on the disk."""
    for path in sorted(folder.iterdir()):
        flush(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process was making or removing in a folder that nobody else writes to now."""
    for left in folder.glob(f"{TEMPORARY}*"):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def why_not_writable(folder: Path) -> str | None:
    """Why nothing can be made in a folder, in the system's words; None where it can. Nothing is left there.

    Found out by trying: permissions alone say yes in /proc, and to root nearly everywhere.
    """
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".classify-", dir=folder))
    except OSError as error:
        return error.strerror
    return None

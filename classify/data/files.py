"""Files that are whole or not there, and what a process leaves that is killed while it writes one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# Begins the name of all that is being made or removed in an output folder.
TEMPORARY = ".making-"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete and on the disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with whole_file(path) as file:
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
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def refusal(folder: Path) -> str | None:
    """Why nothing can be made in a folder, in the system's words; None where it can. Nothing is left there.

    Found out by trying: permissions alone say yes in /proc, and to root nearly everywhere.
    """
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".classify-", dir=folder))
    except OSError as error:
        return error.strerror
    return None

"""Write files atomically, and remove what a killed process left."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

# Prefix of temporary files and folders in an output folder.
TEMPORARY = ".making-"


@contextmanager
def atomic_path(path: Path, before_replacing: Callable[[], object] | None = None) -> Iterator[Path]:
    """Yield a temporary path; its file or folder is flushed to disk and renamed when the block ends.

    An existing file is replaced; a folder is not, so `before_replacing` may remove one. Where the block fails nothing
    is left; a fault of the disk, which write() does not name a file for, gets the name `path`.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    try:
        yield temporary
        is_folder = temporary.is_dir()
        _follow_umask(sorted(temporary.iterdir()) if is_folder else [temporary])
        if is_folder:
            flush_files(temporary)
        flush(temporary)
        if before_replacing is not None:
            before_replacing()
        temporary.replace(path)
        # An unreadable parent folder, or a disk without this flush, is not a reason to fail for a file.
        with contextlib.nullcontext() if is_folder else contextlib.suppress(OSError):
            flush(path.parent)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            error.filename = str(path)
        raise


@contextmanager
def atomic_dir(folder: Path) -> Iterator[Path]:
    """Yield an empty folder whose files move into `folder` when the block ends, replacing files of the same name."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{TEMPORARY}files-") as made:
        temporary = Path(made)
        yield temporary
        flush_files(temporary)
        files = sorted(temporary.iterdir())
        _follow_umask(files)
        for file in files:
            file.replace(folder / file.name)
        flush(folder)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name only when it is complete and on disk."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file


def write_parquet(path: Path, table: pyarrow.Table) -> None:
    """Write a table atomically.

    Arrow gets bytes instead of a path: it would take a name with a colon for a URI, and keep a file open that a full
    disk cuts off.
    """
    import pyarrow
    import pyarrow.parquet

    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, content, compression="zstd")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.getvalue())


def read_parquet(path: Path) -> pyarrow.Table:
    """Read what `write_parquet` wrote. Raises OSError or pyarrow.ArrowException."""
    import pyarrow.parquet

    with path.open("rb") as file:
        return pyarrow.parquet.read_table(file)


def split_paths(paths: str) -> list[str]:
    """The paths of a list with commas between; a file that exists is one, commas and all."""
    return [paths] if Path(paths).exists() else [path.strip() for path in paths.split(",")]


def _follow_umask(files: Iterable[Path]) -> None:
    """Let others read new files where the umask does; safetensors lets the owner alone."""
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    for file in files:
        if file.is_file():
            os.chmod(file, 0o666 & ~mask)


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and the missing ones above it, which stay where the power fails next."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with contextlib.suppress(OSError):  # an unreadable parent, or a disk without this flush
            flush(path.parent)


def flush_files(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        flush(path)


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises OSError or ValueError."""
    return json.loads(path.read_text(encoding="utf-8"))


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(folder: Path, patterns: Iterable[str]) -> str:
    return " ".join(file_sha256(file) for pattern in patterns for file in sorted(folder.glob(pattern)))


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that a killed process left: of one file, or of a folder nobody else writes to."""
    for left in folder.glob(f"{TEMPORARY}*" if name is None else f"{TEMPORARY}{glob.escape(name)}-????????"):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def why_not_writable(folder: Path) -> str | None:
    """The system's reason why nothing can be created in a folder; None where it can. Leaves nothing there.

    It tries to create a folder: by permissions alone, all can write to /proc, and root nearly everywhere.
    """
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".classify-", dir=folder))
    except OSError as error:
        return error.strerror
    return None

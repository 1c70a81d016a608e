"""Find, hash and decompress a file that holds a table."""

from __future__ import annotations

import atexit
import bz2
import contextlib
import functools
import gzip
import io
import lzma
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow

from classify.config.fields import split_paths
from classify.console import progress_bar
from classify.errors import InputError
from classify.files import file_sha256
from classify.launch import launcher
from classify.tables import archives
from classify.tables.unread import refuse_unread

_HEAD = 1 << 16
# Compressions: a regular expression for a file's first bytes, the name, and a function that opens the file.
_COMPRESSIONS: tuple[tuple[bytes, str, Callable[[Path], Any]], ...] = (
    (rb"\x1f\x8b", "gzip", gzip.open),
    (rb"BZh[1-9]1AY", "bzip2", bz2.open),
    (rb"\xfd7zXZ\x00", "xz", lzma.open),
    (rb"\x28\xb5\x2f\xfd", "zstd", lambda path: pyarrow.input_stream(str(path), compression="zstd")),
)
# The form of a data set's name on the hub.
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.+-]+)?(\[\w+\])?")
# The path that means standard input.
STANDARD_INPUT = "-"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# A file that decompresses to more than this many times its size, and to more bytes than that, is not a table of texts.
_MOST_GROWTH, _FEW_BYTES = 200, 64 << 20
# A file of more bytes is read with a progress bar, in blocks of this size.
_LONG_BYTES, _BLOCK = 64 << 20, 1 << 20


@dataclass(frozen=True)
class Source:
    """A file as it was named (`path`), with a flag for messages; of an archive the `member` that is read."""

    path: str
    flag: str
    member: str = ""

    @cached_property
    def file(self) -> Path:
        """Return the path to read; standard input and pipes are copied to a file, since it is read more than once."""
        return _copy_stream(self.path) if is_stream(self.path) else Path(self.path)

    @property
    def suffix(self) -> str:
        """Return the suffix without that of a compression: ".csv" of my.csv.gz."""
        name = Path(self.member or self.path).name.lower()
        for ending in _COMPRESSED:
            name = name.removesuffix(ending)
        return Path(name).suffix

    @property
    def stem(self) -> str:
        """Return the name without suffixes, for runs/<stem>-<n>; of a pattern its fixed characters."""
        name = Path("stdin" if is_stream(self.path) else split_paths(self.path)[0])
        stem = Path(name.stem).stem if name.suffix.lower() in (*_COMPRESSED, ".zip") else name.stem
        return re.sub(r"[*?\[\]:]+", "-", stem).strip("-_. ") or "tables"

    @property
    def is_file(self) -> bool:
        return is_stream(self.path) or Path(self.path).is_file()

    @cached_property
    def head(self) -> bytes:
        """Return the first 64 KiB, decompressed."""
        with self.open() as stream:
            return stream.read(_HEAD)

    @cached_property
    def _magic(self) -> bytes:
        with self.file.open("rb") as file:
            return file.read(8)

    @cached_property
    def _compression(self) -> tuple[str, Callable[[Path], Any]] | None:
        return next(((name, opens) for magic, name, opens in _COMPRESSIONS if re.match(magic, self._magic)), None)

    @property
    def compression(self) -> str | None:
        return None if self._compression is None else self._compression[0]

    def check_growth(self, size: int) -> None:
        """Raise InputError where the file decompresses to `size` bytes or more, too many for a table."""
        compressed = self.file.stat().st_size
        if size > max(_FEW_BYTES, _MOST_GROWTH * compressed):
            raise InputError(
                f"{self.path}: decompresses from {compressed} bytes to {size >> 20} MiB or more; if that is intended, "
                "save it as plain CSV."
            )

    def open(self) -> BinaryIO:
        """Open the decompressed bytes. Reading raises InputError where they are damaged."""
        if not self.member:
            return self._decompress()
        if self.compression is None and archives.is_zip(self._magic):
            return self._bound(archives.open_zip_member(self.file, self.member))
        return self._bound(archives.open_tar_member(self._decompress(), self.member))

    def _decompress(self) -> BinaryIO:
        if self._compression is None:
            size = self.file.stat().st_size
            if size <= _LONG_BYTES:
                return self.file.open("rb")
            return cast(BinaryIO, io.BufferedReader(_Watched(self.file, size), _BLOCK))
        return self._bound(self._compression[1](self.file))

    def _bound(self, stream: IO[bytes]) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_Bounded(self, stream)))

    def find_member(self, suffixes: Container[str]) -> str:
        """Return the one table of an archive, "" for another file. Raises InputError for none or several."""
        if self.compression is None and archives.is_zip(self._magic):
            return archives.find_zip_member(self.path, self.file, suffixes, self.check_growth)
        if archives.is_tar(self.head):
            with self._decompress() as stream:
                return archives.find_tar_member(self.path, stream, suffixes)
        return ""

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the file as stored."""
        return file_sha256(self.file)


class _Watched(io.RawIOBase):
    """A file that moves a progress bar as it is read."""

    def __init__(self, file: Path, size: int):
        self._stream = file.open("rb", buffering=0)
        self._bar = progress_bar(size, 0, "B", enabled=launcher.is_main_process(), delayed=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count = self._stream.readinto(buffer)  # type: ignore[arg-type]
        self._bar.update(count)
        return count

    def close(self) -> None:
        self._bar.close()
        self._stream.close()
        super().close()


class _Bounded(io.RawIOBase):
    """A decompressed stream that raises InputError where it is damaged or grows too large."""

    def __init__(self, source: Source, stream: IO[bytes]):
        self._source, self._stream, self._bytes_read = source, stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            block = self._stream.read(len(view))
        except (OSError, EOFError, lzma.LZMAError, zlib.error, *archives.ERRORS) as error:
            form = self._source.compression or "archive"
            raise InputError(f"{self._source.path}: cannot be decompressed ({form}: {error}); copy it again.") from None
        self._bytes_read += len(block)
        self._source.check_growth(self._bytes_read)
        view[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._stream.close()
        super().close()


def is_stream(path: str) -> bool:
    """Return whether a path can be read once only: standard input, or a pipe such as <(zcat my.csv.gz) of a shell."""
    return path == STANDARD_INPUT or Path(path).is_fifo()


def reads_stream(paths: str) -> bool:
    """Return whether one of several paths, with commas between, can be read once only."""
    return any(map(is_stream, split_paths(paths)))


@functools.cache
def _copy_stream(path: str) -> Path:
    """Copy standard input or a pipe to a file that is removed when the process ends."""
    with tempfile.NamedTemporaryFile(prefix="classify-", delete=False) as file, contextlib.ExitStack() as opened:
        atexit.register(Path(file.name).unlink, missing_ok=True)
        stream = sys.stdin.buffer if path == STANDARD_INPUT else opened.enter_context(open(path, "rb"))
        shutil.copyfileobj(stream, file)
    return Path(file.name)


def check_file(source: Source, suffixes: Container[str]) -> Source:
    """Return the source of a file, with the member of an archive that holds the table.

    Raises InputError where there is no such file, it is empty, or of an unsupported form. `suffixes` are those of
    files to suggest instead.
    """
    path = source.path
    if re.match(r"\w+://", path):
        raise InputError(f"{source.flag} {path}: expected a file. Got an address instead; download it first.")
    if not source.is_file:
        on_hub = _HUB_NAME.fullmatch(path) and not Path(path).suffix
        hub = f" Of a data set on the Hugging Face hub give {source.flag} hub:{path}." if on_hub else ""
        raise InputError(f"{source.flag} {path}: no such file.{_suggest(Path(path), suffixes)}{hub}")
    try:
        if source.file.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty. Expected a header line with column names, then rows.")
        source = replace(source, member=source.find_member(suffixes))
        refuse_unread(path, source.head)
    except OSError as error:
        raise InputError(f"{source.flag} {path}: cannot be read ({error.strerror}).") from None
    return source


def _suggest(file: Path, suffixes: Container[str]) -> str:
    """Name tables in the folder of a file that is missing."""
    folder = file.parent
    if not folder.is_dir():
        return f" The folder {folder} does not exist either."
    import difflib

    names = [entry.name for entry in sorted(folder.iterdir()) if Source(str(entry), "").suffix in suffixes]
    near = difflib.get_close_matches(file.name, names, n=1) or names[:3]
    return f" In {folder} there is: {', '.join(near)}." if near else " Check the path."

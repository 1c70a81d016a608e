"""Find, hash and decompress a file that holds a table."""

from __future__ import annotations

import atexit
import bz2
import codecs
import contextlib
import functools
import gzip
import hashlib
import io
import lzma
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Container, Iterator
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

_HEAD, _BLOCK = 1 << 16, 1 << 22
# Compressions: a regular expression for a file's first bytes, the name, and a function that opens the file.
_COMPRESSIONS: tuple[tuple[bytes, str, Callable[[Path], Any]], ...] = (
    (rb"\x1f\x8b", "gzip", gzip.open),
    (rb"BZh[1-9]1AY", "bzip2", bz2.open),
    (rb"\xfd7zXZ\x00", "xz", lzma.open),
    (rb"\x28\xb5\x2f\xfd", "zstd", lambda path: pyarrow.input_stream(str(path), compression="zstd")),
)
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# The form of a data set's name on the hub.
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.+-]+)?(\[\w+\])?")
# The ASCII bytes with which ISO-2022-JP switches to Japanese.
_ESCAPE = b"\x1b$"
# The path that means standard input.
STANDARD_INPUT = "-"
# A file that decompresses to more than this many times its size, and to more bytes than that, is not a table of texts.
_MOST_GROWTH, _FEW_BYTES = 200, 64 << 20
# A file of more bytes is read with a progress bar.
_LONG_BYTES = 64 << 20


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
    def is_plain(self) -> bool:
        """Return whether the file holds the bytes that `open` gives."""
        return self._compression is None and not self.member

    def check_growth(self, size: int) -> None:
        """Raise InputError where the file decompresses to `size` bytes or more, too many for a table."""
        compressed = self.file.stat().st_size
        if size > max(_FEW_BYTES, _MOST_GROWTH * compressed):
            raise InputError(
                f"{self.path}: decompresses from {compressed} bytes to {size >> 20} MiB or more; if that is intended, "
                "save it as plain CSV."
            )

    def open(self) -> BinaryIO:
        """Open the decompressed bytes. Reading raises InputError where they are damaged, or grow too much."""
        stream: IO[bytes] = self.file.open("rb") if self._compression is None else self._compression[1](self.file)
        if self.member and archives.is_zip(self._magic):
            stream = archives.open_zip_member(self.file, self.member)
        elif self.member:
            stream = archives.open_tar_member(self._watch(stream), self.member)
        return self._watch(stream)

    def _watch(self, stream: IO[bytes]) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_Watched(self, stream), 1 << 20))

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes."""
        with self.open() as stream:
            while block := stream.read(_BLOCK):
                yield block

    def find_member(self, suffixes: Container[str]) -> str:
        """Return the one table of an archive, "" for another file. Raises InputError for none or several."""
        if archives.is_zip(self._magic):
            return archives.find_zip_member(self.path, self.file, suffixes, self.check_growth)
        if archives.is_tar(self.head):
            with self.open() as stream:
                return archives.find_tar_member(self.path, stream, suffixes)
        return ""

    @cached_property
    def _utf8(self) -> tuple[str, tuple[int, str] | None, bool]:
        """Return the hash of the decompressed bytes, the first line that is not UTF-8, and whether there are escapes.

        From one pass over them.
        """
        digest, has_escapes = hashlib.sha256(), False

        def hashed() -> Iterator[bytes]:
            nonlocal has_escapes
            for block in self.blocks():
                digest.update(block)
                has_escapes = has_escapes or _ESCAPE in block
                yield block

        blocks = hashed()
        fault = find_fault(blocks, "utf-8")
        for _ in blocks:  # below a fault
            pass
        return digest.hexdigest(), fault, has_escapes

    @property
    def utf8_fault(self) -> tuple[int, str] | None:
        """Return the first line that is not UTF-8, with the reason; None where all lines are."""
        return self._utf8[1]

    @property
    def has_escapes(self) -> bool:
        """Return whether the file switches to Japanese as ISO-2022-JP does."""
        return self._utf8[2]

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the file as stored."""
        return self._utf8[0] if self.is_plain and "_utf8" in self.__dict__ else file_sha256(self.file)


def find_fault(blocks: Iterator[bytes], encoding: str) -> tuple[int, str] | None:
    """Return the first line that is not text in an encoding, with the reason; None where all lines are."""
    decoder = codecs.getincrementaldecoder(encoding)()
    lines = 1
    for block in blocks:
        try:
            lines += decoder.decode(block).count("\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start] if error.start < len(error.object) else 0
            return lines + error.object[: error.start].count(b"\n"), f" (byte 0x{byte:02x})"
        except UnicodeError as error:  # of punycode, for one
            return lines, f" ({error})"
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        return lines, " (it ends inside a character)"
    return None


class _Watched(io.RawIOBase):
    """A stream that moves a progress bar, and raises InputError where it is damaged or grows too large."""

    def __init__(self, source: Source, stream: IO[bytes]):
        self._source, self._stream, self._size = source, stream, 0
        total = source.file.stat().st_size if source.is_plain else 0
        enabled = total > _LONG_BYTES and launcher.here().is_main
        self._bar = progress_bar(total, 0, "B", enabled=enabled, delayed=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            block = self._stream.read(len(view))
        except (OSError, EOFError, lzma.LZMAError, zlib.error, *archives.ERRORS) as error:
            if self._source.is_plain:
                raise
            raise InputError(f"{self._source.path}: cannot be decompressed ({error}); copy it again.") from None
        self._size += len(block)
        if not self._source.is_plain:
            self._source.check_growth(self._size)
        self._bar.update(len(block))
        view[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._bar.close()
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

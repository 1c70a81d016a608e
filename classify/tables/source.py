"""The bytes of a table: a file, a compressed one, the one table in a zip, standard input or a pipe."""

from __future__ import annotations

import bz2
import contextlib
import glob
import gzip
import hashlib
import io
import lzma
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import IO, Any

import pyarrow

from classify.errors import InputError, list_some
from classify.files import split_paths

STANDARD_INPUT = "-"
# Dialect, encoding and format are decided on this much of a file.
HEAD_BYTES = 1 << 20
_ZIP = b"PK\x03\x04"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Errors of damaged compressed files.
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
# Data set names of the Hugging Face hub.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def _open_zstd(file: Path) -> Any:
    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd"))


# How files are opened that begin with these bytes.
_OPENERS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (rb"\x1f\x8b", gzip.open),
    (rb"BZh[1-9]1AY&", bz2.open),
    (rb"\xfd7zXZ\0", lzma.open),
    (rb"\x28\xb5\x2f\xfd", _open_zstd),
)


@dataclass(frozen=True)
class Source:
    """A path as a flag gives it. Standard input and pipes are copied to a file once, since a table is read twice."""

    path: str
    flag: str = "--data"

    @cached_property
    def file(self) -> Path:
        return Path(self._copy.name) if self._copy else Path(self.path)

    @cached_property
    def _copy(self) -> Any:
        """The temporary copy of a stream, which goes with this object; None for a file."""
        if not is_stream(self.path):
            return None
        copy = tempfile.NamedTemporaryFile(prefix="classify-")  # noqa: SIM115 - it goes with this object
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if self.path == STANDARD_INPUT else stack.enter_context(open(self.path, "rb"))
            shutil.copyfileobj(stream, copy)
        copy.flush()
        return copy

    @property
    def is_file(self) -> bool:
        return is_stream(self.path) or self.file.is_file()

    @cached_property
    def suffix(self) -> str:
        """The extension that says what the content is: `.csv` of `my.csv.gz`, or of the one table in `my.zip`."""
        name = PurePath(self.member or self.path)
        if name.suffix.lower() in _COMPRESSED and not self.member:
            name = name.with_suffix("")
        return name.suffix.lower()

    @cached_property
    def member(self) -> str:
        """The name of the one table in a zip, or "". Raises InputError where a zip holds several."""
        if not self._start.startswith(_ZIP) or self.is_office:
            return ""
        with self.explain_damage(), zipfile.ZipFile(self.file) as archive:
            names = [name for name in archive.namelist() if not name.startswith("__MACOSX/") and name[-1] != "/"]
        names = [name for name in names if not PurePath(name).name.startswith(".")]
        tables = [name for name in names if PurePath(name).suffix.lower() not in ("", ".txt", ".md")]
        names = tables if len(tables) == 1 else names
        if len(names) != 1:
            shown = list_some(names) or "nothing"
            raise InputError(f"{self.path}: expected a zip of one table. Got {shown} in it; unzip it first.")
        return names[0]

    @cached_property
    def is_office(self) -> bool:
        """Whether this is a zip that holds a workbook, or another document of an office program."""
        if not self._start.startswith(_ZIP):
            return False
        with self.explain_damage(), zipfile.ZipFile(self.file) as archive:
            return not {"[Content_Types].xml", "mimetype"}.isdisjoint(archive.namelist())

    @cached_property
    def _start(self) -> bytes:
        with self.file.open("rb") as file:
            return file.read(8)

    @cached_property
    def head(self) -> bytes:
        """The first MiB of the content."""
        head = b""
        with self.open() as stream:  # a decompressing stream may give less than it is asked for
            while block := stream.read(HEAD_BYTES - len(head)):
                head += block
        return head

    def open(self) -> IO[bytes]:
        """The content, decompressed."""
        if self.member:
            return zipfile.ZipFile(self.file).open(self.member)
        opener = next((opener for start, opener in _OPENERS if re.match(start, self._start)), None)
        stream: IO[bytes] = self.file.open("rb") if opener is None else opener(self.file)
        return stream

    @contextlib.contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Turn an error of a damaged compressed file in this block into an InputError."""
        try:
            yield
        except _DAMAGED as error:
            if not self._start.startswith(_ZIP) and not any(re.match(start, self._start) for start, _ in _OPENERS):
                raise
            raise InputError(f"{self.path}: cannot be decompressed ({error}); copy it again.") from None

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file on disk, as `sha256sum` prints it."""
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def check(self, suffixes: Collection[str]) -> None:
        """Raise InputError where there is no such file, or it is empty; tables beside it, by `suffixes`, are named."""
        if re.match(r"\w+://", self.path):
            raise InputError(f"{self.flag} {self.path}: expected a file. Got an address instead; download it first.")
        if not self.is_file:
            folder = self.file.parent
            beside = f" The folder {folder} does not exist either."
            if folder.is_dir():
                names = [entry.name for entry in sorted(folder.iterdir()) if entry.suffix.lower() in suffixes]
                beside = f" In {folder} there is: {list_some(names)}." if names else " Check the path."
            if _HUB_NAME.fullmatch(self.path) and not Path(self.path).suffix:
                beside += f" A data set of the Hugging Face hub is {self.flag} hub:{self.path}."
            raise InputError(f"{self.flag} {self.path}: no such file.{beside}")
        try:
            empty = self.file.stat().st_size == 0
            self._start  # noqa: B018 - reading fails here where it is not allowed
        except OSError as error:
            raise InputError(f"{self.flag} {self.path}: cannot be read ({error.strerror}).") from None
        if empty:
            raise InputError(f"{self.path}: the file is empty. Expected a header line with column names, then rows.")


def is_stream(path: str) -> bool:
    """Whether a path can be read once only: standard input, or a pipe such as <(zcat my.csv.gz) of a shell."""
    return path == STANDARD_INPUT or Path(path).is_fifo()


def stem_of(paths: str) -> str:
    """The name of a table without suffixes, for runs/<stem>-<n>; of a pattern its fixed characters."""
    name = Path("stdin" if is_stream(paths) else split_paths(paths)[0])
    stem = Path(name.stem).stem if name.suffix.lower() in _COMPRESSED else name.stem
    return re.sub(r"[*?\[\]:]+", "-", stem).strip("-_. ") or "tables"


def list_files(paths: str) -> list[str]:
    """The files of a path, of a list with commas, or that match a pattern; the path itself where it is one.

    Of a pattern by name, without hidden ones and empty ones, such as _SUCCESS.
    """
    found: list[str] = []
    for part in split_paths(paths):
        is_pattern = glob.has_magic(part) and not Path(part).exists()
        files = sorted(map(Path, glob.glob(part, recursive=True))) if is_pattern else []
        files = [file for file in files if file.is_file() and file.name[0] not in "._~" and file.stat().st_size]
        found += list(map(str, files)) or [part]
    return found or [paths]

"""Where a table comes from: its bytes, the flags that say how to read it, and the questions that it leaves open.

The bytes are a file, a compressed one, the one table in a zip, standard input or a pipe.
"""

from __future__ import annotations

import bz2
import contextlib
import glob
import gzip
import io
import lzma
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import IO, Any, Self

from classify.errors import InputError, list_some
from classify.files import file_sha256, split_paths

STANDARD_INPUT = "-"
# Dialect, encoding and format are decided on this much of a file.
HEAD_BYTES = 1 << 20
_ZIP = b"PK\x03\x04"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Errors of damaged compressed files.
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
# What `Table.reading` may hold: a later table of the same kind is read by it, too.
_REMEMBERED = ("encoding", "sheet", "delimiter", "quote", "header", "skip_lines")
_NAMED = {"tab": "\t", r"\t": "\t"}


@dataclass(frozen=True)
class Question:
    """What a table leaves open: `candidates` are shown with an example each, the likeliest first; `flags` answer it."""

    text: str
    candidates: tuple[str, ...]
    flags: tuple[str, ...]

    def __str__(self) -> str:
        """The question in a line: `which column has the labels: "a" (...), "b" (...)? Give --label-column "a"`."""
        shown = f": {list_some(self.candidates)}" if self.candidates else ""
        return f"{self.text}{shown}? Give {' or '.join(self.flags)}"


class QuestionError(InputError):
    """Questions about one table, raised together. Exit 2, as for any input that a person can mend."""

    def __init__(self, path: str, questions: Sequence[Question], hint: str = ""):
        asked = ". ".join(map(str, questions))
        super().__init__(f"{path}: {asked}.{f' {hint}' if hint else ''}")
        self.questions = tuple(questions)


@dataclass(frozen=True)
class ReadOptions:
    """How a table is to be read, as flags say; None where the file decides.

    A `quote` of "" stands for none. `columns` are the names in a related table, such as the one that a model was
    trained on. `like` is how that table was read, which answers what this file leaves open; `inherited` are the
    options that were given for it, and are not for this file.
    """

    encoding: str | None = None
    sheet: str | None = None
    skips_bad_rows: bool = False
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None
    skip_lines: int | None = None
    columns: tuple[str, ...] = ()
    like: Mapping[str, Any] = field(default_factory=dict)
    inherited: frozenset[str] = frozenset()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The options in settings that are named as flags are. Raises InputError where two contradict."""
        if settings.get("header") and settings.get("no_header"):
            raise InputError("--header and --no-header contradict each other; give one of them.")
        delimiter, quote = settings.get("delimiter"), settings.get("quote")
        delimiter, quote = _NAMED.get(delimiter or "", delimiter), "" if quote == "none" else quote
        for flag, sign in (("--delimiter", delimiter), ("--quote", quote or None)):
            if sign is not None and not (len(sign) == 1 and sign.isascii() and not sign.isalnum()):
                raise InputError(f"{flag} {sign}: expected one sign of ASCII (or tab, or no quote: none).")
        header = True if settings.get("header") else False if settings.get("no_header") else None
        return cls(
            settings.get("encoding"), settings.get("sheet"), settings.get("on_bad_rows") == "skip",
            delimiter, quote, header, settings.get("skip_lines"),
        )  # fmt: skip

    def after(self, reading: Mapping[str, Any], columns: Sequence[str]) -> Self:
        """These options for a table like one that was read before: what flags gave then holds again."""
        given = {name: value for name, value in reading.get("given", {}).items() if getattr(self, name) is None}
        return replace(self, columns=tuple(columns), like=reading.get("found", {}), inherited=frozenset(given), **given)

    @property
    def given(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _REMEMBERED}
        return {name: value for name, value in values.items() if value is not None}


def _open_zstd(file: Path) -> Any:
    import pyarrow  # 60 ms, which flags need not wait for

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
        with contextlib.nullcontext(sys.stdin.buffer) if self.path == STANDARD_INPUT else open(self.path, "rb") as file:
            shutil.copyfileobj(file, copy)
        copy.flush()
        return copy

    @property
    def is_file(self) -> bool:
        return is_stream(self.path) or self.file.is_file()

    @cached_property
    def suffix(self) -> str:
        """The extension that says what the content is: `.csv` of `my.csv.gz`, or of the one table in `my.zip`."""
        return PurePath(self.member or _without_compression(self.path)).suffix.lower()

    @cached_property
    def _members(self) -> list[str]:
        if not self._start.startswith(_ZIP):
            return []
        with self.explain_damage(), zipfile.ZipFile(self.file) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]

    @property
    def is_office(self) -> bool:
        return not {"[Content_Types].xml", "mimetype"}.isdisjoint(self._members)

    @cached_property
    def member(self) -> str:
        """The name of the one table in a zip, or "". Raises InputError where a zip holds several."""
        if not self._start.startswith(_ZIP) or self.is_office:
            return ""
        names = [name for name in self._members if not re.search(r"^__MACOSX/|(^|/)\.[^/]*$", name)]
        tables = [name for name in names if PurePath(name).suffix.lower() not in ("", ".txt", ".md")]
        names = tables if len(tables) == 1 else names
        if len(names) != 1:
            shown = list_some(names) or "nothing"
            raise InputError(f"{self.path}: expected a zip of one table. Got {shown} in it; unzip it first.")
        return names[0]

    @cached_property
    def _start(self) -> bytes:
        with self.file.open("rb") as file:
            return file.read(8)

    @property
    def _opener(self) -> Callable[[Path], Any] | None:
        return next((opener for start, opener in _OPENERS if re.match(start, self._start)), None)

    @cached_property
    def head(self) -> bytes:
        """The first MiB of the content."""
        head = b""
        with self.open() as stream:  # a decompressing stream may give less than it is asked for
            while block := stream.read(HEAD_BYTES - len(head)):
                head += block
        return head

    def open(self) -> IO[bytes]:
        if self.member:
            return zipfile.ZipFile(self.file).open(self.member)
        stream: IO[bytes] = self._opener(self.file) if self._opener else self.file.open("rb")
        return stream

    @contextlib.contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Turn an error of a damaged compressed file in this block into an InputError."""
        try:
            yield
        except _DAMAGED as error:
            if not self._start.startswith(_ZIP) and not self._opener:
                raise
            raise InputError(f"{self.path}: cannot be decompressed ({error}); copy it again.") from None

    @cached_property
    def sha256(self) -> str:
        return file_sha256(self.file)

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
            raise InputError(f"{self.flag} {self.path}: no such file.{beside}")
        try:
            is_empty = not self._start
        except OSError as error:
            raise InputError(f"{self.flag} {self.path}: cannot be read ({error.strerror}).") from None
        if is_empty:
            raise InputError(f"{self.path}: the file is empty. Expected a header line with column names, then rows.")


def is_stream(path: str) -> bool:
    """Whether a path can be read once only: standard input, or a pipe such as <(zcat my.csv.gz) of a shell."""
    return path == STANDARD_INPUT or Path(path).is_fifo()


def _without_compression(path: str) -> str:
    return str(PurePath(path).with_suffix("")) if PurePath(path).suffix.lower() in _COMPRESSED else path


def stem_of(paths: str) -> str:
    """The name of a table without suffixes, for runs/<stem>-<n>; of a pattern its fixed characters."""
    name = PurePath(_without_compression("stdin" if is_stream(paths) else split_paths(paths)[0]))
    return re.sub(r"[*?\[\]:]+", "-", name.stem).strip("-_. ") or "tables"


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

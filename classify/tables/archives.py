"""Read the one table of a zip or tar archive without unpacking it."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from classify.errors import InputError
from classify.tables.unread import refuse_unread_archive

SUFFIXES = (".zip", ".tar", ".tgz")
# Errors of broken archives, and of compression methods that Python lacks.
ERRORS = (zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)
_COMPRESSION = re.compile(r"\.(gz|bz2|xz|zst)$")
_SHOWN = 4
_ABOUT = ("readme", "license", "licence", "copying", "changelog")  # files that come with a table
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."


def is_zip(start: bytes) -> bool:
    """Return whether a file with these first bytes is a zip archive, as workbooks are."""
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_tar(start: bytes) -> bool:
    return start[257:262] == b"ustar"


def find_zip_member(path: str, file: Path, suffixes: Container[str], check_growth: Callable[[int], None]) -> str:
    """Return the name of the only table in a zip archive; "" for a workbook.

    Raises InputError without exactly one table. `check_growth` gets the total size of the files, and may raise.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            check_growth(sum(entry.file_size for entry in entries))
            names = [entry.filename for entry in entries]
            if "[Content_Types].xml" in names and any(name.startswith("xl/") for name in names):
                return ""
            if "mimetype" in names:
                with archive.open("mimetype") as stream:
                    kind = stream.read(99).decode(errors="replace")
                if kind.startswith(f"{_OPEN_DOCUMENT}spreadsheet"):
                    return ""
                if kind.startswith(_OPEN_DOCUMENT):
                    raise InputError(f"{path}: an OpenDocument file, but not a spreadsheet; save the table as .ods.")
            refuse_unread_archive(path, names)
            member = _only_table(path, iter(names), suffixes)
            if archive.getinfo(member).flag_bits & 1:
                raise InputError(f"{path}: {_show(member)} in it is encrypted; unpack it and give the file.")
            return member
    except ERRORS as error:
        raise InputError(f"{path}: not a readable workbook or zip archive ({error}); copy it again.") from None


def find_tar_member(path: str, stream: BinaryIO, suffixes: Container[str]) -> str:
    """Return the name of the only table in a tar archive. Raises InputError without exactly one."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            return _only_table(path, (entry.name for entry in archive if entry.isreg()), suffixes)
    except ERRORS as error:
        raise InputError(f"{path}: not a readable tar archive ({error}); copy it again.") from None


def open_zip_member(file: Path, member: str) -> IO[bytes]:
    with zipfile.ZipFile(file) as archive:  # the member keeps the file open
        return archive.open(member)


def open_tar_member(stream: BinaryIO, member: str) -> IO[bytes]:
    """Open a file of a tar archive; the archive is read from its beginning."""
    archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115
    for entry in archive:
        if entry.name == member and entry.isreg():
            content = archive.extractfile(entry)
            assert content is not None
            return content
    raise tarfile.ReadError("it was changed meanwhile")


def _only_table(path: str, names: Iterator[str], suffixes: Container[str]) -> str:
    """Return the one file with a table's suffix, or the one file; folders and hidden files do not count."""
    files: list[str] = []
    tables: list[str] = []
    for name in names:
        file = PurePosixPath(name)
        if file.name.startswith(".") or "__MACOSX" in file.parts:
            continue
        if len(files) < _SHOWN:
            files.append(name)
        suffix = PurePosixPath(_COMPRESSION.sub("", file.name.lower())).suffix
        if suffix in suffixes and suffix not in SUFFIXES and not file.name.lower().startswith(_ABOUT):
            tables.append(name)
        if len(tables) == _SHOWN:  # a large archive need not be read to its end
            break
    if not tables and len(files) == 1:
        tables = files
    if len(tables) == 1:
        return tables[0]
    got = f"several ({_list(tables)})" if tables else f"none ({_list(files) or 'it is empty'})"
    raise InputError(
        f"{path}: expected one table in the archive. Got {got} instead; unpack it, and give one of its files or the "
        "folder."
    )


def _list(names: list[str]) -> str:
    return ", ".join(map(_show, names[: _SHOWN - 1])) + (", ..." if len(names) >= _SHOWN else "")


def _show(name: str) -> str:
    """Return a name on one line."""
    return repr(name)[1:-1]
